"""What the controller knows of a node: whether it is ready, its GPUs, and what of them pods ask for."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.kube.parse import quantity_value
from gpuloom.names import LABEL_MODE, RESOURCE_GPU_MEMORY_MIB, RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU
from gpuloom.placement.strategies import LABEL_CHEAP

LABEL_GPU_COUNT = "nvidia.com/gpu.count"
LABEL_HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_ENDS = frozenset({"Complete", "Failed"})


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
    memory_mib: int
    """Of each GPU, where GPULoom gives them out; 0: not known."""


def gpu_node(node: JsonObject, asked_gpus: int, promised: Mapping[str, int] | None = None) -> GpuNode:
    """`promised`: by host name, GPUs for pods that are not on their node yet."""
    metadata, status = node.get("metadata") or {}, node.get("status") or {}
    labels: Mapping[str, str] = metadata.get("labels") or {}
    gpus = gpu_count(node)
    name = str(metadata.get("name", ""))
    hostname = labels.get(LABEL_HOSTNAME, name)
    taken = asked_gpus + (promised or {}).get(hostname, 0)
    return GpuNode(
        name=name,
        ready=_is_ready(status) and not (node.get("spec") or {}).get("unschedulable"),
        gpus=gpus,
        free_gpus=max(0, gpus - taken),
        cheap=labels.get(LABEL_CHEAP) == "true",
        gives_shares=labels.get(LABEL_MODE) == "gpuloom",
        hostname=hostname,
        memory_mib=_whole((status.get("allocatable") or {}).get(RESOURCE_GPU_MEMORY_MIB)) // gpus
        if gpus
        else 0,
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


def promised_gpus(jobs: Iterable[JsonObject], placed: Mapping[str, int]) -> Counter[str]:
    """By host name what pods ask for that may go to that node alone, and are not there yet.

    `placed`: by the UID of a Job how many of its pods have a node.
    """
    found: Counter[str] = Counter()
    for job in jobs:
        spec, conditions = job.get("spec") or {}, (job.get("status") or {}).get("conditions") or ()
        ended = any(one.get("type") in _ENDS and one.get("status") == "True" for one in conditions)
        host = None if ended else pinned_host(job)
        if host is not None:
            pods = int(spec.get("parallelism") or 1) - placed.get(uid_of(job), 0)
            found[host] += max(0, pods) * asked_gpus([spec.get("template") or {}])
    return found


def pinned_host(job: JsonObject) -> str | None:
    """The node that its strategy chose, which is required last of all; None if placement decides."""
    pod = ((job.get("spec") or {}).get("template") or {}).get("spec") or {}
    required = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}
    for term in (required.get("nodeSelectorTerms") or ())[:1]:
        for wanted in (term.get("matchExpressions") or ())[-1:]:
            if wanted.get("key") == LABEL_HOSTNAME and wanted.get("operator") == "In":
                return next(iter(wanted.get("values") or ()), None)
    return None


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
