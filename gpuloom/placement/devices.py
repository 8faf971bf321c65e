"""What placement decides on: a node's GPUs with what is free of them.

The owner of the ledger makes these views; placement only reads them. Anything closed here is never given out.
"""

from dataclasses import dataclass, field

from gpuloom.catalog import slice_milli
from gpuloom.model.gpu import MILLI_PER_GPU, Gpu, GpuHealth
from gpuloom.model.mig import MigInstance
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.topology import PcieLevel, Topology, pair_count
from gpuloom.placement.topology import TopologyTable

_HEALTH_REASONS = {
    GpuHealth.UNHEALTHY: "unhealthy GPUs",
    GpuHealth.LOST: "GPUs that no longer answer",
    GpuHealth.UNKNOWN: "GPUs of unknown health",
}

CHANGING = "GPUs that are being cut anew"


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU and what is free of it.

    `free_mig` are those of the GPU's MIG instances that nobody has. `mig_slices` is the model's number of
    memory slices, 0 if not known. A `closed_reason` reaches users: a constant text without names or UUIDs.
    """

    gpu: Gpu
    free_milli: int
    free_memory_mib: int
    free_mig: tuple[MigInstance, ...] = ()
    mig_slices: int = 0
    closed_reason: str = ""

    def __post_init__(self) -> None:
        if not set(self.free_mig) <= set(self.gpu.mig_instances):
            raise ValueError("a free MIG instance is not one of the GPU's instances")

    @property
    def unusable_reason(self) -> str:
        """Why nothing of this GPU may be given out now; empty if it may."""
        return self.closed_reason or health_refusal(self.gpu) or (CHANGING if self.gpu.changing else "")

    @property
    def free_share_milli(self) -> int:
        """The part of the card that can still be used: free of both milli and memory; 0 if unusable."""
        if self.unusable_reason:
            return 0
        if not self.gpu.mig_enabled:
            return usable_milli(self.free_milli, self.free_memory_mib, self.gpu.memory_mib)
        slices = self.mig_slices or sum(instance.slices for instance in self.gpu.mig_instances)
        return min(MILLI_PER_GPU, sum(slice_milli(instance.slices, slices) for instance in self.free_mig))

    @property
    def untouched(self) -> bool:
        """Whether nobody has any part of it."""
        return self.free_milli >= MILLI_PER_GPU and self.free_memory_mib >= self.gpu.memory_mib


@dataclass(frozen=True, slots=True)
class HostCapacity:
    """CPU and memory of a node: what pods may use in all, and what is left."""

    cpu_total_milli: int
    cpu_free_milli: int
    memory_total_bytes: int
    memory_free_bytes: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class NodeView:
    """A node as placement sees it. GPU i of `gpus` is bit i of every mask.

    `links` answers questions about its topology. Without a topology, or if its rows do not follow the GPUs'
    indexes, every pair counts as unknown.
    """

    name: str
    uid: str
    mode: NodeMode
    delivery: Delivery
    gpus: tuple[GpuView, ...]
    topology: Topology | None = None
    closed_reason: str = ""
    host: HostCapacity | None = None
    links: TopologyTable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numa = tuple(view.gpu.numa_node for view in self.gpus)
        object.__setattr__(self, "links", TopologyTable.for_shape(self._known_topology(), numa))

    def _known_topology(self) -> Topology:
        in_order = all(view.gpu.index == i for i, view in enumerate(self.gpus))
        if self.topology is not None and in_order and self.topology.gpu_count == len(self.gpus):
            return self.topology
        pairs = pair_count(len(self.gpus))
        return Topology(len(self.gpus), (PcieLevel.UNKNOWN,) * pairs, (0,) * pairs)


def health_refusal(gpu: Gpu) -> str:
    """Why nothing of this GPU may be given out for its health, as a constant text; empty if it may."""
    return "" if gpu.health is GpuHealth.HEALTHY else _HEALTH_REASONS[gpu.health]


def usable_milli(free_milli: int, free_memory_mib: int, memory_mib: int) -> int:
    """Milli without memory is of no use to anybody, nor the other way round."""
    if memory_mib <= 0:
        return min(free_milli, MILLI_PER_GPU)
    return max(0, min(free_milli, MILLI_PER_GPU * free_memory_mib // memory_mib, MILLI_PER_GPU))
