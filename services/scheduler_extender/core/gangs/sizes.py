"""How many pods with GPUs an owner's spec makes, for the kinds that say so. Pure.

Pods that ask for no GPU (an MPI launcher, a Ray head) are not counted: placement never sees them.
Fields read: Job `spec.{parallelism,completions}`; JobSet `spec.replicatedJobs[].{replicas,template.spec}`;
PyTorchJob `spec.pytorchReplicaSpecs.*.replicas`; MPIJob `spec.mpiReplicaSpecs.*.replicas`; RayCluster
`spec.{headGroupSpec,workerGroupSpecs[].{replicas,numOfHosts}}`; RayJob the same under
`spec.rayClusterSpec`; LeaderWorkerSet `spec.leaderWorkerTemplate.size`.
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
    except (TypeError, ValueError, AttributeError):
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
    parallel = int(spec.get("parallelism", 1))
    completions = spec.get("completions")
    return parallel if completions is None else min(parallel, int(completions))


def _job_set(spec: JsonObject) -> int:
    return sum(
        int(job.get("replicas", 1)) * int(job["template"]["spec"].get("parallelism", 1))
        for job in spec.get("replicatedJobs") or ()
        if asks_for_gpus(job["template"]["spec"].get("template"))
    )


def _replicas(key: str) -> Callable[[JsonObject], int]:
    def read(spec: JsonObject) -> int:
        roles = spec.get(key) or {}
        return sum(
            int(role.get("replicas", 1)) for role in roles.values() if asks_for_gpus(role.get("template"))
        )

    return read


def _ray_cluster(spec: JsonObject) -> int:
    return sum(_ray_groups(spec))


def _ray_groups(spec: JsonObject) -> Iterator[int]:
    if asks_for_gpus((spec.get("headGroupSpec") or {}).get("template")):
        yield 1
    for group in spec.get("workerGroupSpecs") or ():
        if asks_for_gpus(group.get("template")):
            yield int(group.get("replicas", 1)) * int(group.get("numOfHosts", 1))


def _leader_worker_set(spec: JsonObject) -> int:
    """Of one group. A leader without GPUs is not placed by us."""
    made = spec.get("leaderWorkerTemplate") or {}
    size, worker = int(made.get("size", 1)), asks_for_gpus(made.get("workerTemplate"))
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
