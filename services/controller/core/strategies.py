"""Strategies by name: in which order nodes that could take a workload are wanted.

Placement reads a strategy from the pod's annotation. These functions serve the setting that turns it into a
node affinity where another scheduler places pods, and they are the contract of plug-ins: an entry point of
the group `gpuloom.strategies` is a function of this type.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence

from services.controller.core.nodes import GpuNode

LEAST_LOADED = "leastLoaded"
RANDOM = "random"
COST_OPTIMIZED = "costOptimized"
ENTRY_POINTS = "gpuloom.strategies"

Strategy = Callable[[Sequence[GpuNode], str], Sequence[GpuNode]]
"""Nodes that fit, and the workload's UID, to the same nodes with the most wanted one first."""


def least_loaded(nodes: Sequence[GpuNode], uid: str) -> Sequence[GpuNode]:
    return sorted(nodes, key=lambda node: (-node.free_gpus, node.name))


def random_order(nodes: Sequence[GpuNode], uid: str) -> Sequence[GpuNode]:
    """Another order for each workload, and always the same for one."""
    return sorted(nodes, key=lambda node: hashlib.sha256(f"{uid}/{node.name}".encode()).digest())


def cost_optimized(nodes: Sequence[GpuNode], uid: str) -> Sequence[GpuNode]:
    return sorted(nodes, key=lambda node: (not node.cheap, -node.free_gpus, node.name))


OWN: Mapping[str, Strategy] = {
    LEAST_LOADED: least_loaded,
    RANDOM: random_order,
    COST_OPTIMIZED: cost_optimized,
}


def choose_node(strategy: Strategy, nodes: Sequence[GpuNode], gpus: int, uid: str) -> GpuNode | None:
    fitting = [node for node in nodes if node.ready and node.free_gpus >= gpus]
    ordered = strategy(fitting, uid) if fitting else ()
    return ordered[0] if ordered else None
