"""What anybody who may create a pod, or a kubelet that errs, can write into objects: it stops no bill."""

import pytest

from gpuloom.kube.objects import JsonObject
from services.cost_engine.core.objects import MAX_LABELS, SliceRule, node_traits, pod_identity
from services.cost_engine.core.tracking import Tracker
from tests.unit.cost_engine.core.test_complaints import a_kube_node, a_kube_pod


def owned_by(kind: str, name: str) -> str:
    owner = {"apiVersion": "v1", "kind": kind, "name": name, "uid": "u", "controller": True}
    pod: JsonObject = {"metadata": {"name": "p", "uid": "p", "ownerReferences": [owner]}}
    return pod_identity(pod).workload


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Job\0", "train"),
        ("Job", "train\0"),
        ("=cmd|' /C calc'!A0", "train"),
        ("Job", "\x1b]0;train\x07"),
        ("J" * 60_000, "train"),
        ("Job", "t" * 60_000),
        ("", "train"),
    ],
)
def test_an_owner_that_is_none_names_no_workload(kind: str, name: str) -> None:
    assert owned_by(kind, name) == ""


def test_an_owner_names_the_workload() -> None:
    assert owned_by("TrainJob2", "train-1.a:b") == "TrainJob2/train-1.a:b"


def test_of_too_many_labels_those_that_costs_are_told_by_stay() -> None:
    own = {f"b{number}": "own" for number in range(70)} | {"gpu-project": "x", "team": "t"}
    of_namespace = {f"a{number}": "its" for number in range(70)} | {"gpu-cost-center": "7"}

    kept = pod_identity({"metadata": {"labels": own}}, of_namespace).labels
    few = pod_identity({"metadata": {"labels": {"team": "t"}}}, of_namespace).labels

    assert (kept["gpu-project"], kept["gpu-cost-center"], len(kept)) == ("x", "7", MAX_LABELS)
    assert not any(key.startswith("a") for key in kept)
    assert (few["team"], few["gpu-cost-center"]) == ("t", "7")


@pytest.mark.parametrize("amount", ["9E", "99999999999999999999999", "5k"])
def test_more_gpus_than_a_node_can_have_are_not_believed(amount: str) -> None:
    node = a_kube_node(**{"nvidia.com_gpu": amount})
    labelled = a_kube_node(**{"nvidia.com_gpu": "1"})
    labelled["metadata"]["labels"]["nvidia.com/gpu.count"] = amount

    traits, by_label = node_traits(node), node_traits(labelled)

    assert traits is not None
    assert (traits.gpu_count, traits.advertised) == (1, 0)
    assert by_label is not None
    assert by_label.gpu_count == 1


def test_a_pod_that_was_restored_has_its_name_again() -> None:
    node, pod = a_kube_node(**{"nvidia.com_gpu": "1"}), a_kube_pod("uid-p", "nvidia.com/gpu", 1)
    before = Tracker(0, (), SliceRule.COMPUTE)
    before.observe_node(node, 10**18 * 2)
    before.observe_pod(pod, 10**18 * 2)
    tracker = Tracker(0, (), SliceRule.COMPUTE)
    tracker.restore(
        [(each, 0) for each in before.nodes.values()], [(each, 0) for each in before.pods.values()]
    )

    tracker.observe_node(node, 10**18 * 2)
    tracker.observe_pod(pod, 10**18 * 2)

    assert tracker.names == before.names != {}
