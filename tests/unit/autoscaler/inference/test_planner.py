"""Pods of a target that was scaled up are bought for at once; all others wait as always."""

from gpuloom.runtime.clock import FakeClock
from services.autoscaler.core.buying.pending import PendingPod, due_pods
from services.autoscaler.inference.planner import HASTENED_S, HastyPods
from tests.unit.autoscaler.builders import NOW, a_pod

LABELS = {"llm-1": {"app": "llm"}, "training": {"app": "training"}}
WAIT_S = 120.0


def due(planner: HastyPods) -> list[str]:
    pods: list[PendingPod] = planner.due([a_pod(name) for name in LABELS])
    return [one.ref.name for one in due_pods(pods, WAIT_S, NOW)]


async def test_only_pods_of_a_target_that_grew_lately_are_due_at_once() -> None:
    clock = FakeClock()
    planner = HastyPods(clock, lambda _, name: LABELS[name])

    before = due(planner)
    planner.hasten("elsewhere", "app=training")
    planner.hasten("team", "app=llm")
    hasty = due(planner)
    await clock.advance(HASTENED_S + 1)

    assert (before, hasty, due(planner)) == ([], ["llm-1"], [])
