"""The node of a workload by its strategy, where another scheduler places pods and a node affinity says so.

Placement reads a strategy from the pod's annotation; this serves the setting alone.
"""

from collections.abc import Sequence

from gpuloom.placement.strategies import Strategy
from services.controller.core.nodes import GpuNode


def choose_node(strategy: Strategy, nodes: Sequence[GpuNode], gpus: int, uid: str) -> GpuNode | None:
    fitting = {node.name: node for node in nodes if node.ready and node.free_gpus >= gpus}
    ordered = strategy(list(fitting.values()), uid) if fitting else ()
    return next((fitting[node.name] for node in ordered if node.name in fitting), None)
