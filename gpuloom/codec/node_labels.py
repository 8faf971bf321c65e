"""What the labels of a node say: where it is, what it is, and how it is paid for."""

from collections.abc import Mapping
from typing import Any

REGION_LABELS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
ZONE_LABELS = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
INSTANCE_TYPE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")

# Dozens a node, for other programs, and some change at every start of their writer: discovery does not pass
# them on, so whoever reads its facts can't tell whether a node has one.
DESCRIPTIVE_LABELS = (
    "feature.node.kubernetes.io/",
    "beta.kubernetes.io/",
    "failure-domain.beta.kubernetes.io/",
    "nvidia.com/cuda.",
    "nvidia.com/gfd.",
    "nvidia.com/gpu.deploy.",
)

_SPOT, _ON_DEMAND, _RESERVED = "spot", "on-demand", "reserved"
_PAID = {_SPOT: _SPOT, _ON_DEMAND: _ON_DEMAND, _RESERVED: _RESERVED}
# Ours first, then Karpenter's, then each cloud's own; the first that says something known decides.
_CAPACITY_LABELS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("gpu-autoscaler.io/capacity-type", _PAID),
    ("karpenter.sh/capacity-type", _PAID),
    (
        "eks.amazonaws.com/capacityType",
        {"SPOT": _SPOT, "ON_DEMAND": _ON_DEMAND, "CAPACITY_BLOCK": _RESERVED},
    ),
    ("cloud.google.com/gke-spot", {"true": _SPOT}),
    ("cloud.google.com/gke-preemptible", {"true": _SPOT}),
    (
        "cloud.google.com/gke-provisioning",
        {"spot": _SPOT, "preemptible": _SPOT, "standard": _ON_DEMAND, "reservation": _RESERVED},
    ),
    ("kubernetes.azure.com/scalesetpriority", {"spot": _SPOT, "regular": _ON_DEMAND}),
)


def capacity_type(labels: Mapping[str, Any]) -> str:
    """spot, on-demand or reserved; empty if no label says it."""
    for label, meanings in _CAPACITY_LABELS:
        meaning = meanings.get(first_label(labels, label))
        if meaning is not None:
            return meaning
    return ""


def first_label(texts: Mapping[str, Any], *keys: str) -> str:
    """The first of these that is there; empty if none is."""
    return next((value for key in keys if isinstance(value := texts.get(key), str) and value), "")
