"""What the controller knows of a node: whether it is ready, its GPUs, and what of them pods ask for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuloom.kube.objects import JsonObject
from gpuloom.kube.parse import quantity_value
from gpuloom.names import LABEL_MODE, RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU
from gpuloom.placement.strategies import LABEL_CHEAP

LABEL_GPU_COUNT = "nvidia.com/gpu.count"


@dataclass(frozen=True, slots=True)
class GpuNode:
    name: str
    ready: bool
    gpus: int
    free_gpus: int
    cheap: bool
    gives_shares: bool
    """Its GPUs are given out by GPULoom itself, as thousandths."""
    hostname: str
    """The value of kubernetes.io/hostname, by which a node affinity names it."""


def gpu_node(node: JsonObject, asked_gpus: int) -> GpuNode:
    metadata, status = node.get("metadata") or {}, node.get("status") or {}
    labels: Mapping[str, str] = metadata.get("labels") or {}
    gpus = gpu_count(node)
    name = str(metadata.get("name", ""))
    return GpuNode(
        name=name,
        ready=_is_ready(status) and not (node.get("spec") or {}).get("unschedulable"),
        gpus=gpus,
        free_gpus=max(0, gpus - asked_gpus),
        cheap=labels.get(LABEL_CHEAP) == "true",
        gives_shares=labels.get(LABEL_MODE) == "gpuloom",
        hostname=labels.get("kubernetes.io/hostname", name),
    )


def gpu_count(node: JsonObject) -> int:
    """Allocatable, then capacity, then the label of GPU Feature Discovery, else 0.

    A node whose GPUs GPULoom gives out says 0 of NVIDIA's resource and 1000 of ours for each.
    """
    status = node.get("status") or {}
    labels = (node.get("metadata") or {}).get("labels") or {}
    for amounts in (status.get("allocatable") or {}, status.get("capacity") or {}):
        found = _whole(amounts.get(RESOURCE_NVIDIA_GPU)) or _whole(amounts.get(RESOURCE_GPU_MILLI)) // 1000
        if found:
            return found
    return _whole(labels.get(LABEL_GPU_COUNT))


def asked_gpus(pods: Iterable[JsonObject]) -> int:
    """Whole GPUs that these pods ask for, a share counted as one."""
    total = 0
    for pod in pods:
        for container in (pod.get("spec") or {}).get("containers") or ():
            limits = (container.get("resources") or {}).get("limits") or {}
            total += _whole(limits.get(RESOURCE_NVIDIA_GPU)) - (
                -_whole(limits.get(RESOURCE_GPU_MILLI)) // 1000
            )
    return total


def _is_ready(status: JsonObject) -> bool:
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )


def _whole(amount: object) -> int:
    """Kubernetes prints 8000 as 8k."""
    try:
        return max(0, quantity_value(str(amount)))
    except ValueError:
        return 0
