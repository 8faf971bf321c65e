"""The pure Job controller, on a world that obeys it: what time decides, and that nothing is counted twice."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.sim.controllers.job_counts import format_indexes, parse_indexes
from gpuloom.sim.controllers.jobs import FIRST_BACKOFF_S, is_finished, plan_job
from tests.unit.sim.controllers.builders import START, World, a_job

_EVENTS = st.sampled_from(["Succeeded", "Failed", "delete", "plan", "crash"])


def settle(world: World, after_s: float = 0.0) -> float | None:
    """Plan and obey until nothing is left to do; when time alone will change that."""
    for _ in range(20):
        if world.workload is None:
            return None
        decision = plan_job(world.workload, world.listed(), START + timedelta(seconds=after_s))
        if not decision.actions:
            return decision.wake_after_s
        for action in decision.actions:
            world.obey(action)
    raise AssertionError("the controller never comes to rest")


@given(st.lists(st.tuples(_EVENTS, st.integers(0, 3)), max_size=40), st.booleans())
def test_every_end_of_a_pod_is_counted_once_whatever_happens_in_between(
    events: list[tuple[str, int]], indexed: bool
) -> None:
    mode = {"completionMode": "Indexed"} if indexed else {}
    world = World(a_job(parallelism=3, completions=6, backoffLimit=1000, **mode))
    ends = {"succeeded": 0, "failed": 0}
    at_s = 0.0
    settle(world)

    for kind, choice in events:
        at_s += 2000.0
        running = world.running()
        if kind in ("plan", "crash") or not running or world.workload is None:
            # A crash leaves the first half of a plan done; the next plan starts from what is there.
            decision = plan_job(world.workload or a_job(), world.listed(), START + timedelta(seconds=at_s))
            for action in decision.actions[: len(decision.actions) // (2 if kind == "crash" else 1)]:
                world.obey(action)
            continue
        uid = running[choice % len(running)]
        if kind == "delete":
            world.delete_pod(uid)
        else:
            world.end_pod(uid, kind)
        ends["succeeded" if kind == "Succeeded" else "failed"] += 1
        if choice == 0:
            settle(world, at_s)
    settle(world, at_s + 2000.0)

    assert world.workload is not None
    status = world.workload["status"]
    surplus = status.get("failed", 0) - ends["failed"]
    assert status.get("succeeded", 0) == ends["succeeded"]
    # What still ran when the last completion came was ended by the controller, and counts as failed.
    assert surplus == 0 or (is_finished(world.workload) and 0 < surplus <= 3)
    assert is_finished(world.workload) == (ends["succeeded"] >= 6)


def test_a_failed_pod_is_replaced_only_after_a_backoff() -> None:
    world = World(a_job(completions=1))
    settle(world)
    world.end_pod("pod-1", "Failed")

    wait_s = settle(world)

    assert wait_s == FIRST_BACKOFF_S
    assert world.running() == []
    settle(world, FIRST_BACKOFF_S)
    assert world.running() == ["pod-2"]


def test_an_ended_job_lives_until_its_time_is_over() -> None:
    world = World(a_job(completions=1, ttlSecondsAfterFinished=60))
    settle(world)
    world.end_pod("pod-1", "Succeeded")

    assert settle(world) == 60.0
    assert world.workload is not None
    settle(world, 60.0)
    assert world.workload is None


@given(st.frozensets(st.integers(0, 50)))
def test_indexes_are_written_and_read_alike(indexes: frozenset[int]) -> None:
    assert parse_indexes(format_indexes(indexes)) == indexes
