"""kube-scheduler's filters of one node."""

import pytest

from gpuloom.codec.scheduling import effective_requests, schedulable_node, schedulable_pod
from gpuloom.placement.constraints.filters import (
    AFFINITY_MISMATCH,
    TOO_MANY_PODS,
    UNSCHEDULABLE,
    UNTOLERATED_TAINT,
    refusals,
)
from gpuloom.placement.constraints.objects import NodeUse
from tests.unit.sim.builders import a_node, a_pod

EMPTY = NodeUse({}, 0)
Json = dict[str, object]


def refused(pod: Json, node: Json, use: NodeUse = EMPTY) -> tuple[str, ...]:
    return refusals(schedulable_pod(pod), schedulable_node(node), use)


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
