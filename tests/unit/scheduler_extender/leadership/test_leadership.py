"""Who may serve, and what a replica says of itself meanwhile."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.codec.pod import pod_ref
from gpuloom.errors import UnavailableError
from gpuloom.kube.cache import Change
from gpuloom.kube.errors import LeadershipLostError
from gpuloom.runtime.clock import FakeClock, settle
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.leadership.leadership import (
    LABEL_INTERVAL_S,
    SET_BACK,
    LeadershipParts,
    LeadershipState,
)
from services.scheduler_extender.metrics import ExtenderMetrics
from services.scheduler_extender.ports import Stamped
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.state.waker import Waker
from tests.unit.scheduler_extender.builders import JsonObject, a_node, a_pod, a_ref
from tests.unit.scheduler_extender.kubernetes import ScriptedApi


class Situation:
    """Everything around one replica, as its ports see it. The lease is given and taken by the test."""

    def __init__(self, contested: bool = True) -> None:
        self.clock = FakeClock()
        self.lacks, self.silent, self.holder = "", "", ""
        self.rewound = 0
        self.lease_until_s = -math.inf
        self.stamped, self.leader_label = False, False
        self.takeovers, self.rewind_during_takeover = 0, False
        self.badge_fails: list[UnavailableError] = []
        self._complete, self._elected = asyncio.Event(), asyncio.Event()
        self._lost, self._caught_up = asyncio.Event(), asyncio.Event()
        self._complete.set()
        self.registry = CollectorRegistry()
        self.metrics = ExtenderMetrics(self.registry)
        parts = LeadershipParts(self, self, self, lambda: self.holder, contested)
        self.leadership = LeadershipState(self, parts, self.clock, self.metrics)

    def lack(self, what: str) -> None:
        self.lacks = what
        if what:
            self._complete.clear()
        else:
            self._complete.set()

    def elect(self, for_s: float = 1000.0) -> None:
        self.lease_until_s = self.clock.monotonic() + for_s
        self._elected.set()

    def lose(self) -> None:
        self._lost.set()

    def catch_up_now(self) -> None:
        self._caught_up.set()

    def missing(self) -> str:
        return self.lacks

    def silence(self) -> str:
        return self.silent

    def rewinds(self) -> int:
        return self.rewound

    async def wait_complete(self) -> None:
        await self._complete.wait()

    def leader_until_s(self) -> float:
        return self.lease_until_s

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        await self._elected.wait()
        working = asyncio.ensure_future(work())
        losing = asyncio.create_task(self._lost.wait())
        await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
        for task in (working, losing):
            task.cancel()
        await asyncio.gather(working, losing, return_exceptions=True)
        raise LeadershipLostError("taken by another")

    async def unbound_pods(self) -> Sequence[JsonObject]:
        return [a_pod(a_ref("pod"))]

    async def stamp(self, pods: Sequence[JsonObject]) -> Stamped:
        self.stamped = True
        self.takeovers += 1
        if self.rewind_during_takeover:
            self.rewind_during_takeover = False
            self.rewound += 1
        return Stamped(0, tuple(pod_ref(pod) for pod in pods))

    async def catch_up(self) -> None:
        await self._caught_up.wait()

    async def put(self) -> None:
        if self.badge_fails:
            raise self.badge_fails.pop()
        self.leader_label = True

    async def remove(self) -> None:
        if self.badge_fails:
            raise self.badge_fails.pop()
        self.leader_label = False


@asynccontextmanager
async def running(situation: Situation) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(situation.leadership.run())
    await settle()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def leading(situation: Situation) -> None:
    situation.elect()
    situation.catch_up_now()
    await settle()
    assert situation.leadership.unready_reason() == ""


async def test_a_standby_is_well_but_does_not_serve_and_says_who_does() -> None:
    situation = Situation()
    async with running(situation):
        situation.holder = "other-1"

        assert situation.leadership.unready_reason() == "standby; leader is other-1"
        assert situation.leadership.unhealthy_reason() == ""
        assert not situation.leadership.is_leader()


async def test_a_standby_without_any_leader_is_not_ready() -> None:
    situation = Situation()
    async with running(situation):
        assert situation.leadership.unhealthy_reason() == "standby; there is no leader yet"


async def test_a_standby_that_is_cold_or_cut_off_is_not_ready() -> None:
    situation = Situation()
    situation.holder = "other-1"
    async with running(situation):
        situation.lack("pods and nodes are not listed yet")
        cold = situation.leadership.unhealthy_reason()
        situation.lack("")
        situation.silent = "the Kubernetes API is silent"
        cut_off = situation.leadership.unhealthy_reason()

        assert (cold, cut_off) == ("pods and nodes are not listed yet", "the Kubernetes API is silent")


async def test_one_that_is_not_warm_does_not_lead() -> None:
    situation = Situation()
    situation.lack("no device facts from discovery yet")
    async with running(situation):
        situation.elect()
        await settle()
        before = situation.stamped

        situation.lack("")
        await settle()

        assert (before, situation.stamped) == (False, True)


async def test_a_leader_takes_over_again_when_the_api_was_set_back() -> None:
    situation = Situation()
    async with running(situation):
        situation.elect()
        situation.catch_up_now()
        await settle()
        before = (situation.leadership.is_leader(), situation.takeovers)

        situation.rewound += 1
        at_once = (situation.leadership.is_leader(), situation.leadership.unready_reason())
        situation.rewind_during_takeover = True
        await situation.clock.advance(LABEL_INTERVAL_S)

        assert before == (True, 1)
        assert at_once == (False, SET_BACK)
        assert (situation.leadership.is_leader(), situation.takeovers) == (True, 3)


async def test_pods_that_a_takeover_could_not_stamp_are_counted() -> None:
    situation = Situation()
    async with running(situation):
        situation.elect()
        situation.catch_up_now()
        await settle()

        assert situation.registry.get_sample_value("gpuloom_scheduler_extender_unstamped_pods") == 1


async def test_a_leader_serves_only_when_it_has_caught_up() -> None:
    situation = Situation()
    async with running(situation):
        situation.elect()
        await settle()
        early = (
            situation.leadership.unready_reason(),
            situation.leadership.until_s(),
            situation.leader_label,
        )

        situation.catch_up_now()
        await settle()

        assert early == ("taking over from the leader before", -math.inf, False)
        assert situation.leadership.unready_reason() == ""
        assert situation.leadership.until_s() == situation.lease_until_s
        assert situation.leader_label


async def test_alone_it_stamps_before_it_has_listed_anything() -> None:
    situation = Situation(contested=False)
    situation.lack("pods and nodes are not listed yet")
    async with running(situation):
        situation.elect()
        situation.catch_up_now()
        await settle()
        early = (situation.stamped, situation.leadership.is_leader())

        situation.lack("")
        await settle()

        assert early == (True, False)
        assert situation.leadership.is_leader()


async def test_a_lease_that_ran_out_ends_the_serving_before_anybody_noticed() -> None:
    situation = Situation()
    async with running(situation):
        situation.elect(for_s=5.0)
        situation.catch_up_now()
        await settle()

        await situation.clock.advance(6.0)

        assert situation.leadership.unready_reason() == "the lease has run out"
        assert situation.leadership.unhealthy_reason() == "the lease has run out"
        assert not situation.leadership.is_leader()


async def test_a_replica_that_lost_the_lease_never_serves_again_and_ends() -> None:
    situation = Situation()
    async with running(situation) as task:
        await leading(situation)

        situation.lose()
        with pytest.raises(LeadershipLostError):
            await task

        assert situation.leadership.unready_reason() == "no longer the leader"
        assert situation.leadership.until_s() == -math.inf
        assert not situation.leader_label


async def test_stepping_down_stops_serving_and_leaves_the_service_while_the_lease_is_kept() -> None:
    situation = Situation()
    async with running(situation) as task:
        await leading(situation)

        await situation.leadership.step_down()
        await situation.clock.advance(3 * LABEL_INTERVAL_S)

        assert situation.leadership.unready_reason() == "no longer the leader"
        assert not situation.leader_label
        assert not task.done()


async def test_a_standby_that_steps_down_writes_nothing() -> None:
    situation = Situation()
    situation.leader_label = True
    async with running(situation):
        await situation.leadership.step_down()

        assert situation.leader_label


async def test_a_badge_that_could_not_be_put_on_is_tried_again() -> None:
    situation = Situation()
    situation.badge_fails = [UnavailableError("down")]
    async with running(situation):
        await leading(situation)
        early = situation.leader_label

        await situation.clock.advance(LABEL_INTERVAL_S)

        assert (early, situation.leader_label) == (False, True)


async def test_a_badge_that_can_not_be_taken_off_keeps_nobody_from_ending() -> None:
    situation = Situation()
    async with running(situation) as task:
        await leading(situation)
        situation.badge_fails = [UnavailableError("down")]

        situation.lose()
        with pytest.raises(LeadershipLostError):
            await task

        assert situation.leadership.unready_reason() == "no longer the leader"


async def test_a_paused_leader_does_not_put_its_badge_on_again() -> None:
    situation = Situation()
    async with running(situation):
        situation.elect(for_s=0.5)
        situation.catch_up_now()
        await settle()
        situation.leader_label = False

        await situation.clock.advance(10 * LABEL_INTERVAL_S)

        assert not situation.leader_label


async def test_what_reopened_before_a_takeover_wakes_pods_after_it() -> None:
    clock, api, leads = FakeClock(), ScriptedApi(), [False]
    state = ClusterState(Ledger(30.0), lambda: False, clock)
    waker = Waker(state, api, clock, ExtenderMetrics(CollectorRegistry()), lambda: leads[0])
    state.observe_node(Change(None, a_node("n1")))
    state.observe_pod(Change(None, a_pod(a_ref("pod"))))
    for _ in range(2):
        await waker.wake()
    early = list(api.touches)

    leads[0] = True
    for _ in range(2):
        await waker.wake()

    assert early == []
    assert api.touches == ["n1"]
