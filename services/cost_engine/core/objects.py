"""What Kubernetes' JSON of nodes and pods says that costs depend on. What can't be read is not guessed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from gpuloom.catalog import Catalog, GpuModel, load_catalog
from gpuloom.codec.node_labels import (
    INSTANCE_TYPE_LABELS,
    REGION_LABELS,
    ZONE_LABELS,
    capacity_type,
    first_label,
)
from gpuloom.codec.pod import bound_node, bound_request, is_terminal, plugged_devices
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.parse import parse_time, quantity_value
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.mig import MigProfile
from gpuloom.model.request import Authority, PluggedDevices, RequestKind
from gpuloom.names import RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU, RESOURCE_NVIDIA_MIG_PREFIX
from services.cost_engine.core.intervals import UNITS_PER_GPU, Claim, NodeTraits, PodIdentity

POOL_LABELS = (
    "gpuloom.dev/pool",
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
)
ANNOTATION_OPTIMIZED = "gpu-autoscaler.io/optimized"
ANNOTATION_RECOMMENDATION = "gpuloom.dev/recommendation"
COST_LABELS = ("gpu-cost-center", "gpu-project")
MAX_LABELS = 64
MAX_LABEL_LENGTH = 317
MAX_GPUS = 4096
"""More in one node is a mistake of whoever wrote it, and would fit no column."""

_GPU_COUNT_LABEL = "nvidia.com/gpu.count"
_GPU_REPLICAS_LABEL = "nvidia.com/gpu.replicas"
_GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"
_PROVIDERS = {"aws": "aws", "gce": "gcp", "azure": "azure"}
_UNITS_PER_MILLI = UNITS_PER_GPU // 1000
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")
_MAX_NAME = 253


class SliceRule(StrEnum):
    """What a MIG slice counts: its part of the compute slices, or of the memory."""

    COMPUTE = "compute"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class PodTimes:
    """When it began and ceased to hold its devices, as its status says. None: not said, or not yet."""

    start_ns: int | None
    end_ns: int | None
    ended: bool
    """It holds nothing any more, whether or not it is known since when."""


def node_traits(node: JsonObject, pool_labels: Sequence[str] = POOL_LABELS) -> NodeTraits | None:
    """None for a node without GPUs."""
    metadata, labels = _object(node, "metadata"), _object(_object(node, "metadata"), "labels")
    status = _object(node, "status")
    capacity = {**_object(status, "allocatable"), **_object(status, "capacity")}
    catalog, instance_type = load_catalog(), first_label(labels, *INSTANCE_TYPE_LABELS)
    provider = _provider(_object(node, "spec"), instance_type, catalog)
    known = _instance(catalog, provider, instance_type)
    count, advertised = _gpu_counts(capacity, labels, known[1] if known else 0)
    if count == 0:
        return None
    model = known[0].name if known else first_label(labels, _GPU_PRODUCT_LABEL)
    return NodeTraits(
        name=str(metadata.get("name", "")),
        gpu_count=count,
        provider=provider,
        region=first_label(labels, *REGION_LABELS),
        zone=first_label(labels, *ZONE_LABELS),
        instance_type=instance_type,
        capacity_type=capacity_type(labels),
        pool=first_label(labels, *pool_labels),
        gpu_model=model,
        advertised=advertised,
    )


def created_ns(obj: JsonObject) -> int | None:
    return _time_ns(_object(obj, "metadata").get("creationTimestamp"))


def pod_identity(pod: JsonObject, namespace_labels: Mapping[str, str] | None = None) -> PodIdentity:
    """Labels of the pod, and those of its namespace where the pod has none of that name."""
    metadata = _object(pod, "metadata")
    annotations = _object(metadata, "annotations")
    own = {key: value for key, value in _object(metadata, "labels").items() if isinstance(value, str)}
    merged = {**(namespace_labels or {}), **own}
    # Of too many labels those stay that costs are told by, then the pod's own.
    first = sorted(merged, key=lambda key: (key not in COST_LABELS, key not in own, key))[:MAX_LABELS]
    kept = {
        key: merged[key]
        for key in sorted(first)
        if len(key) <= MAX_LABEL_LENGTH and len(merged[key]) <= MAX_LABEL_LENGTH
    }
    optimized = "true" in (annotations.get(ANNOTATION_OPTIMIZED), own.get(ANNOTATION_OPTIMIZED))
    return PodIdentity(
        uid=str(metadata.get("uid", "")),
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        labels=kept,
        workload=_workload(metadata),
        optimized=optimized or bool(annotations.get(ANNOTATION_RECOMMENDATION)),
    )


def pod_claim(pod: JsonObject, traits: NodeTraits, rule: SliceRule = SliceRule.COMPUTE) -> Claim | None:
    """What the pod holds of such a node; None if it holds no GPU."""
    try:
        request = bound_request(pod)
        plugged = plugged_devices(pod)
    except InvalidRequestError:
        return None
    if request is None:
        return None
    gpu = request.gpu
    if gpu.authority is Authority.NVIDIA:
        return _plugged_claim(plugged, traits, rule)
    if gpu.kind is RequestKind.MIG:
        return Claim(gpu.count * slice_units(gpu.mig_profile or "", traits, rule), gpu.count, "mig")
    mechanism = "share" if gpu.kind is RequestKind.SHARE else "whole"
    return Claim(gpu.count * gpu.milli * _UNITS_PER_MILLI, gpu.count, mechanism)


def held_claim(devices: Mapping[str, int], traits: NodeTraits, rule: SliceRule = SliceRule.COMPUTE) -> Claim:
    """What a pod held by its windows alone: thousandths by device, as `windows.device_name` calls it."""
    units, slices = 0, 0
    for name, milli in devices.items():
        _, _, place = name.partition("/")
        slices += bool(place)
        profile = place.rpartition("/")[0]
        units += slice_units(profile, traits, rule) if place else milli * _UNITS_PER_MILLI
    whole = all(milli == MILLI_PER_GPU for milli in devices.values())
    return Claim(units, len(devices), "mig" if slices else "whole" if whole else "share")


def pod_times(pod: JsonObject) -> PodTimes:
    """From when it was bound to when its last container ended: the kubelet's times, never a sample's."""
    status = _object(pod, "status")
    scheduled = next(
        (
            condition.get("lastTransitionTime")
            for condition in status.get("conditions") or ()
            if isinstance(condition, dict)
            and condition.get("type") == "PodScheduled"
            and condition.get("status") == "True"
        ),
        None,
    )
    start_ns = _time_ns(scheduled) or _time_ns(status.get("startTime")) or created_ns(pod)
    if not is_terminal(pod):
        return PodTimes(start_ns, None, ended=False)
    ends = [
        time_ns
        for key in ("containerStatuses", "initContainerStatuses")
        for entry in status.get(key) or ()
        if isinstance(entry, dict)
        and (time_ns := _time_ns(_object(_object(entry, "state"), "terminated").get("finishedAt")))
    ]
    end_ns = max(ends, default=None)
    if end_ns is not None and start_ns is not None:
        end_ns = max(start_ns, end_ns)
    return PodTimes(start_ns, end_ns, ended=True)


def asks_for_gpus(pod: JsonObject) -> bool:
    try:
        return bound_request(pod) is not None
    except InvalidRequestError:
        return False


def node_name_of(pod: JsonObject) -> str | None:
    return bound_node(pod)


def slice_units(profile: str, traits: NodeTraits, rule: SliceRule) -> int:
    found = _find_profile(profile, traits)
    if found is None:
        return UNITS_PER_GPU
    gpu, entry = found
    if rule is SliceRule.MEMORY:
        return UNITS_PER_GPU * entry.memory_slices // gpu.mig_slices
    compute = max(other.compute_slices for other in gpu.mig_profiles)
    return UNITS_PER_GPU * entry.compute_slices // compute


def _plugged_claim(plugged: Sequence[PluggedDevices], traits: NodeTraits, rule: SliceRule) -> Claim:
    units = devices = 0
    mechanism = "whole"
    for asked in plugged:
        amount = max(asked.lasting, asked.most)
        devices += amount
        if asked.kind:
            mechanism = "mig"
            units += amount * slice_units(asked.kind, traits, rule)
        elif traits.advertised > traits.gpu_count:
            mechanism = "timeslicing"
            units += amount * traits.capacity_units // traits.advertised
        else:
            units += amount * UNITS_PER_GPU
    return Claim(units, devices, mechanism)


def _find_profile(profile: str, traits: NodeTraits) -> tuple[GpuModel, MigProfile] | None:
    catalog = load_catalog()
    own = catalog.find_gpu(traits.gpu_model) if traits.gpu_model else None
    for gpu in (*((own,) if own else ()), *catalog.gpus):
        for entry in gpu.mig_profiles:
            if entry.name == profile:
                return gpu, entry
    return None


def _gpu_counts(capacity: JsonObject, labels: JsonObject, listed: int) -> tuple[int, int]:
    """Physical GPUs, and those that a device plugin offers in place of them."""
    plugged = _gpus(_amount(capacity.get(RESOURCE_NVIDIA_GPU)))
    ours = _gpus(_amount(capacity.get(RESOURCE_GPU_MILLI)) // 1000)
    labelled = _gpus(_amount(labels.get(_GPU_COUNT_LABEL)))
    sliced = any(
        name.startswith(RESOURCE_NVIDIA_MIG_PREFIX) and _amount(value) > 0 for name, value in capacity.items()
    )
    if not (plugged or ours or labelled or sliced):
        return 0, 0
    replicas = max(1, _amount(labels.get(_GPU_REPLICAS_LABEL)))
    count = labelled or ours or listed or -(-plugged // replicas)
    return max(1, count), plugged


def _instance(catalog: Catalog, provider: str, name: str) -> tuple[GpuModel, int] | None:
    for entry in catalog.instances:
        if entry.name == name and provider in ("", entry.provider):
            return entry.gpu, entry.gpu_count
    return None


def _provider(spec: JsonObject, instance_type: str, catalog: Catalog) -> str:
    scheme = str(spec.get("providerID") or "").partition("://")[0]
    if scheme in _PROVIDERS:
        return _PROVIDERS[scheme]
    owners = {entry.provider for entry in catalog.instances if entry.name == instance_type}
    return owners.pop() if len(owners) == 1 else ""


def _workload(metadata: JsonObject) -> str:
    for owner in metadata.get("ownerReferences") or ():
        if isinstance(owner, dict) and owner.get("controller"):
            kind, name = str(owner.get("kind", "")), str(owner.get("name", ""))
            # Kubernetes takes any text here, with any character, from whoever makes the pod.
            if not _KIND.fullmatch(kind) or len(name) > _MAX_NAME or not name.isprintable():
                return ""
            template = _object(metadata, "labels").get("pod-template-hash")
            if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
                return f"Deployment/{name.removesuffix(f'-{template}')}"
            return f"{kind}/{name}"
    return ""


def _amount(value: Any) -> int:
    try:
        return max(0, quantity_value(value)) if value is not None else 0
    except (ValueError, TypeError):
        return 0


def _gpus(count: int) -> int:
    return count if count <= MAX_GPUS else 0


def _time_ns(value: Any) -> int | None:
    try:
        moment: datetime = parse_time(value)
    except (ValueError, TypeError):
        return None
    return round(moment.timestamp()) * 1_000_000_000


def _object(parent: JsonObject, key: str) -> JsonObject:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}
