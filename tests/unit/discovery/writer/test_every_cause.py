"""Every cause from its beginning to its end: readers, counts and Events tell it; the node stays as it is."""

from collections.abc import Callable
from typing import Any

import pytest

from gpuloom.kube.objects import JsonObject
from gpuloom.model.node import Holder, HolderSource, NodeMode, NodeState
from gpuloom.model.snapshot import NodeFacts
from gpuloom.runtime.clock import FakeClock
from services.discovery.core.cluster import ClusterModel
from services.discovery.core.findings import Cause
from services.discovery.core.trust import REASONS
from services.discovery.writer.core.advice import event_reason
from services.discovery.writer.events import TrustEvents
from tests.unit.discovery.builders import (
    GRACE_S,
    TTL_S,
    a_foreign_process,
    a_gpuloom_node,
    a_node,
    a_plugged_pod,
    a_pod,
    an_allocation,
    held,
    share,
    two_gpus,
)

UID = "uid-n1"
LONG_S = GRACE_S + TTL_S


class World:
    """One node with two GPUs in mode gpuloom, whose agent is heard, and the Events about it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.model = ClusterModel(TTL_S, GRACE_S)
        self.events = TrustEvents(self, self._node, self.clock)
        self.reasons: list[str] = []
        self.silent = False
        self.model.observe_node(a_gpuloom_node())
        self.model.expect_agent("n1", 0.0)
        self.hear(two_gpus())

    def warning(self, obj: JsonObject, reason: str, message: str) -> None:
        self.reasons.append(reason)

    def hear(self, state: NodeState | None = None) -> None:
        self.model.hear("n1", self.clock.monotonic(), state)

    async def wait(self, seconds: float = LONG_S) -> NodeFacts:
        """Let time pass; the agent goes on unless it is silent. The facts in the end."""
        for _ in range(int(seconds)):
            await self.clock.advance(1.0)
            if not self.silent:
                self.hear()
            self.model.check_silence(self.clock.monotonic())
            self.events.tell(self.model.changes(self.clock.monotonic()).distrust)
        (facts,) = self.model.facts()
        return facts

    def _node(self, name: str) -> JsonObject | None:
        return {"metadata": {"name": name, "uid": UID}}


Step = Callable[[World], None]


def says(*holders: Holder, **changes: Any) -> Step:
    return lambda world: world.hear(two_gpus(*holders, **changes))


def falls_silent(world: World) -> None:
    world.silent = True


def speaks_again(world: World) -> None:
    world.silent = False


def never_reports(world: World) -> None:
    world.silent = True
    world.model = ClusterModel(TTL_S, GRACE_S)
    world.model.observe_node(a_gpuloom_node())
    world.model.expect_agent("n1", 0.0)


def reports_at_last(world: World) -> None:
    world.silent = False
    world.hear(two_gpus())


def offers_both(world: World) -> None:
    world.model.observe_node(a_gpuloom_node(offers_nvidia=True))


def offers_ours(world: World) -> None:
    world.model.observe_node(a_gpuloom_node())


def has_an_unreadable_pod(world: World) -> None:
    world.model.observe_pod(a_pod("bad", problem="not JSON"))


def has_a_copied_allocation(world: World) -> None:
    world.model.observe_pod(a_pod("bad", allocation=an_allocation("original", share("b"))))


def has_an_allocation_elsewhere(world: World) -> None:
    world.model.observe_pod(a_pod("bad", allocation=an_allocation("bad", share("b"), node="n2")))


def has_a_pod_on_a_gpu_that_is_not_there(world: World) -> None:
    world.model.observe_pod(a_pod("bad", share("z")))


def has_two_owners(world: World) -> None:
    world.model.observe_pod(a_pod("good", share("a")))
    world.model.observe_pod(a_pod("bad", share("a")))


def has_a_pod_that_took_a_gpu(world: World) -> None:
    world.model.observe_pod(a_pod("bad"))
    world.hear(two_gpus(held("bad", "b")))


def lets_the_pod_go(world: World) -> None:
    world.model.forget_pod("uid-bad")


def lets_pod_and_gpu_go(world: World) -> None:
    world.model.forget_pod("uid-bad")
    world.hear(two_gpus())


def has_a_pod_with_one_device_too_many(world: World) -> None:
    world.model.observe_node(a_node())
    world.model.observe_pod(a_plugged_pod("bad"))
    world.hear(two_gpus(held("bad", "a", "b", source=HolderSource.KUBELET), mode=NodeMode.NVIDIA))


def gives_it_back(world: World) -> None:
    world.hear(two_gpus(held("bad", "a", source=HolderSource.KUBELET), mode=NodeMode.NVIDIA))


def changes_its_mode_under_a_pod(world: World) -> None:
    world.model.observe_node(a_node())
    world.model.observe_pod(a_pod("bad", share("b")))
    world.hear(two_gpus(mode=NodeMode.NVIDIA))


def has_a_pod_with_a_resource_claim(world: World) -> None:
    world.model.observe_pod(a_pod("bad"))
    world.hear(two_gpus(held("bad", "b", source=HolderSource.CLAIM)))


STORIES: dict[Cause, tuple[Step, Step]] = {
    Cause.AGENT_NOT_HEARD: (never_reports, reports_at_last),
    Cause.AGENT_SILENT: (falls_silent, speaks_again),
    Cause.NODE_UID_UNKNOWN: (says(node_uid=""), says()),
    Cause.NODE_REPLACED: (says(node_uid="uid-of-another"), says()),
    Cause.MODE_UNKNOWN: (says(mode=NodeMode.UNKNOWN), says()),
    Cause.TWO_AUTHORITIES: (offers_both, offers_ours),
    Cause.MODE_CHANGED: (changes_its_mode_under_a_pod, lets_the_pod_go),
    Cause.CLAIMED_GPU: (has_a_pod_with_a_resource_claim, lets_pod_and_gpu_go),
    Cause.HOLDERS_UNKNOWN: (says(holders_unknown_reason="no answer"), says()),
    Cause.UNREADABLE_ALLOCATION: (has_an_unreadable_pod, lets_the_pod_go),
    Cause.ALLOCATION_OF_ANOTHER_POD: (has_a_copied_allocation, lets_the_pod_go),
    Cause.ALLOCATION_OF_ANOTHER_NODE: (has_an_allocation_elsewhere, lets_the_pod_go),
    Cause.UNKNOWN_DEVICE: (has_a_pod_on_a_gpu_that_is_not_there, lets_the_pod_go),
    Cause.SECOND_OWNER: (has_two_owners, lets_the_pod_go),
    Cause.FOREIGN_PROCESS: (says(a_foreign_process("b")), says()),
    Cause.HOLDER_WITHOUT_POD: (says(held("gone", "b")), says()),
    Cause.HELD_WITHOUT_ALLOCATION: (has_a_pod_that_took_a_gpu, lets_pod_and_gpu_go),
    Cause.WRONG_COUNT: (has_a_pod_with_one_device_too_many, gives_it_back),
}


def test_there_is_a_story_for_every_cause() -> None:
    assert set(STORIES) == set(Cause)


@pytest.mark.parametrize("cause", Cause)
async def test_a_cause_is_told_once_clears_itself_and_asks_for_no_write(cause: Cause) -> None:
    begins, ends = STORIES[cause]
    world = World()
    begins(world)
    during = await world.wait()
    wanted_during, counted = world.model.desired(UID), world.model.distrust_counts()

    ends(world)
    after = await world.wait()

    told = (*during.untrusted_reasons, *(gpu.reason for gpu in during.closed_gpus))
    assert set(told) == {REASONS[cause]}
    assert {one for one, number in counted.items() if number} == {cause}
    assert world.reasons == [event_reason(cause)]
    assert (after.untrusted_reasons, after.closed_gpus, after.details) == ((), (), ())
    assert not any(world.model.distrust_counts().values())
    # What a node should say depends on what its agent says of itself, never on whether it is trusted.
    assert wanted_during in (None, world.model.desired(UID))


@pytest.mark.parametrize("cause", Cause)
async def test_what_ordinary_lag_or_a_start_explains_makes_no_event(cause: Cause) -> None:
    patient = {
        *(Cause.AGENT_NOT_HEARD, Cause.NODE_UID_UNKNOWN, Cause.HOLDERS_UNKNOWN),
        *(Cause.ALLOCATION_OF_ANOTHER_NODE, Cause.FOREIGN_PROCESS, Cause.HOLDER_WITHOUT_POD),
        *(Cause.HELD_WITHOUT_ALLOCATION, Cause.WRONG_COUNT, Cause.AGENT_SILENT),
    }
    begins, ends = STORIES[cause]
    world = World()

    begins(world)
    await world.wait(TTL_S - 2)
    ends(world)
    await world.wait()

    assert world.reasons == ([] if cause in patient else [event_reason(cause)])
