"""The simulated scheduler's cache, its view of the cluster, and its verdicts."""

import random

from gpuloom.codec.scheduling import schedulable_node, schedulable_pod
from gpuloom.kube.cache import Change
from gpuloom.placement.constraints.objects import NodeUse
from gpuloom.sim.scheduler.cache import ClusterCache
from gpuloom.sim.scheduler.loop import SchedulerState
from gpuloom.sim.scheduler.verdict import (
    choose,
    least_allocated,
    pod_scheduled_condition,
    total_scores,
    unschedulable_message,
)
from gpuloom.sim.scheduler.watching import ClusterFollower, asks_differ, node_differs
from tests.unit.sim.builders import a_node, a_pod
from tests.unit.sim.scheduler.test_queue import popped, queued

EMPTY = NodeUse({}, 0)
Json = dict[str, object]


def test_an_assumed_pod_counts_until_its_bind_failed() -> None:
    cache = ClusterCache()
    cache.set_node(schedulable_node(a_node()))
    pod = schedulable_pod(a_pod(resources={"nvidia.com/gpu": "2"}))

    cache.assume(pod, "n1")
    during = cache.use_of("n1")
    forgotten = cache.forget_assumed(pod.uid)

    assert (during.requested, during.pods) == ({"nvidia.com/gpu": 2}, 1)
    assert forgotten
    assert cache.use_of("n1") == EMPTY


def test_a_bind_that_took_effect_late_keeps_its_place() -> None:
    cache = ClusterCache()
    pod = schedulable_pod(a_pod(resources={"nvidia.com/gpu": "2"}))
    cache.assume(pod, "n1")

    cache.observe(pod, "n2")
    forgotten = cache.forget_assumed(pod.uid)

    assert not forgotten
    assert cache.use_of("n1") == EMPTY
    assert cache.use_of("n2").requested == {"nvidia.com/gpu": 2}


def follower() -> tuple[SchedulerState, ClusterFollower]:
    state = SchedulerState()
    return state, ClusterFollower(state, "default-scheduler", lambda: 50.0)


async def test_the_watch_moves_a_pod_from_the_queue_to_its_node_and_out() -> None:
    state, watch = follower()
    pending, bound = a_pod("p", {"cpu": "1"}), a_pod("p", {"cpu": "1"}, node="n1")
    ended = a_pod("p", {"cpu": "1"}, node="n1", phase="Succeeded")

    watch.on_pod(Change(None, pending))
    waiting = "uid-p" in state.queue
    watch.on_pod(Change(pending, bound))
    on_node = state.cache.use_of("n1").pods
    watch.on_pod(Change(bound, ended))

    assert waiting
    assert "uid-p" not in state.queue
    assert on_node == 1
    assert state.cache.use_of("n1").pods == 0


async def test_freed_room_wakes_pods_that_found_none() -> None:
    state, watch = follower()
    queued(state.queue, "p")
    state.queue.pop(0)
    state.queue.unschedulable("uid-p", 0)

    watch.on_pod(Change(a_pod("other", node="n1", phase="Running"), None))

    assert popped(state.queue, 50) == "p"


async def test_an_annotation_of_a_node_wakes_but_a_heartbeat_does_not() -> None:
    state, watch = follower()
    watch.on_node(Change(None, a_node()))
    queued(state.queue, "p")
    state.queue.pop(0)
    state.queue.unschedulable("uid-p", 0)

    watch.on_node(Change(a_node(), a_node()))
    after_heartbeat = popped(state.queue, 50)
    watch.on_node(Change(a_node(), a_node(annotations={"gpuloom.dev/capacity-epoch": "7"})))

    assert after_heartbeat is None
    assert popped(state.queue, 50) == "p"


async def test_pods_of_other_schedulers_gated_and_deleted_ones_are_left_alone() -> None:
    state, watch = follower()
    deleted = a_pod("c")
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    watch.on_pod(Change(None, a_pod("a", schedulerName="other")))
    watch.on_pod(Change(None, a_pod("b", schedulingGates=[{"name": "wait"}])))
    watch.on_pod(Change(None, deleted))
    watch.on_pod(Change(None, a_pod("d", {"cpu": "much"})))

    assert len(state.queue) == 0


def test_differences_that_matter() -> None:
    assert asks_differ(a_pod(), a_pod(annotations={"a": "b"}))
    assert not asks_differ(a_pod(), a_pod(phase="Running"))
    assert node_differs(a_node(), a_node(allocatable={"nvidia.com/gpu": "7"}))
    assert node_differs(a_node(), a_node(taints=[{"key": "x"}]))


def test_equal_reasons_are_counted() -> None:
    text = unschedulable_message(12, ["Insufficient cpu"] * 5 + ["no card is free"] * 7)

    assert text == "0/12 nodes are available: 5 Insufficient cpu, 7 no card is free."


def test_a_cluster_without_nodes_says_so() -> None:
    assert unschedulable_message(0, []) == "no nodes available to schedule pods"


def test_the_extender_outweighs_the_built_in_score_and_ties_break_by_seed() -> None:
    scores = total_scores({"a": 100, "b": 0, "c": 0}, {"b": 10, "c": 10}, weight=100)

    assert scores == {"a": 100, "b": 10000, "c": 10000}
    assert {choose(scores, random.Random(seed)) for seed in range(20)} == {"b", "c"}
    assert choose(scores, random.Random(3)) == choose(scores, random.Random(3))


def test_the_emptier_node_scores_higher() -> None:
    pod, node = schedulable_pod(a_pod(resources={"cpu": "2"})), schedulable_node(a_node())

    assert least_allocated(pod, node, EMPTY) > least_allocated(pod, node, NodeUse({"cpu": 4000}, 1))


def test_a_condition_is_written_only_when_it_says_something_new() -> None:
    first = pod_scheduled_condition("Unschedulable", "no room", "t1", [{"type": "Ready", "status": "False"}])

    assert first is not None
    assert [condition["type"] for condition in first] == ["Ready", "PodScheduled"]
    assert pod_scheduled_condition("Unschedulable", "no room", "t2", first) is None
    assert pod_scheduled_condition("Unschedulable", "other", "t2", first) is not None
