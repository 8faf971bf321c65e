"""The cluster's devices at one version."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.node import NodeState, PodRef
from gpuloom.model.version import StreamVersion

MODE_CHANGED = "pods hold GPUs that were given out before the node changed its mode: drain them"
CLAIMED_GPU = "a DRA driver gives out GPUs of the node beside GPULoom: delete the pods that claim them"
"""Reasons of discovery's that the extender tells of with the names of the pods."""


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a node is and what else it offers, as Kubernetes shows it. An empty text is not known.

    `labels` are those that people select nodes by, by name.
    """

    region: str = ""
    zone: str = ""
    rack: str = ""
    nvlink_domain: str = ""
    capacity_type: str = ""
    instance_type: str = ""
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    provider_id: str = ""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class ClosedGpu:
    """A GPU that must not be used now, while the rest of its node may be."""

    gpu_uuid: str
    reason: str


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """What one pod was given on its node; `advisory`: a prediction of the kubelet's choice."""

    pod: PodRef
    container: str
    devices: tuple[AllocatedDevice, ...]
    advisory: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of one node, and why not to use it or a part of it if there is a reason.

    Reasons are constant texts, the same for the same cause everywhere; `details` name who and what.
    `agent_address` is where its agent is followed, empty if it is not.
    """

    state: NodeState
    untrusted_reasons: tuple[str, ...] = ()
    closed_gpus: tuple[ClosedGpu, ...] = ()
    place: NodePlace = NodePlace()
    allocations: tuple[PodAllocation, ...] = ()
    details: tuple[str, ...] = ()
    agent_address: str = ""

    @property
    def trusted(self) -> bool:
        return not self.untrusted_reasons


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """All nodes by UID."""

    version: StreamVersion
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
