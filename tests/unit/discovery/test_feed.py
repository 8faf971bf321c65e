import asyncio
from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.model.snapshot import NodeFacts
from gpuloom.rpc.changelog import ChangeLog
from gpuloom.runtime.clock import FakeClock
from services.discovery import feed as feed_module
from services.discovery.core.cluster import Changes
from services.discovery.feed import ClusterFeed
from services.discovery.metrics import DiscoveryMetrics
from tests.effort import examples
from tests.unit.discovery.builders import a_state
from tests.unit.discovery.readers import HEARTBEAT_S, MemoryReader, published

USAGE_INTERVAL_S = 5.0


class Sender:
    """A feed, and what was last said about each node."""

    def __init__(self, usage_interval_s: float = USAGE_INTERVAL_S) -> None:
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        self.feed = ClusterFeed(self.clock, usage_interval_s, DiscoveryMetrics(self.registry))

    def put(self, *names: str, reasons: Iterable[str] = ()) -> None:
        facts = tuple(NodeFacts(a_state(name), tuple(reasons)) for name in names)
        self.feed.publish(Changes(facts))

    def use(self, *names: str, utilization: float) -> None:
        """Only usage changes; nodes that are not there are left alone."""
        changed = []
        for name in names:
            known = self.feed.facts_of(f"uid-{name}")
            if known is not None:
                changed.append(NodeFacts(a_state(name, utilization), known.untrusted_reasons))
        uids = frozenset(facts.state.node_uid for facts in changed)
        self.feed.publish(Changes(tuple(changed), usage_only=uids))

    def remove(self, *names: str) -> None:
        self.feed.publish(Changes((), tuple(f"uid-{name}" for name in names)))

    def tick(self) -> None:
        self.feed.publish(Changes())

    def count(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"gpuloom_discovery_{name}_total")


NAMES = ["n1", "n2", "n3", "n4", "n5"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "distrust", "use", "remove", "read", "read", "cut", "wait"]),
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
        st.integers(1, 3),
    ),
    max_size=40,
)


@settings(max_examples=examples(150))
@given(STEPS, st.booleans())
def test_any_reader_ends_with_the_published_state(
    steps: list[tuple[str, list[str], int]], with_usage: bool
) -> None:
    async def play() -> None:
        sender = Sender()
        sender.feed.with_usage = ChangeLog(kept_removals=2)
        sender.feed.without_usage = ChangeLog(kept_removals=2)
        reader = MemoryReader(sender.feed, with_usage=with_usage)
        for step, names, count in steps:
            await take(step, names, count, sender, reader)
        await reader.catch_up()

        assert reader.nodes == published(sender.feed, with_usage=with_usage)

    with patch.object(feed_module, "MAX_MESSAGE_NODES", 2):
        asyncio.run(play())


async def take(step: str, names: list[str], count: int, sender: Sender, reader: MemoryReader) -> None:
    if step == "read":
        for _ in range(count):
            if reader.behind:
                await reader.read()
    elif step == "cut":
        reader.close()
        reader.reopen()
    elif step == "wait":
        await sender.clock.advance(USAGE_INTERVAL_S)
        sender.tick()
    else:
        acts: dict[str, Any] = {
            "put": lambda: sender.put(*names),
            "distrust": lambda: sender.put(*names, reasons=[f"reason {count}"]),
            "use": lambda: sender.use(*names, utilization=count / 4),
            "remove": lambda: sender.remove(*names),
        }
        acts[step]()


async def test_a_slow_reader_is_told_only_the_newest_of_each_node() -> None:
    sender = Sender()
    sender.put("n1", "n2")
    reader = MemoryReader(sender.feed)
    await reader.catch_up()

    for number in range(1000):
        sender.put("n1", reasons=[f"reason {number}"])
    messages = await reader.catch_up()

    assert (messages, reader.received) == (1, ["uid-n1"])
    assert reader.nodes["uid-n1"].untrusted_reasons == ("reason 999",)
    assert sender.count("coalesced_changes") == 999


async def test_what_is_kept_does_not_grow_with_changes_or_slow_readers() -> None:
    sender = Sender()
    MemoryReader(sender.feed)

    for number in range(200):
        sender.put("n1", f"other-{number}", reasons=[f"reason {number}"])
        sender.remove(f"other-{number}")

    assert len(sender.feed.node_uids()) == 1
    assert len(sender.feed.with_usage.since(0)) <= 201


async def test_a_change_while_the_parts_are_sent_follows_as_a_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_MESSAGE_NODES", 1)
    sender = Sender()
    sender.put("n1", "n2", "n3")
    reader = MemoryReader(sender.feed)
    first = await reader.read()

    sender.put("n1", "n4", reasons=["changed"])
    sender.remove("n2")
    await reader.catch_up()

    assert first.version.number == 3
    assert reader.nodes == published(sender.feed, with_usage=True)
    assert reader.received == ["uid-n1", "uid-n4"]


async def test_a_reader_without_usage_sleeps_while_only_usage_changes() -> None:
    sender = Sender(usage_interval_s=0.0)
    sender.put("n1")
    reader = MemoryReader(sender.feed, with_usage=False)
    await reader.catch_up()
    waiting = asyncio.create_task(reader.read())

    sender.use("n1", utilization=0.5)
    await sender.clock.advance(HEARTBEAT_S - 0.1)
    woken = waiting.done()
    await sender.clock.advance(0.2)

    assert not woken
    assert (await waiting).WhichOneof("update") == "heartbeat"


async def test_usage_is_held_back_and_everything_else_is_not() -> None:
    sender = Sender()
    sender.put("n1", "n2")
    sender.use("n1", "n2", utilization=0.1)
    reader = MemoryReader(sender.feed)
    await reader.catch_up()

    sender.use("n1", "n2", utilization=0.2)
    sender.put("n2", reasons=["changed"])
    await reader.catch_up()
    at_once = list(reader.received)
    await sender.clock.advance(USAGE_INTERVAL_S)
    sender.tick()
    await reader.catch_up()

    assert at_once == ["uid-n2"]
    assert reader.received == ["uid-n2", "uid-n1"]
    assert reader.nodes["uid-n1"].state.usage[0].utilization_ratio == 0.2


async def test_a_change_waits_behind_one_message_of_usage_at_most() -> None:
    sender = Sender()
    names = [f"n{number}" for number in range(5)]
    sender.put(*names)
    sender.use(names[0], utilization=0.1)
    reader = MemoryReader(sender.feed)
    await reader.catch_up()
    await sender.clock.advance(USAGE_INTERVAL_S)

    with patch.object(feed_module, "MAX_MESSAGE_NODES", 2):
        sender.use(*names, utilization=0.2)
        sender.put(names[4], reasons=["changed"])
        await reader.catch_up()

    assert reader.received == ["uid-n0", "uid-n1", "uid-n4", "uid-n2", "uid-n3"]
    assert reader.nodes == published(sender.feed, with_usage=True)


async def test_usage_that_is_back_where_it_was_is_not_told() -> None:
    sender = Sender()
    sender.put("n1")
    sender.use("n1", utilization=0.1)
    sender.use("n1", utilization=0.2)
    sender.use("n1", utilization=0.1)
    before = sender.feed.number

    await sender.clock.advance(USAGE_INTERVAL_S)
    sender.tick()

    assert sender.feed.number == before


async def test_usage_of_a_node_that_went_meanwhile_is_dropped() -> None:
    sender = Sender()
    sender.put("n1")
    sender.use("n1", utilization=0.1)
    sender.use("n1", utilization=0.2)
    sender.remove("n1")
    before = sender.feed.number

    await sender.clock.advance(USAGE_INTERVAL_S)
    sender.tick()

    assert (sender.feed.number, sender.feed.node_uids()) == (before, [])


async def test_silence_is_a_heartbeat_that_repeats_the_readers_own_version() -> None:
    sender = Sender()
    sender.put("n1")
    reader = MemoryReader(sender.feed)
    await reader.catch_up()
    waiting = asyncio.create_task(reader.read())

    await sender.clock.advance(HEARTBEAT_S)
    message = await waiting

    assert message.WhichOneof("update") == "heartbeat"
    assert (message.version.number, message.version.after) == (1, 1)


async def test_a_change_wakes_a_waiting_reader_at_once() -> None:
    sender = Sender()
    reader = MemoryReader(sender.feed)
    await reader.read()
    waiting = asyncio.create_task(reader.read())
    await sender.clock.advance(0.0)

    sender.put("n1")
    message = await waiting

    assert [node.state.node_uid for node in message.delta.nodes] == ["uid-n1"]


async def test_an_empty_cluster_is_a_full_state_too() -> None:
    reader = MemoryReader(Sender().feed)

    await reader.read()

    assert (reader.complete, reader.nodes) == (True, {})


async def test_a_large_node_does_not_push_a_message_over_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_MESSAGE_BYTES", 1)
    sender = Sender()
    sender.put("n1", "n2", "n3")
    reader = MemoryReader(sender.feed)

    messages = await reader.catch_up()

    assert messages == 3


async def test_a_closed_reader_is_forgotten() -> None:
    sender = Sender()
    reader = MemoryReader(sender.feed)

    reader.close()

    assert sender.feed._readers == set()


async def test_every_run_has_its_own_epoch() -> None:
    assert Sender().feed.epoch != Sender().feed.epoch
