import random

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.kube.cache import Change
from gpuloom.model.node import PodRef
from gpuloom.sim.scheduler.cache import ClusterCache
from gpuloom.sim.scheduler.filters import (
    AFFINITY_MISMATCH,
    TOO_MANY_PODS,
    UNSCHEDULABLE,
    UNTOLERATED_TAINT,
    NodeUse,
    refusals,
)
from gpuloom.sim.scheduler.loop import SchedulerState
from gpuloom.sim.scheduler.objects import effective_requests, parse_node, parse_pod
from gpuloom.sim.scheduler.queue import SchedulingQueue, backoff_s
from gpuloom.sim.scheduler.verdict import (
    choose,
    least_allocated,
    pod_scheduled_condition,
    total_scores,
    unschedulable_message,
)
from gpuloom.sim.scheduler.watching import ClusterFollower, asks_differ, node_differs
from gpuloom.sim.scheduler.wire import (
    ExtenderError,
    bind_answer,
    bind_request,
    filter_answer,
    filter_request,
    prioritize_answer,
)
from tests.unit.sim.builders import a_node, a_pod

EMPTY = NodeUse({}, 0)
Json = dict[str, object]


def refused(pod: Json, node: Json, use: NodeUse = EMPTY) -> tuple[str, ...]:
    return refusals(parse_pod(pod), parse_node(node), use)


def affinity(*expressions: Json) -> Json:
    term = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}


def test_a_fitting_node_is_taken() -> None:
    assert refused(a_pod(resources={"cpu": "8", "memory": "64Gi"}), a_node()) == ()


def test_every_missing_resource_is_named() -> None:
    pod = a_pod(resources={"cpu": "9", "memory": "1Gi", "nvidia.com/gpu": "1"})

    assert refused(pod, a_node()) == ("Insufficient cpu", "Insufficient nvidia.com/gpu")


def test_what_runs_on_the_node_counts() -> None:
    pod = a_pod(resources={"nvidia.com/gpu": "2"})

    reasons = refused(pod, a_node(allocatable={"nvidia.com/gpu": "8"}), NodeUse({"nvidia.com/gpu": 7}, 110))

    assert reasons == (TOO_MANY_PODS, "Insufficient nvidia.com/gpu")


def test_a_cordoned_node_is_left_out_unless_tolerated() -> None:
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}

    assert refused(a_pod(), a_node(unschedulable=True)) == (UNSCHEDULABLE,)
    assert refused(a_pod(tolerations=[toleration]), a_node(unschedulable=True)) == ()


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "gpu", "value": "h100", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "other"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"value": "h100"}, False),
    ],
)
def test_taints_are_tolerated_by_key_value_and_effect(toleration: Json, *, tolerated: bool) -> None:
    node = a_node(taints=[{"key": "gpu", "value": "h100", "effect": "NoSchedule"}])

    reasons = refused(a_pod(tolerations=[toleration]), node)

    assert reasons == (() if tolerated else (UNTOLERATED_TAINT,))


def test_a_preferred_taint_refuses_nobody() -> None:
    assert refused(a_pod(), a_node(taints=[{"key": "x", "effect": "PreferNoSchedule"}])) == ()


def test_a_node_selector_must_match() -> None:
    pod = a_pod(nodeSelector={"zone": "a"})

    assert refused(pod, a_node(labels={"zone": "a"})) == ()
    assert refused(pod, a_node(labels={"zone": "b"})) == (AFFINITY_MISMATCH,)


@pytest.mark.parametrize(
    ("operator", "values", "matches"),
    [
        ("In", ["3", "4"], True),
        ("In", ["4"], False),
        ("NotIn", ["4"], True),
        ("NotIn", ["3"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["2"], True),
        ("Gt", ["3"], False),
        ("Lt", ["4"], True),
        ("Lt", ["text"], False),
        ("Like", ["3"], False),
    ],
)
def test_required_affinity_operators(operator: str, values: list[str], *, matches: bool) -> None:
    pod = a_pod(affinity=affinity({"key": "generation", "operator": operator, "values": values}))

    reasons = refused(pod, a_node(labels={"generation": "3"}))

    assert reasons == (() if matches else (AFFINITY_MISMATCH,))


def test_affinity_with_only_empty_terms_matches_nothing() -> None:
    assert refused(a_pod(affinity=affinity()), a_node()) == (AFFINITY_MISMATCH,)


def test_init_containers_and_sidecars_count_as_in_kubernetes() -> None:
    def container(amount: str, **more: str) -> Json:
        return {"resources": {"requests": {"cpu": amount}}, **more}

    spec = {
        "initContainers": [container("1", restartPolicy="Always"), container("5"), container("2")],
        "containers": [container("2"), container("1500m")],
        "overhead": {"cpu": "100m"},
    }

    assert effective_requests(spec) == {"cpu": 6100}


def queued(queue: SchedulingQueue, *names: str, at_s: float = 0.0, priority: int = 0) -> None:
    for name in names:
        queue.put(parse_pod(a_pod(name, priority=priority)), at_s)


def popped(queue: SchedulingQueue, now_s: float) -> str | None:
    entry = queue.pop(now_s)
    return None if entry is None else entry.pod.name


def test_pods_come_by_priority_then_by_age() -> None:
    queue = SchedulingQueue()
    queued(queue, "old", at_s=0)
    queued(queue, "young", at_s=1)
    queued(queue, "urgent", at_s=2, priority=1000)

    order = [popped(queue, 3) for _ in range(4)]

    assert order == ["urgent", "old", "young", None]


def test_backoff_doubles_to_ten_seconds() -> None:
    assert [backoff_s(attempt) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]


def test_a_failed_try_comes_back_after_its_backoff() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)

    queue.failed("uid-p", 0)

    assert queue.next_due_s() == 1
    assert popped(queue, 0.9) is None
    assert popped(queue, 1.0) == "p"


def test_an_unschedulable_pod_sleeps_until_the_cluster_changes() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)
    queue.unschedulable("uid-p", 0)

    asleep = popped(queue, 100)
    queue.wake_all(100)

    assert asleep is None
    assert popped(queue, 100) == "p"


def test_a_wake_within_the_backoff_waits_for_its_end() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)
    queue.unschedulable("uid-p", 0)

    queue.wake_all(0.5)

    assert popped(queue, 0.5) is None
    assert popped(queue, 1.0) == "p"


def test_a_change_during_a_try_makes_its_verdict_old() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)

    queue.wake_all(0.1)
    queue.unschedulable("uid-p", 0.2)

    assert popped(queue, 1.2) == "p"


def test_an_unschedulable_pod_is_tried_again_after_five_minutes() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)
    queue.unschedulable("uid-p", 0)

    assert queue.next_due_s() == 300
    assert popped(queue, 299) is None
    assert popped(queue, 300) == "p"


def test_a_change_of_the_pod_itself_wakes_it_but_its_status_does_not() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)
    queue.unschedulable("uid-p", 0)

    queue.put(parse_pod(a_pod("p")), 5, changed=False)
    after_status = popped(queue, 5)
    queue.put(parse_pod(a_pod("p", annotations={"gpuloom.dev/epoch": "2"})), 6, changed=True)

    assert after_status is None
    assert popped(queue, 6) == "p"


def test_a_pod_seen_bound_during_its_try_is_not_tried_again() -> None:
    queue = SchedulingQueue()
    queued(queue, "p")
    queue.pop(0)

    queue.remove("uid-p")
    queue.failed("uid-p", 0)

    assert len(queue) == 0
    assert popped(queue, 100) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "pop", "fail", "sleep", "wake", "remove"]), st.integers(0, 4)),
        max_size=60,
    )
)
def test_a_pod_is_in_the_queue_once_whatever_happens(steps: list[tuple[str, int]]) -> None:
    queue = SchedulingQueue()
    expected: set[str] = set()
    for now_s, (step, number) in enumerate(steps):
        uid = f"uid-p{number}"
        match step:
            case "put":
                queue.put(parse_pod(a_pod(f"p{number}")), now_s)
                expected.add(uid)
            case "pop":
                queue.pop(now_s)
            case "fail":
                queue.failed(uid, now_s)
            case "sleep":
                queue.unschedulable(uid, now_s)
            case "wake":
                queue.wake_all(now_s)
            case "remove":
                queue.remove(uid)
                expected.discard(uid)

    assert len(queue) == len(expected)
    assert all(uid in queue for uid in expected)


def test_an_assumed_pod_counts_until_its_bind_failed() -> None:
    cache = ClusterCache()
    cache.set_node(parse_node(a_node()))
    pod = parse_pod(a_pod(resources={"nvidia.com/gpu": "2"}))

    cache.assume(pod, "n1")
    during = cache.use_of("n1")
    forgotten = cache.forget_assumed(pod.uid)

    assert (during.requested, during.pods) == ({"nvidia.com/gpu": 2}, 1)
    assert forgotten
    assert cache.use_of("n1") == EMPTY


def test_a_bind_that_took_effect_late_keeps_its_place() -> None:
    cache = ClusterCache()
    pod = parse_pod(a_pod(resources={"nvidia.com/gpu": "2"}))
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
    pod, node = parse_pod(a_pod(resources={"cpu": "2"})), parse_node(a_node())

    assert least_allocated(pod, node, EMPTY) > least_allocated(pod, node, NodeUse({"cpu": 4000}, 1))


def test_a_condition_is_written_only_when_it_says_something_new() -> None:
    first = pod_scheduled_condition("Unschedulable", "no room", "t1", [{"type": "Ready", "status": "False"}])

    assert first is not None
    assert [condition["type"] for condition in first] == ["Ready", "PodScheduled"]
    assert pod_scheduled_condition("Unschedulable", "no room", "t2", first) is None
    assert pod_scheduled_condition("Unschedulable", "other", "t2", first) is not None


def test_requests_are_written_as_kube_scheduler_writes_them() -> None:
    pod = a_pod("p")

    assert orjson.loads(filter_request(pod, ["a", "b"])) == {
        "Pod": pod,
        "Nodes": None,
        "NodeNames": ["a", "b"],
    }
    assert orjson.loads(bind_request(PodRef("ns", "p", "u"), "n")) == {
        "PodName": "p",
        "PodNamespace": "ns",
        "PodUID": "u",
        "Node": "n",
    }


def test_answers_are_read_without_regard_to_case() -> None:
    answer = filter_answer(
        b'{"nodeNames":["a"],"FAILEDNODES":{"b":"full"},"failedAndUnresolvableNodes":{"c":"closed"},"error":""}',
        ["a", "b", "c"],
    )

    assert answer.nodes == ("a",)
    assert answer.refused == {"b": "full", "c": "closed"}


@pytest.mark.parametrize("body", [b"{}", b"null", b'{"node_names":["a"]}'])
def test_an_empty_or_misspelt_answer_means_no_nodes(body: bytes) -> None:
    assert filter_answer(body, ["a"]).nodes == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"NodeNames":["z"]}',
        b'{"Error":"not synced"}',
        b'{"NodeNames":[1]}',
        b'{"FailedNodes":[]}',
    ],
)
def test_a_filter_answer_that_makes_no_sense_is_an_error(body: bytes) -> None:
    with pytest.raises(ExtenderError):
        filter_answer(body, ["a"])


def test_one_float_loses_all_priorities() -> None:
    good = prioritize_answer(b'[{"Host":"a","Score":10},{"host":"b"}]')

    assert good == {"a": 10, "b": 0}
    with pytest.raises(ExtenderError):
        prioritize_answer(b'[{"Host":"a","Score":10},{"Host":"b","Score":1.5}]')


def test_a_bind_answer_with_error_is_an_error() -> None:
    bind_answer(b'{"Error":""}')
    with pytest.raises(ExtenderError, match="bound elsewhere"):
        bind_answer(b'{"Error":"bound elsewhere"}')
