"""Strategies: in which order a pod wants the nodes that fit it, before our score breaks ties. Pure.

A strategy never makes a node fit, and a pod without one gets our score alone. A plug-in is an entry point of
the group `gpuloom.strategies`: a function of this type.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

ENTRY_POINTS = "gpuloom.strategies"

LEAST_LOADED = "leastLoaded"
RANDOM = "random"
COST_OPTIMIZED = "costOptimized"
TOPOLOGY = "topology"
FRAGMENTATION = "fragmentation"
LABEL_CHEAP = "gpu-orchestrator/cheap-node"
"""On a node, "true": costOptimized prefers it."""

Floats = NDArray[np.float64]


class Candidate(Protocol):
    """A node that fits, as a plug-in sees it."""

    @property
    def name(self) -> str: ...

    @property
    def free_gpus(self) -> float: ...

    @property
    def cheap(self) -> bool: ...


Strategy = Callable[[Sequence[Candidate], str], Sequence[Candidate]]
"""Nodes that fit, and the pod's or workload's UID, to the same nodes with the most wanted one first."""


@dataclass(frozen=True, slots=True)
class FittingNode:
    name: str
    free_gpus: float
    cheap: bool


@dataclass(frozen=True, slots=True, eq=False)
class Fitting:
    """Nodes that fit, one entry each: free GPUs, topology points, and how little the placement breaks up."""

    names: Sequence[str]
    free_gpus: Floats
    topology: Floats
    resource: Floats


Order = Callable[[Fitting], Floats]
"""How much each node is wanted; only comparisons matter, and equals go by our score."""


def order_of(
    strategy: str, uid: str, cheap_nodes: Collection[str], plug_ins: Mapping[str, Strategy]
) -> Order | None:
    """None for a strategy that nobody knows: then our score decides."""
    match strategy:
        case "leastLoaded":
            return _free_gpus
        case "random":
            return lambda nodes: np.array([-_hashed(uid, name) for name in nodes.names], dtype=np.float64)
        case "costOptimized":
            return lambda nodes: _cheap_first(nodes, cheap_nodes)
        case "topology":
            return lambda nodes: nodes.topology
        case "fragmentation":
            return lambda nodes: nodes.resource
        case _:
            plug_in = plug_ins.get(strategy)
            return None if plug_in is None else lambda nodes: _by(plug_in, nodes, uid, cheap_nodes)


def least_loaded(nodes: Sequence[Candidate], uid: str) -> Sequence[Candidate]:
    return sorted(nodes, key=lambda node: (-node.free_gpus, node.name))


def random_order(nodes: Sequence[Candidate], uid: str) -> Sequence[Candidate]:
    """Another order for each pod, and always the same for one."""
    return sorted(nodes, key=lambda node: _hashed(uid, node.name))


def cost_optimized(nodes: Sequence[Candidate], uid: str) -> Sequence[Candidate]:
    return sorted(nodes, key=lambda node: (not node.cheap, -node.free_gpus, node.name))


def fullest_first(nodes: Sequence[Candidate], uid: str) -> Sequence[Candidate]:
    """Breaks up as little as can be, where no more is known than how many GPUs are free."""
    return sorted(nodes, key=lambda node: (node.free_gpus, node.name))


WITHOUT_DEVICES: Mapping[str, Strategy] = {
    LEAST_LOADED: least_loaded,
    RANDOM: random_order,
    COST_OPTIMIZED: cost_optimized,
    # Among more free GPUs there is the better set.
    TOPOLOGY: least_loaded,
    FRAGMENTATION: fullest_first,
}
"""For those who know no more of a node than its number of free GPUs."""


def _free_gpus(nodes: Fitting) -> Floats:
    return nodes.free_gpus


def _cheap_first(nodes: Fitting, cheap_nodes: Collection[str]) -> Floats:
    most = float(nodes.free_gpus.max(initial=0.0)) + 1.0
    bonus = [most if name in cheap_nodes else 0.0 for name in nodes.names]
    return np.asarray(nodes.free_gpus + np.array(bonus), dtype=np.float64)


def _by(plug_in: Strategy, nodes: Fitting, uid: str, cheap_nodes: Collection[str]) -> Floats:
    """By its order; a node that it leaves out comes last."""
    found = [
        FittingNode(name, free, name in cheap_nodes)
        for name, free in zip(nodes.names, nodes.free_gpus.tolist(), strict=True)
    ]
    places = {node.name: place for place, node in enumerate(plug_in(found, uid))}
    return np.array([-float(places.get(name, len(found))) for name in nodes.names])


def _hashed(uid: str, name: str) -> float:
    return float(int.from_bytes(hashlib.blake2b(f"{uid}/{name}".encode(), digest_size=6).digest(), "big"))
