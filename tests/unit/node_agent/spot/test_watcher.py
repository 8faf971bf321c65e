"""When a notice is published, when it is taken back, and what is said of it."""

import asyncio
import logging
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from gpuloom.runtime.clock import FakeClock
from services.node_agent.node import Node
from services.node_agent.spot.core.clouds import Cloud, Unwatched
from services.node_agent.spot.core.problem import MetadataError, Problem
from services.node_agent.spot.metrics import SpotMetrics
from services.node_agent.spot.watcher import SpotWatcher, WatcherParts
from tests.unit.node_agent.builders import a_start

ENDS_AT = datetime(2026, 9, 18, 8, 22, tzinfo=UTC)
NOTICE = SpotNotice(SpotNoticeKind.INTERRUPTION, ENDS_AT, "azure", "preempt")
HINT = SpotNotice(SpotNoticeKind.REBALANCE, ENDS_AT, "aws")


@dataclass
class Stage:
    """A watcher whose cloud says what a test tells it to."""

    says: SpotNotice | Problem | None = None
    place: Cloud | Unwatched = Cloud.AZURE
    asked_at_s: list[float] = field(default_factory=list)
    clock: FakeClock = field(default_factory=FakeClock)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.node = Node(a_start(), self.clock, 10.0)
        metrics = SpotMetrics(self.registry)
        metrics.watch(self.node)
        parts = WatcherParts(lambda: self.place, lambda _: self, self.clock, metrics, random.Random(1))
        self.watcher = SpotWatcher(self.node, parts, 5.0)

    async def read(self) -> SpotNotice | None:
        self.asked_at_s.append(self.clock.monotonic())
        if isinstance(self.says, Problem):
            raise MetadataError(self.says, "it does not say")
        return self.says

    async def hear(self, says: SpotNotice | Problem | None) -> SpotNotice | None:
        """The notice that stands after the cloud said this."""
        self.says = says
        await self.watcher.look()
        return self.node.state.spot

    def polls(self, result: str) -> float:
        labels = {"cloud": "azure", "result": result}
        return self.registry.get_sample_value("gpuloom_node_agent_spot_polls_total", labels) or 0.0

    def standing(self, kind: str) -> float | None:
        return self.registry.get_sample_value("gpuloom_node_agent_spot_notices", {"kind": kind})


async def test_a_notice_is_published_once_and_taken_back_when_the_cloud_does() -> None:
    stage = Stage()

    heard = [await stage.hear(says) for says in (None, NOTICE, NOTICE, None, None)]

    assert heard == [None, NOTICE, NOTICE, None, None]
    assert stage.node.feed.number == 2


@pytest.mark.parametrize("problem", Problem)
async def test_a_notice_stands_while_the_cloud_does_not_answer(problem: Problem) -> None:
    stage = Stage()

    heard = [await stage.hear(says) for says in (problem, NOTICE, problem, problem)]

    assert heard == [None, NOTICE, NOTICE, NOTICE]
    assert stage.polls(problem) == 3


async def test_a_hint_becomes_an_interruption() -> None:
    stage = Stage()

    heard = [await stage.hear(says) for says in (HINT, NOTICE)]

    assert heard == [HINT, NOTICE]


async def test_the_time_of_an_event_outlives_its_start() -> None:
    stage = Stage()
    started = replace(NOTICE, time=None)

    heard = [await stage.hear(says) for says in (NOTICE, started, replace(started, action="terminate"))]

    assert heard == [NOTICE, NOTICE, replace(started, action="terminate")]


async def test_a_later_time_replaces_an_earlier_one() -> None:
    stage = Stage()
    moved = replace(NOTICE, time=ENDS_AT.replace(minute=40))

    heard = [await stage.hear(says) for says in (NOTICE, moved)]

    assert heard == [NOTICE, moved]


async def test_metrics_tell_of_polls_and_of_what_stands() -> None:
    stage = Stage()
    for says in (None, None, NOTICE, Problem.SLOW):
        await stage.hear(says)

    assert (stage.polls("none"), stage.polls("interruption"), stage.polls("slow")) == (2, 1, 1)
    assert (stage.standing("interruption"), stage.standing("rebalance")) == (1, 0)


async def test_every_change_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    with caplog.at_level(logging.INFO, logger="services.node_agent.spot"):
        for says in (None, Problem.SLOW, Problem.SLOW, Problem.REFUSED, NOTICE, NOTICE, None, None):
            await stage.hear(says)

    assert [record.message for record in caplog.records] == [
        "spot notices are watched",
        "the cloud does not say whether it gives notice",
        "the cloud does not say whether it gives notice",
        "the cloud says again whether it gives notice",
        "the cloud gave notice of this machine",
        "the cloud took its notice back",
    ]


async def test_a_node_of_no_cloud_is_never_asked_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(says=NOTICE, place=Unwatched("the node has no providerID"))
    with caplog.at_level(logging.INFO, logger="services.node_agent.spot"):
        for _ in range(3):
            await stage.watcher.look()

    assert (stage.asked_at_s, stage.node.state.spot) == ([], None)
    assert [record.message for record in caplog.records] == ["spot notices are not watched"]


async def test_a_provider_that_is_told_late_is_watched_from_then_on() -> None:
    stage = Stage(place=Unwatched("the node is not known yet"))
    before = await stage.hear(NOTICE)
    stage.place = Cloud.AZURE
    known = await stage.hear(NOTICE)
    stage.place = Unwatched("the node is not known yet")
    forgotten = await stage.hear(None)

    assert (before, known, forgotten) == (None, NOTICE, None)


async def test_the_cloud_is_asked_at_even_intervals_after_a_jittered_start() -> None:
    stage = Stage()
    task = asyncio.create_task(stage.watcher.run())
    await stage.clock.advance(21.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    first_s = stage.asked_at_s[0]
    assert 0.0 < first_s < 5.0
    assert stage.asked_at_s == [first_s + 5.0 * look for look in range(len(stage.asked_at_s))]
    assert len(stage.asked_at_s) in (4, 5)
