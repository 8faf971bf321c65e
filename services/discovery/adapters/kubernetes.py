"""Nodes as discovery needs them, from Kubernetes' JSON."""

from typing import Any

from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.parse import quantity_value
from gpuloom.model.node import NodeMode
from gpuloom.names import (
    LABEL_MODE,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
    RESOURCE_NVIDIA_MIG_PREFIX,
)
from services.discovery.cluster import ClusterNode

_MODES = {mode.value: mode for mode in (NodeMode.NVIDIA, NodeMode.GPULOOM)}


def cluster_node(node: JsonObject) -> ClusterNode:
    metadata = metadata_of(node)
    name, uid = metadata.get("name"), metadata.get("uid")
    if not isinstance(name, str) or not isinstance(uid, str):
        raise InvalidRequestError("a node without name or uid")
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return ClusterNode(
        name=name,
        uid=uid,
        mode=_MODES.get((metadata.get("labels") or {}).get(LABEL_MODE, ""), NodeMode.UNKNOWN),
        offers_nvidia=any(
            _amount(value) > 0
            for resource, value in allocatable.items()
            if resource == RESOURCE_NVIDIA_GPU or resource.startswith(RESOURCE_NVIDIA_MIG_PREFIX)
        ),
        offers_gpuloom=_amount(allocatable.get(RESOURCE_GPU_MILLI, "0")) > 0,
    )


def internal_address(node: JsonObject) -> str:
    """The node's InternalIP; empty if it has none."""
    for address in (node.get("status") or {}).get("addresses") or ():
        if address.get("type") == "InternalIP":
            return str(address.get("address", ""))
    return ""


def _amount(value: Any) -> int:
    """An amount that can't be read counts as some: better closed for a doubt than open for a mistake."""
    try:
        return quantity_value(value)
    except (ValueError, TypeError):
        return 1
