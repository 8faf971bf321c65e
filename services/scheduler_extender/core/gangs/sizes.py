"""How many pods with GPUs an owner's spec makes, for the kinds that say so. Pure.

Pods that ask for no GPU (an MPI launcher, a Ray head) are not counted: placement never sees them.
Fields read: Job `spec.{parallelism,completions}`; JobSet `spec.replicatedJobs[].{replicas,template.spec}`;
PyTorchJob `spec.pytorchReplicaSpecs.*.replicas`; MPIJob `spec.mpiReplicaSpecs.*.replicas`; RayCluster
`spec.{headGroupSpec,workerGroupSpecs[].{replicas,minReplicas,maxReplicas,numOfHosts,suspend}}`; RayJob the
same under `spec.rayClusterSpec`; LeaderWorkerSet `spec.leaderWorkerTemplate.size`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from gpuloom.kube.objects import JsonObject
from gpuloom.names import RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU, RESOURCE_NVIDIA_MIG_PREFIX


def size_by_owner(kind: str, obj: JsonObject) -> int | None:
    """None if this kind, or this object, does not say."""
    read = _READERS.get(kind)
    spec = obj.get("spec")
    if read is None or not isinstance(spec, dict):
        return None
    try:
        size = read(spec)
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError):
        return None
    return size if size > 0 else None


def asks_for_gpus(template: Any) -> bool:
    """Whether pods of this template ask for something that GPULoom places."""
    spec = (template or {}).get("spec") or {}
    return any(
        name in (RESOURCE_NVIDIA_GPU, RESOURCE_GPU_MILLI) or name.startswith(RESOURCE_NVIDIA_MIG_PREFIX)
        for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
        for amounts in (container.get("resources") or {}).values()
        if isinstance(amounts, dict)
        for name in amounts
    )


def _job(spec: JsonObject) -> int:
    """Only an indexed Job's pods know which of them they are; others are independent of each other."""
    if spec.get("completionMode") != "Indexed":
        return 0
    return _at_once(spec)


def _at_once(spec: JsonObject) -> int:
    """How many pods a Job has at a time."""
    parallel = _whole(spec.get("parallelism"), 1)
    return min(parallel, _whole(spec.get("completions"), parallel))


def _whole(value: Any, absent: int) -> int:
    return absent if value is None else int(value)


def _job_set(spec: JsonObject) -> int:
    return sum(
        _whole(job.get("replicas"), 1) * _at_once(job["template"]["spec"])
        for job in spec.get("replicatedJobs") or ()
        if asks_for_gpus(job["template"]["spec"].get("template"))
    )


def _replicas(key: str) -> Callable[[JsonObject], int]:
    def read(spec: JsonObject) -> int:
        roles = spec.get(key) or {}
        return sum(
            _whole(role.get("replicas"), 1) for role in roles.values() if asks_for_gpus(role.get("template"))
        )

    return read


def _ray_cluster(spec: JsonObject) -> int:
    return sum(_ray_groups(spec))


def _ray_groups(spec: JsonObject) -> Iterator[int]:
    if asks_for_gpus((spec.get("headGroupSpec") or {}).get("template")):
        yield 1
    for group in spec.get("workerGroupSpecs") or ():
        if asks_for_gpus(group.get("template")) and group.get("suspend") is not True:
            # KubeRay keeps the replicas between these two.
            least, most = _whole(group.get("minReplicas"), 0), _whole(group.get("maxReplicas"), 2**31 - 1)
            replicas = max(least, min(most, _whole(group.get("replicas"), 1)))
            yield replicas * _whole(group.get("numOfHosts"), 1)


def _leader_worker_set(spec: JsonObject) -> int:
    """Of one group. A leader without GPUs is not placed by us."""
    made = spec.get("leaderWorkerTemplate") or {}
    size, worker = _whole(made.get("size"), 1), asks_for_gpus(made.get("workerTemplate"))
    leader = asks_for_gpus(made["leaderTemplate"]) if made.get("leaderTemplate") else worker
    return int(leader) + (size - 1) * int(worker)


_READERS: dict[str, Callable[[JsonObject], int]] = {
    "Job": _job,
    "JobSet": _job_set,
    "PyTorchJob": _replicas("pytorchReplicaSpecs"),
    "MPIJob": _replicas("mpiReplicaSpecs"),
    "RayCluster": _ray_cluster,
    "RayJob": lambda spec: _ray_cluster(spec.get("rayClusterSpec") or {}),
    "LeaderWorkerSet": _leader_worker_set,
}
