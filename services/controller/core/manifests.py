"""The Job of one attempt: its name, its pod template, and what it asks for."""

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import orjson

from gpuloom.catalog import load_catalog, slice_milli
from gpuloom.catalog.entries import mig_resource
from gpuloom.errors import InvalidRequestError
from gpuloom.model.request import TopologyPreference
from gpuloom.model.workload import GpuWorkload, GpuWorkloadSpec, WorkloadSharing
from gpuloom.names import (
    ANNOTATION_GANG_SIZE,
    ANNOTATION_GANG_TOPOLOGY,
    ANNOTATION_GPU_ARCHITECTURE,
    ANNOTATION_GPU_MODEL,
    ANNOTATION_MIG_PROFILE,
    ANNOTATION_STRATEGY,
    ANNOTATION_TOPOLOGY,
    LABEL_GANG,
    LABEL_SHARING,
    LABEL_SHARING_MODE,
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
    RESOURCE_NVIDIA_MIG_PREFIX,
)
from services.controller.core.nodes import LABEL_HOSTNAME, REQUIRED

LABEL_WORKLOAD = "gpu.warp.dev/workload"
LABEL_ATTEMPT = "gpu.warp.dev/attempt"
API_VERSION, KIND = "gpu.warp.dev/v1alpha1", "GPUWorkload"
CONTAINER = "workload"

_MAX_JOB_NAME = 63
_MAX_MODELS = 32
GPU_RESOURCE_PREFIXES = (RESOURCE_NVIDIA_GPU, RESOURCE_NVIDIA_MIG_PREFIX, "gpuloom.dev/")
_NOT_OF_THE_JOB = frozenset({"retry"})
"""What may change while the Job of an attempt stays as it is."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Image:
    """What a model runs: an image and, if given, its command."""

    image: str
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What settings and the cluster add to a workload's own spec.

    `gives_shares`: GPUs are asked for as thousandths, because GPULoom gives them out. `node`: the only node
    that the pods may go to; None: placement decides. `gpu_memory_mib`: of the GPUs that are here, if known.
    """

    image: Image | None
    gives_shares: bool = False
    priority_class_prefix: str = "gpuloom-"
    scheduler_name: str | None = None
    node: str | None = None
    gpu_memory_mib: frozenset[int] = frozenset()


def job_name(workload: GpuWorkload, attempt: int) -> str:
    """The same for every controller: from the workload's UID, what it is to run, and the attempt."""
    suffix = f"-{spec_digest(workload)}-{attempt}"
    name, room, gang = workload.meta.name, _MAX_JOB_NAME - len(suffix), workload.spec.gang
    if gang is not None:
        # With a pod's index behind it it is that pod's host name, which is as short and has no dots.
        name, room = name.replace(".", "-"), room - len(f"-{gang.size - 1}")
    return name[:room].rstrip(".-") + suffix


def is_job_of_spec(workload: GpuWorkload, name: str) -> bool:
    """Whether a Job of this name runs what the workload says now."""
    stem, _, attempt = name.rpartition("-")
    return attempt.isdigit() and stem.endswith(f"-{spec_digest(workload)}")


def spec_digest(workload: GpuWorkload) -> str:
    # Only what is set: a version that knows more fields must not take what runs for something else.
    spec = {
        member.name: value
        for member in fields(GpuWorkloadSpec)
        if member.name not in _NOT_OF_THE_JOB
        if (value := getattr(workload.spec, member.name)) != member.default
    }
    text = orjson.dumps([workload.meta.uid, spec], option=orjson.OPT_SORT_KEYS, default=dict)
    return hashlib.sha256(text).hexdigest()[:8]


def job_manifest(workload: GpuWorkload, attempt: int, options: JobOptions) -> Json:
    """Raise InvalidRequestError if the workload contradicts itself."""
    meta, gang = workload.meta, workload.spec.gang
    labels = {LABEL_WORKLOAD: _label_value(meta.name, meta.uid), LABEL_ATTEMPT: str(attempt)}
    pods = gang.size if gang is not None else 1
    spec: Json = {
        # A failed pod fails the attempt: when there is another one, the workload's own policy says.
        "backoffLimit": 0,
        "parallelism": pods,
        "completions": pods,
        "template": _template(workload, labels, options),
    }
    if gang is not None:
        spec["completionMode"] = "Indexed"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(workload, attempt),
            "namespace": meta.namespace,
            "labels": labels,
            "ownerReferences": [_owner(workload)],
        },
        "spec": spec,
    }


def is_owned(obj: Mapping[str, Any], uid: str) -> bool:
    owners = (obj.get("metadata") or {}).get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("uid") == uid for owner in owners)


def _owner(workload: GpuWorkload) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": workload.meta.name,
        "uid": workload.meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _template(workload: GpuWorkload, labels: Mapping[str, str], options: JobOptions) -> Json:
    spec = workload.spec
    template: Json = copy.deepcopy(dict(spec.pod_template or {}))
    metadata, pod = _part(template, "metadata"), _part(template, "spec")
    metadata["labels"] = {**_part(metadata, "labels"), **labels, **_pod_labels(workload)}
    metadata["annotations"] = {**_annotations(spec, options), **_part(metadata, "annotations")}
    pod.setdefault("restartPolicy", "Never")
    pod.setdefault("priorityClassName", f"{options.priority_class_prefix}{spec.priority}")
    if options.scheduler_name is not None:
        pod.setdefault("schedulerName", options.scheduler_name)
    if options.node is not None:
        _require_node(pod, options.node)
    _fill_container(_first_container(pod), workload, options)
    return template


def _part(parent: Json, key: str) -> Json:
    """The object under that key, made if it is not there."""
    found = parent.get(key)
    if found is None:
        found = parent[key] = {}
    if not isinstance(found, dict):
        raise InvalidRequestError(f"spec.podTemplate: {key} must be an object")
    return found


def _objects(parent: Json, key: str) -> list[Json]:
    """The list of objects under that key, made if it is not there."""
    found = parent.get(key)
    if found is None:
        found = parent[key] = []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InvalidRequestError(f"spec.podTemplate: {key} must be a list of objects")
    return found


def _first_container(pod: Json) -> Json:
    containers = _objects(pod, "containers")
    if not containers:
        containers.append({"name": CONTAINER})
    return containers[0]


def _fill_container(container: Json, workload: GpuWorkload, options: JobOptions) -> None:
    spec = workload.spec
    container.setdefault("name", CONTAINER)
    if spec.image is not None:
        container["image"] = spec.image
    elif "image" not in container and options.image is not None:
        container["image"] = options.image.image
        if options.image.command:
            container.setdefault("command", list(options.image.command))
    if "image" not in container:
        raise InvalidRequestError(
            "no image: set spec.image, or let the operator configure one for this model"
        )
    own = {
        "MODEL_NAME": spec.model_name,
        "GPU_COUNT": str(spec.gpu_count),
        "WORKLOAD_NAME": workload.meta.name,
        "WORKLOAD_PRIORITY": spec.priority.value,
    }
    given = _objects(container, "env")
    names = [entry.get("name") for entry in given]
    given.extend({"name": name, "value": value} for name, value in own.items() if name not in names)
    limits = _part(_part(container, "resources"), "limits")
    present = [name for name in limits if str(name).startswith(GPU_RESOURCE_PREFIXES)]
    if present:
        raise InvalidRequestError(
            f"spec.podTemplate asks for {present[0]} itself; leave it out, spec.gpuCount decides"
        )
    limits.update(_gpu_limits(spec, options))


def _gpu_limits(spec: GpuWorkloadSpec, options: JobOptions) -> dict[str, str]:
    profile = spec.mig_profile
    if profile is None and not options.gives_shares:
        return {RESOURCE_NVIDIA_GPU: str(spec.gpu_count)}
    if profile is None:
        limits = {RESOURCE_GPU_MILLI: str(1000 * spec.gpu_count)}
        if spec.gpu_memory_mib is not None:
            limits[RESOURCE_GPU_MEMORY_MIB] = str(spec.gpu_memory_mib)
        return limits
    if not options.gives_shares:
        return {mig_resource(profile): str(spec.gpu_count)}
    if spec.gpu_count != 1:
        raise InvalidRequestError(
            "a pod has one MIG instance where GPULoom cuts them; set gpuCount to 1 and gang.size to "
            f"{spec.gpu_count}"
        )
    return {RESOURCE_GPU_MILLI: str(_slice_milli(profile, options.gpu_memory_mib))}


def _slice_milli(profile: str, memories_mib: frozenset[int]) -> int:
    """1g.10gb is an eighth of 80 GB, and a quarter of 40: what it is here, else, or in doubt, the smaller."""
    here = {
        slice_milli(one.memory_slices, gpu.mig_slices)
        for gpu in load_catalog().gpus
        for one in gpu.mig_profiles
        if one.name == profile and any(10 * abs(gpu.memory_mib - mib) < mib for mib in memories_mib)
    }
    known = here or load_catalog().mig_milli(profile)
    if not known:
        raise InvalidRequestError(f"no GPU model that GPULoom knows has the MIG profile {profile}")
    return min(known)


def _annotations(spec: GpuWorkloadSpec, options: JobOptions) -> dict[str, str]:
    made = {ANNOTATION_STRATEGY: spec.strategy}
    if spec.topology is not TopologyPreference.NONE:
        made[ANNOTATION_TOPOLOGY] = spec.topology.value
    if spec.architecture is not None:
        made[ANNOTATION_GPU_ARCHITECTURE] = spec.architecture
    if spec.mig_profile is not None and options.gives_shares:
        made[ANNOTATION_MIG_PROFILE] = spec.mig_profile
    if spec.gpu_memory_mib is not None and not options.gives_shares:
        made[ANNOTATION_GPU_MODEL] = ",".join(_models_with(spec.gpu_memory_mib))
    if spec.gang is not None:
        made[ANNOTATION_GANG_SIZE] = str(spec.gang.size)
        if spec.gang.topology is not None:
            made[ANNOTATION_GANG_TOPOLOGY] = spec.gang.topology
    return made


def _models_with(memory_mib: int) -> list[str]:
    """NVIDIA's resource has no memory, so the models that have as much stand for it."""
    large = sorted(
        (gpu for gpu in load_catalog().gpus if gpu.memory_mib >= memory_mib),
        key=lambda gpu: (gpu.memory_mib, gpu.name),
    )
    if not large:
        raise InvalidRequestError(f"no GPU model that GPULoom knows has {memory_mib} MiB; lower gpuMemoryMib")
    return [gpu.name for gpu in large[:_MAX_MODELS]]


def _pod_labels(workload: GpuWorkload) -> dict[str, str]:
    made: dict[str, str] = {}
    if workload.spec.gang is not None:
        made[LABEL_GANG] = _label_value(workload.meta.name, workload.meta.uid)
    match workload.spec.sharing:
        case None:
            pass
        case WorkloadSharing.DISABLED:
            made[LABEL_SHARING] = "disabled"
        case sharing:
            made[LABEL_SHARING] = "enabled"
            if sharing is not WorkloadSharing.ENABLED:
                made[LABEL_SHARING_MODE] = sharing.value
    return made


def _label_value(name: str, uid: str) -> str:
    """A name may be longer than a label's value; then its beginning and a digest of the UID stand for it."""
    if len(name) <= _MAX_JOB_NAME:
        return name
    return f"{name[:50].rstrip('.-')}-{hashlib.sha256(uid.encode()).hexdigest()[:8]}"


def _require_node(pod: Json, hostname: str) -> None:
    """Beside whatever else the template requires: every alternative term gets it."""
    node_affinity = _part(_part(pod, "affinity"), "nodeAffinity")
    required = _part(node_affinity, REQUIRED)
    terms = _objects(required, "nodeSelectorTerms")
    if not terms:
        terms.append({})
    for term in terms:
        wanted = {"key": LABEL_HOSTNAME, "operator": "In", "values": [hostname]}
        _objects(term, "matchExpressions").append(wanted)
