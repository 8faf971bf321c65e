"""Which nodes would suit a pod that waits. Pure.

Training wants cards that are linked and neighbours that are quiet; inference and interactive work is packed
where something runs already, so that whole nodes stay free; and work that ends is put beside work that ends
at about the same time, so that nodes empty together. Points are small, and nothing is said in doubt: the
hint moves a choice between nodes that suit, it never makes one.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.optimization import Classification, NodeHints, Prediction, WorkloadClass
from gpuloom.model.snapshot import NodeFacts
from services.optimizer.core.workload import Workload, requested_gpus

LEAST_CONFIDENCE = 0.6
MAX_ENDS = 16
_END_SCALE = 0.3
_PACKED = (WorkloadClass.INFERENCE, WorkloadClass.INTERACTIVE, WorkloadClass.IDLE)


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Who is on a node. `busy`: mean utilisation of cards that are used, None if not known."""

    allocated: float
    """Of its cards, 0 to 1."""
    busy: float | None
    ends_in_s: tuple[float, ...] = ()
    """When pods there are expected to end, in order; of those that end at all."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """All nodes as arrays, so that a hint for a thousand of them takes less than a millisecond.

    `busy` is NaN where it is not known; `log_ends` are logarithms of seconds, infinite where there is no end.
    """

    names: tuple[str, ...]
    allocated: Floats
    busy: Floats
    log_ends: Floats


def neighbourhood_of(nodes: Mapping[str, Neighbours]) -> Neighbourhood:
    names = tuple(sorted(nodes))
    log_ends = np.full((len(names), MAX_ENDS), np.inf)
    for row, name in enumerate(names):
        ends = nodes[name].ends_in_s[:MAX_ENDS]
        log_ends[row, : len(ends)] = np.log1p(np.maximum(ends, 0.0))
    return Neighbourhood(
        names=names,
        allocated=np.array([nodes[name].allocated for name in names], dtype=np.float64),
        busy=np.array([nodes[name].busy for name in names], dtype=np.float64),
        log_ends=log_ends,
    )


def hint(
    workload: Workload, classification: Classification, prediction: Prediction, nodes: Neighbourhood
) -> NodeHints:
    if workload.opted_out:
        return NodeHints(reason="the pod opted out")
    kind, confidence = classification.workload_class, classification.confidence
    if confidence < LEAST_CONFIDENCE:
        return NodeHints(reason=f"no opinion: {classification.reason or 'its class is not known'}")
    quiet = kind is WorkloadClass.TRAINING and requested_gpus(workload.request) >= 1
    packed = kind in _PACKED
    lasts_s = None if prediction.duration_s is None else prediction.duration_s.median
    if not quiet and not packed and lasts_s is None:
        return NodeHints(reason=f"no opinion on {kind}")
    amounts = _quiet(nodes) if quiet else _packed(nodes) if packed else np.zeros(len(nodes.names))
    if lasts_s is not None and not packed:
        amounts = (amounts + _ends_together(nodes, lasts_s)) / 2
    rounded = np.clip(amounts, -1.0, 1.0).round(3).tolist()
    points = tuple((name, amount) for name, amount in zip(nodes.names, rounded, strict=True) if amount)
    return NodeHints(points, confidence, _reason(kind, quiet, packed, lasts_s))


def neighbours_of(facts: NodeFacts, ends_in_s: Iterable[float] = ()) -> Neighbours:
    cards = len(facts.state.gpus)
    given = sum(device.milli for each in facts.allocations for device in each.devices)
    ratios = [usage.utilization_ratio for usage in facts.state.usage if usage.utilization_ratio is not None]
    used = [ratio for ratio in ratios if ratio > 0]
    busy = None if not ratios else sum(used) / len(used) if used else 0.0
    allocated = min(1.0, given / (cards * MILLI_PER_GPU)) if cards else 0.0
    return Neighbours(allocated, busy, tuple(sorted(ends_in_s)))


def _quiet(nodes: Neighbourhood) -> Floats:
    """Among nodes in use, those whose cards do little. An empty node is no better: that would unpack."""
    return np.where((nodes.allocated > 0) & ~np.isnan(nodes.busy), 1 - 2 * np.nan_to_num(nodes.busy), 0.0)


def _packed(nodes: Neighbourhood) -> Floats:
    # An empty node is worth more empty.
    return np.where(nodes.allocated > 0, nodes.allocated - 0.5, -1.0)


def _ends_together(nodes: Neighbourhood, lasts_s: float) -> Floats:
    apart = np.abs(nodes.log_ends - math.log1p(max(0.0, lasts_s))).min(axis=1, initial=np.inf)
    return np.where(np.isfinite(apart), 2 * np.exp(-apart / _END_SCALE) - 1, 0.0)


def _reason(kind: WorkloadClass, quiet: bool, packed: bool, lasts_s: float | None) -> str:
    wishes = []
    if quiet:
        wishes.append("quiet neighbours")
    if packed:
        wishes.append("nodes that are in use already")
    if lasts_s is not None and not packed:
        wishes.append(f"neighbours that end in about {lasts_s / 60:.0f} min, too")
    return f"{kind}: prefers {' and '.join(wishes)}"
