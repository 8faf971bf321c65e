"""GPUs of a node as Kubernetes prints them: 8000 thousandths are 8k."""

from typing import Any

import pytest

from services.controller.core.nodes import asked_gpus, gpu_count, gpu_node
from services.controller.core.waste import gpu_pod

LABEL = {"nvidia.com/gpu.count": "2"}


def a_node(labels: dict[str, str] | None = None, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n1", "labels": labels or {}}, "status": status}


def a_pod(**limits: str) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"limits": limits}}]}}


@pytest.mark.parametrize(
    ("node", "gpus"),
    [
        (a_node(LABEL, allocatable={"nvidia.com/gpu": "8"}, capacity={"nvidia.com/gpu": "9"}), 8),
        (a_node(LABEL, allocatable={"nvidia.com/gpu": "0"}, capacity={"nvidia.com/gpu": "9"}), 9),
        (a_node(LABEL), 2),
        (a_node(), 0),
        (a_node(allocatable={"nvidia.com/gpu": "0", "gpuloom.dev/gpu-milli": "8k"}), 8),
        (a_node(allocatable={"nvidia.com/gpu": "0", "gpuloom.dev/gpu-milli": "8000"}), 8),
        (a_node({"nvidia.com/gpu.count": "many"}), 0),
    ],
)
def test_gpus_are_counted_by_allocatable_then_capacity_then_label(node: dict[str, Any], gpus: int) -> None:
    assert gpu_count(node) == gpus


def test_a_node_whose_gpus_gpuloom_gives_out_is_seen_as_one() -> None:
    node = a_node({"gpuloom.dev/mode": "gpuloom"}, allocatable={"gpuloom.dev/gpu-milli": "8k"})
    pods = [a_pod(**{"gpuloom.dev/gpu-milli": asked}) for asked in ("2k", "1500", "500")]

    seen = gpu_node(node, asked_gpus(pods))

    assert (seen.gives_shares, seen.gpus, seen.free_gpus) == (True, 8, 3)


@pytest.mark.parametrize(
    ("allocatable", "memory_mib"),
    [
        ({"gpuloom.dev/gpu-milli": "8k", "gpuloom.dev/gpu-memory-mib": "327680"}, 40960),
        ({"nvidia.com/gpu": "8"}, 0),
        ({"gpuloom.dev/gpu-memory-mib": "327680"}, 0),
    ],
)
def test_the_memory_of_a_gpu_is_its_part_of_what_the_node_has(
    allocatable: dict[str, str], memory_mib: int
) -> None:
    assert gpu_node(a_node(allocatable=allocatable), 0).memory_mib == memory_mib


def test_a_pod_follows_a_recommendation_however_kubernetes_prints_it() -> None:
    pod = gpu_pod(a_pod(**{"gpuloom.dev/gpu-milli": "500", "gpuloom.dev/gpu-memory-mib": "20k"}))

    assert pod is not None
    assert pod.asks == {"gpuloom.dev/gpu-milli": "500", "gpuloom.dev/gpu-memory-mib": "20000"}
