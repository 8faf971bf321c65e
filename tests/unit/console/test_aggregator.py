"""Sources that come, go and fail, and what the page has of them meanwhile."""

from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import UnavailableError
from gpuloom.runtime.clock import FakeClock
from services.console.aggregator import SOURCES, Aggregator
from services.console.core.sight import Sight, of_a_namespace
from services.console.core.state import Items
from services.console.metrics import ConsoleMetrics
from services.console.ports import Source
from services.console.web.events import Encoder


class Pods:
    """A source that its test feeds."""

    def __init__(self) -> None:
        self.items: dict[str, object] = {}
        self.failure: Exception | None = None
        self.source = Source("pods", {"pods": of_a_namespace}, 1.0, self.read)

    async def read(self) -> Mapping[str, Items]:
        if self.failure is not None:
            raise self.failure
        return {"pods": self.items}


def an_aggregator(*sources: Source) -> Aggregator:
    return Aggregator(sources, FakeClock(), ConsoleMetrics(CollectorRegistry()))


async def test_a_source_that_fails_keeps_its_items_and_says_why_until_it_is_back() -> None:
    pods = Pods()
    pods.items = {"a": {"namespace": "x"}}
    aggregator = an_aggregator(pods.source)
    await aggregator.ask(pods.source)

    pods.failure = UnavailableError("connection refused")
    await aggregator.ask(pods.source)

    away = aggregator.state.section(SOURCES)["pods"]
    assert aggregator.state.section("pods") == {"a": {"namespace": "x"}}
    assert (away["ok"], away["reason"]) == (False, "connection refused")
    pods.failure = None
    await aggregator.ask(pods.source)
    assert aggregator.state.section(SOURCES)["pods"]["ok"]


async def test_nothing_new_moves_no_version() -> None:
    pods = Pods()
    aggregator = an_aggregator(pods.source)
    await aggregator.ask(pods.source)
    version = aggregator.state.version

    await aggregator.ask(pods.source)

    assert aggregator.state.version == version


async def test_a_section_that_is_absent_is_not_shown_and_one_without_a_rule_is_a_mistake() -> None:
    pods = Pods()
    aggregator = an_aggregator(pods.source)
    assert set(aggregator.state.full()) == {SOURCES}

    async def other() -> Mapping[str, Items]:
        return {"gangs": {}}

    with pytest.raises(ValueError, match="no rule for gangs"):
        await aggregator.ask(Source("pods", {"pods": of_a_namespace}, 1.0, other))


async def test_somebody_with_one_namespace_sees_its_items_alone() -> None:
    pods = Pods()
    pods.items = {"a": {"namespace": "mine"}, "b": {"namespace": "theirs"}}
    aggregator = an_aggregator(pods.source)
    await aggregator.ask(pods.source)

    shown = aggregator.state.full(aggregator.mask(Sight(frozenset({"mine"}))))

    assert shown["pods"] == {"a": {"namespace": "mine"}}
    assert aggregator.namespaces() == {"mine", "theirs"}


async def test_the_whole_is_masked_once_for_all_who_see_the_same_of_a_version() -> None:
    pods = Pods()
    pods.items = {"a": {"namespace": "mine"}, "b": {"namespace": "theirs"}}
    aggregator = an_aggregator(pods.source)
    await aggregator.ask(pods.source)
    encoder, mine = Encoder(aggregator), Sight(frozenset({"mine"}))

    first, second = encoder.snapshot(mine), encoder.snapshot(Sight(frozenset({"mine"})))
    other = encoder.snapshot(Sight(frozenset({"theirs"})))
    pods.items = {}
    await aggregator.ask(pods.source)
    later = encoder.snapshot(mine)

    assert first is second
    assert b"mine" in first
    assert b"theirs" in other
    assert b"mine" not in other
    assert b"mine" not in later
