"""Nodes as discovery needs them, from Kubernetes' JSON."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gpuloom.codec.facts import (
    MAX_LABEL_NAME_LENGTH,
    MAX_LABEL_VALUE_LENGTH,
    MAX_LABELS,
    MAX_PROVIDER_ID_LENGTH,
    MAX_TAINTS,
)
from gpuloom.codec.node_labels import (
    DESCRIPTIVE_LABELS,
    INSTANCE_TYPE_LABELS,
    REGION_LABELS,
    ZONE_LABELS,
    capacity_type,
    first_label,
)
from gpuloom.codec.resources import MOST_CPU_MILLI, MOST_MEMORY_BYTES
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, metadata_of, without_managed_fields
from gpuloom.kube.parse import quantity_milli, quantity_value
from gpuloom.model.node import NodeMode
from gpuloom.model.snapshot import NodePlace, Taint
from gpuloom.names import (
    LABEL_MODE,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
    RESOURCE_NVIDIA_MIG_PREFIX,
)
from services.discovery.core.nodes import ClusterNode

# GPU Feature Discovery says with it which nodes' GPUs are wired into one NVLink domain.
NVLINK_DOMAIN_LABEL = "nvidia.com/gpu.clique"
# Kubernetes names no label for racks. This one continues its own for region and zone.
RACK_LABEL = "topology.kubernetes.io/rack"

_GPU_PRESENT_LABEL = "nvidia.com/gpu.present"
_MODES = {mode.value: mode for mode in (NodeMode.NVIDIA, NodeMode.GPULOOM)}


@dataclass(frozen=True, slots=True)
class PlaceLabels:
    """The labels that say where a node is, where Kubernetes has no name for them."""

    rack: str = RACK_LABEL
    nvlink_domain: str = NVLINK_DOMAIN_LABEL


DEFAULT_LABELS = PlaceLabels()


def trimmed_node(node: JsonObject) -> JsonObject:
    """The node without its field owners and the list of its images, which is most of it and never read."""
    status = node.get("status")
    if not isinstance(status, dict) or "images" not in status:
        return without_managed_fields(node)
    kept = {key: value for key, value in status.items() if key != "images"}
    return without_managed_fields({**node, "status": kept})


def cluster_node(node: JsonObject, place_labels: PlaceLabels = DEFAULT_LABELS) -> ClusterNode:
    metadata = metadata_of(node)
    name, uid = metadata.get("name"), metadata.get("uid")
    if not isinstance(name, str) or not isinstance(uid, str):
        raise InvalidRequestError("a node without name or uid")
    labels = _object(metadata, "labels")
    allocatable = _object(_object(node, "status"), "allocatable")
    return ClusterNode(
        name=name,
        uid=uid,
        mode=_MODES.get(first_label(labels, LABEL_MODE), NodeMode.UNKNOWN),
        offers_nvidia=any(
            _offered(value) > 0
            for resource, value in allocatable.items()
            if resource == RESOURCE_NVIDIA_GPU or resource.startswith(RESOURCE_NVIDIA_MIG_PREFIX)
        ),
        offers_gpuloom=_offered(allocatable.get(RESOURCE_GPU_MILLI, "0")) > 0,
        labelled_gpus=labels.get(_GPU_PRESENT_LABEL) == "true",
        place=_place(_object(node, "spec"), labels, allocatable, place_labels),
    )


def internal_address(node: JsonObject) -> str:
    """The node's InternalIP; empty if it has none."""
    for address in _object(node, "status").get("addresses") or ():
        if address.get("type") == "InternalIP":
            return str(address.get("address", ""))
    return ""


def _place(
    spec: JsonObject, labels: JsonObject, allocatable: JsonObject, place_labels: PlaceLabels
) -> NodePlace:
    taints = spec.get("taints") or ()
    return NodePlace(
        region=first_label(labels, *REGION_LABELS),
        zone=first_label(labels, *ZONE_LABELS),
        rack=first_label(labels, place_labels.rack),
        nvlink_domain=first_label(labels, place_labels.nvlink_domain),
        capacity_type=capacity_type(labels),
        instance_type=first_label(labels, *INSTANCE_TYPE_LABELS),
        unschedulable=spec.get("unschedulable") is True,
        taints=tuple(
            Taint(first_label(taint, "key"), first_label(taint, "value"), first_label(taint, "effect"))
            for taint in taints[:MAX_TAINTS]
        ),
        cpu_milli=min(_known(allocatable.get("cpu"), quantity_milli), MOST_CPU_MILLI),
        memory_bytes=min(_known(allocatable.get("memory"), quantity_value), MOST_MEMORY_BYTES),
        provider_id=_provider_id(spec),
        labels=_selectable(labels),
    )


def _provider_id(spec: JsonObject) -> str:
    """Half of a name would be another machine's."""
    name = first_label(spec, "providerID")
    return name if len(name) <= MAX_PROVIDER_ID_LENGTH else ""


def _selectable(labels: JsonObject) -> tuple[tuple[str, str], ...]:
    chosen = (
        (name, value)
        for name, value in sorted(labels.items())
        if isinstance(value, str)
        and not name.startswith(DESCRIPTIVE_LABELS)
        # The API server allows no others; a reader would refuse the whole node for one.
        and len(name) <= MAX_LABEL_NAME_LENGTH
        and len(value) <= MAX_LABEL_VALUE_LENGTH
    )
    return tuple(islice(chosen, MAX_LABELS))


def _object(parent: JsonObject, key: str) -> JsonObject:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _offered(value: Any) -> int:
    """An amount that can't be read counts as some: better closed for a doubt than open for a mistake."""
    try:
        return quantity_value(value)
    except ValueError:
        return 1


def _known(value: Any, parse: Callable[[Any], int]) -> int:
    """0 stands for not known."""
    try:
        return max(0, parse(value)) if value is not None else 0
    except ValueError:
        return 0
