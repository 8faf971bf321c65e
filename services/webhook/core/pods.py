"""What becomes of a GPU pod at admission: whether it may share a GPU, as what, and what it needs for that.

Every rewrite is the same when it is made twice. A pod's own word wins over its namespace's, and that over the
cluster's default. Where anything is in doubt the pod stays as it is.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpuloom.catalog import load_catalog
from gpuloom.catalog.entries import mig_resource
from gpuloom.codec.environment import VARIABLE, sees_only_its_allocation
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.names import (
    ANNOTATION_ENFORCEMENT,
    ANNOTATION_GANG_SIZE,
    ANNOTATION_GANG_TIMEOUT,
    ANNOTATION_MIG_PROFILE,
    ANNOTATION_VISIBLE_DEVICES,
    LABEL_GANG,
    LABEL_SHARING,
    LABEL_SHARING_MODE,
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
    RESOURCE_NVIDIA_MIG_PREFIX,
)

LABEL_SHARING_ENABLED = "gpu-autoscaler.io/sharing-enabled"
KEY_OPTIMIZE = "gpu-autoscaler.io/optimize"
KEY_OPTIMIZED = "gpu-autoscaler.io/optimized"
KEY_MIG_PROFILE = "gpu-autoscaler.io/mig-profile"
RUNTIME_CLASS = "nvidia"
DEFAULT_SCHEDULER = "default-scheduler"
SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease"})

_MAX_LABEL = 63
_OURS = (RESOURCE_GPU_MILLI, RESOURCE_GPU_MEMORY_MIB)

Json = dict[str, Any]


class SharingMode(StrEnum):
    MIG = "mig"
    MPS = "mps"
    TIMESLICING = "timeslicing"


@dataclass(frozen=True, slots=True)
class Advice:
    """What a workload like this pod needs, by its history: a MIG profile, or a share of one GPU."""

    utilization: float
    """0 to 1 of a whole GPU."""
    mig_profile: str | None = None
    """Of GPULoom's own nodes."""
    plugin_resource: str | None = None
    """A slice that NVIDIA's plugin gives out."""
    milli: int | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Offers:
    """What nodes of this cluster can give. `by_environment`: all of GPULoom's own deliver so.

    `mig_profiles` are cut on demand; `plugin_resources` are there, and NVIDIA's plugin gives them out.
    """

    shares: bool = False
    mig_profiles: frozenset[str] = frozenset()
    by_environment: bool = False
    plugin_resources: frozenset[str] = frozenset()
    slice_milli: Mapping[str, int] = field(default_factory=dict, hash=False)
    """What these profiles stand for on the GPUs that are here: 1g.10gb is an eighth of 80 GB, and a quarter
    of 40. Where both are, the smaller."""


@dataclass(frozen=True, slots=True)
class PodPolicy:
    """Settings. `share_by_default`: also where neither pod nor namespace asks for it.

    `gang_timeout_s` is given to members of gangs that name none; None: they go by the extender's own.
    """

    share_by_default: bool = False
    exempt_namespaces: frozenset[str] = SYSTEM_NAMESPACES
    scheduler_name: str | None = None
    wasteful_below: float = 0.5
    gang_timeout_s: int | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known beside the pod. What a policy says for it: `sharing_mode`, `share_milli`,
    `share_memory_mib`, `mig_profile`."""

    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    offers: Offers = field(default_factory=Offers)
    advice: Advice | None = None
    sharing_mode: SharingMode | None = None
    share_milli: int | None = None
    share_memory_mib: int | None = None
    mig_profile: str | None = None


def is_gpu_pod(pod: Mapping[str, Any]) -> bool:
    """Init containers and sidecars count, as they do for the scheduler."""
    return any(_is_gpu(name) for container in _every_container(pod) for name in _limits(container))


def mutated_pod(pod: Json, namespace: str, policy: PodPolicy, around: Surroundings) -> tuple[Json, list[str]]:
    """The pod as it should be stored, and what its user is told. The pod itself if nothing changes."""
    if not is_gpu_pod(pod) or _is_exempt(pod, namespace, policy, around):
        return pod, []
    changed = copy.deepcopy(pod)
    _set_scheduler(changed, policy)
    _complete_gang(changed, policy)
    told = _share(changed, policy, around)
    if around.offers.by_environment:
        _deliver_by_environment(changed)
    return (changed, told) if changed != pod else (pod, told)


def wants_advice(pod: Json, namespace: str, policy: PodPolicy, around: Surroundings) -> bool:
    """Whether it would make a difference to know what pods like this one used."""
    if _is_exempt(pod, namespace, policy, around) or _word(pod, KEY_MIG_PROFILE):
        return False
    return _may_share(pod, policy, around) and _sole_whole_gpu(pod) is not None


def _is_exempt(pod: Json, namespace: str, policy: PodPolicy, around: Surroundings) -> bool:
    """To opt out is to opt out of every rewrite; with the shipped configuration no such pod comes here.

    One that names its node, as the mirror of a static pod does, is never scheduled: nobody would give it a
    share or a slice, and the container that runs has what its own manifest says.
    """
    opted_out = around.namespace_labels.get(LABEL_SHARING_ENABLED) == "false"
    return namespace in policy.exempt_namespaces or opted_out or bool(pod["spec"].get("nodeName"))


def _set_scheduler(pod: Json, policy: PodPolicy) -> None:
    spec = pod["spec"]
    if policy.scheduler_name and spec.get("schedulerName", DEFAULT_SCHEDULER) == DEFAULT_SCHEDULER:
        spec["schedulerName"] = policy.scheduler_name


def _complete_gang(pod: Json, policy: PodPolicy) -> None:
    """A gang by its size alone is that of its controller: of one Job, or one replica set of workers."""
    metadata = pod.get("metadata") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    owners = [one for one in metadata.get("ownerReferences") or () if one.get("controller")]
    if LABEL_GANG not in labels and ANNOTATION_GANG_SIZE in annotations and owners:
        metadata["labels"] = {**labels, LABEL_GANG: str(owners[0].get("name", ""))[:_MAX_LABEL].rstrip("-.")}
    is_member = LABEL_GANG in (metadata.get("labels") or {})
    if is_member and policy.gang_timeout_s is not None:
        _annotate(pod, {ANNOTATION_GANG_TIMEOUT: str(policy.gang_timeout_s)})


def _share(pod: Json, policy: PodPolicy, around: Surroundings) -> list[str]:
    if not _may_share(pod, policy, around):
        return []
    in_namespace = around.namespace_labels.get(LABEL_SHARING_ENABLED) == "true"
    mode = _mode(pod) or around.sharing_mode
    container = _sole_whole_gpu(pod)
    if container is None:
        limits_exist = not around.offers.by_environment
        _limit_shares(pod, mode, in_namespace=in_namespace, limits_exist=limits_exist)
        return []
    advised = _by_advice(around, policy)
    named = _word(pod, KEY_MIG_PROFILE)
    profile = named or around.mig_profile or (advised.mig_profile if advised else None)
    plugged = _plugged(named, advised, around)
    if mode in (SharingMode.MIG, None) and plugged and profile not in around.offers.mig_profiles:
        return _give_plugged(pod, container, plugged)
    if mode is SharingMode.MIG or (mode is None and profile):
        return _give_slice(pod, container, profile, around)
    told = _give_share(pod, container, mode, advised, around)
    if mode is None and in_namespace:
        # Nothing smaller is known for it yet; what this namespace does with its GPUs is said all the same.
        _annotate(pod, {LABEL_SHARING_MODE: SharingMode.MPS.value})
    return told


def _plugged(named: str | None, advised: Advice | None, around: Surroundings) -> str | None:
    """The resource of NVIDIA's plugin for the profile that is named, else for what is advised."""
    wanted = mig_resource(named) if named else advised.plugin_resource if advised else None
    return wanted if wanted in around.offers.plugin_resources else None


def _give_plugged(pod: Json, container: Json, resource: str) -> list[str]:
    _replace_gpu(container, {resource: "1"})
    _mark_optimized(pod)
    return [f"one GPU became {resource}, because sharing is on here"]


def _limit_shares(pod: Json, mode: SharingMode | None, *, in_namespace: bool, limits_exist: bool) -> None:
    """A pod that asks for a share itself: whether the driver keeps it to that, unless it says so itself."""
    asked = [str(_limits(one).get(RESOURCE_GPU_MILLI, "")) for one in _every_container(pod)]
    is_share = any(milli.isdecimal() and 0 < int(milli) < MILLI_PER_GPU for milli in asked)
    if not is_share or _word(pod, ANNOTATION_MIG_PROFILE) or mode is SharingMode.MIG:
        return
    if mode is None and not in_namespace:
        return
    if mode is SharingMode.TIMESLICING or limits_exist:
        _annotate(pod, {ANNOTATION_ENFORCEMENT: "none" if mode is SharingMode.TIMESLICING else "mps"})


def _may_share(pod: Json, policy: PodPolicy, around: Surroundings) -> bool:
    word = _word(pod, LABEL_SHARING)
    if word == "disabled" or _word(pod, KEY_OPTIMIZE) == "false":
        return False
    asked = word == "enabled" or _word(pod, LABEL_SHARING_MODE) or _word(pod, KEY_MIG_PROFILE)
    in_namespace = around.namespace_labels.get(LABEL_SHARING_ENABLED) == "true"
    return bool(asked or in_namespace or policy.share_by_default)


def _by_advice(around: Surroundings, policy: PodPolicy) -> Advice | None:
    advice = around.advice
    return advice if advice is not None and advice.utilization < policy.wasteful_below else None


def _give_slice(pod: Json, container: Json, profile: str | None, around: Surroundings) -> list[str]:
    if profile is None:
        return ["no MIG profile is known to fit this pod; name one in gpu-autoscaler.io/mig-profile"]
    if profile not in around.offers.mig_profiles:
        offered = ", ".join(sorted(around.offers.mig_profiles)) or "none"
        return [f"no GPU here can be cut into {profile}; offered: {offered}; the pod stays as it is"]
    milli = around.offers.slice_milli.get(profile) or min(load_catalog().mig_milli(profile), default=0)
    if not milli:
        return [f"MIG profile {profile} is not known; the pod stays as it is"]
    _replace_gpu(container, {RESOURCE_GPU_MILLI: str(milli)})
    _annotate(pod, {ANNOTATION_MIG_PROFILE: profile})
    _mark_optimized(pod)
    return [f"one GPU became a slice {profile}, because sharing is on here"]


def _give_share(
    pod: Json, container: Json, mode: SharingMode | None, advised: Advice | None, around: Surroundings
) -> list[str]:
    milli = around.share_milli or (advised.milli if advised else None)
    if milli is None or not around.offers.shares or not 0 < milli < MILLI_PER_GPU:
        return []
    if around.offers.by_environment and mode is not SharingMode.TIMESLICING:
        # It would wait for ever for a GPU whose driver limits it: that takes a runtime with NRI.
        return ["no node here can keep a pod limited to a share; the pod stays as it is"]
    resources = {RESOURCE_GPU_MILLI: str(milli)}
    memory_mib = around.share_memory_mib or (advised.memory_mib if advised else None)
    if memory_mib:
        resources[RESOURCE_GPU_MEMORY_MIB] = str(memory_mib)
    _replace_gpu(container, resources)
    _annotate(pod, {ANNOTATION_ENFORCEMENT: "none" if mode is SharingMode.TIMESLICING else "mps"})
    _mark_optimized(pod)
    return [f"one GPU became {milli} thousandths of one, because sharing is on here"]


def _sole_whole_gpu(pod: Json) -> Json | None:
    """The container of a pod that asks for exactly one whole GPU of NVIDIA's plugin, and for nothing else."""
    asking = [one for one in _containers(pod) if any(_is_gpu(name) for name in _limits(one))]
    if len(asking) != 1:
        return None
    devices = {name: str(amount) for name, amount in _limits(asking[0]).items() if _is_gpu(name)}
    in_init = any(_is_gpu(name) for one in _containers(pod, "initContainers") for name in _limits(one))
    return asking[0] if devices == {RESOURCE_NVIDIA_GPU: "1"} and not in_init else None


def _replace_gpu(container: Json, resources: Mapping[str, str]) -> None:
    held = container["resources"]
    for kind in ("limits", "requests"):
        if isinstance(held.get(kind), dict):
            held[kind].pop(RESOURCE_NVIDIA_GPU, None)
    held["limits"].update(resources)


def _deliver_by_environment(pod: Json) -> None:
    """What a pod of ours needs on nodes without NRI: NVIDIA's runtime, and its own GPUs by their names."""
    asking = [one for one in _every_container(pod) if any(name in _limits(one) for name in _OURS)]
    if len(asking) != 1 or sees_only_its_allocation(pod, asking[0]["name"]):
        return
    pod["spec"].setdefault("runtimeClassName", RUNTIME_CLASS)
    for container in _every_container(pod):
        env = [one for one in container.get("env") or [] if one.get("name") != VARIABLE]
        container["env"] = [*env, _visible(container is asking[0])]


def _visible(is_asking: bool) -> Json:
    if not is_asking:
        return {"name": VARIABLE, "value": "void"}
    path = f"metadata.annotations['{ANNOTATION_VISIBLE_DEVICES}']"
    return {"name": VARIABLE, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _mode(pod: Json) -> SharingMode | None:
    word = _word(pod, LABEL_SHARING_MODE)
    return SharingMode(word) if word in set(SharingMode) else None


def _word(pod: Json, key: str) -> str | None:
    """Of a label or an annotation: users write these in either place."""
    metadata = pod.get("metadata") or {}
    for place in ("labels", "annotations"):
        found = (metadata.get(place) or {}).get(key)
        if found is not None:
            return str(found)
    return None


def _mark_optimized(pod: Json) -> None:
    """As a label, to be selected by, and as the annotation that is documented."""
    metadata = pod.setdefault("metadata", {})
    for place in ("labels", "annotations"):
        metadata[place] = {**(metadata.get(place) or {}), KEY_OPTIMIZED: "true"}


def _annotate(pod: Json, annotations: Mapping[str, str]) -> None:
    metadata = pod.setdefault("metadata", {})
    # The user's own word wins.
    metadata["annotations"] = {**annotations, **(metadata.get("annotations") or {})}


def _every_container(pod: Mapping[str, Any]) -> list[Json]:
    return [*_containers(pod, "initContainers"), *_containers(pod)]


def _containers(pod: Mapping[str, Any], kind: str = "containers") -> list[Json]:
    spec = pod.get("spec")
    found = spec.get(kind) if isinstance(spec, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _limits(container: Mapping[str, Any]) -> Mapping[str, Any]:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    return limits if isinstance(limits, dict) else {}


def _is_gpu(name: str) -> bool:
    return name == RESOURCE_NVIDIA_GPU or name in _OURS or name.startswith(RESOURCE_NVIDIA_MIG_PREFIX)
