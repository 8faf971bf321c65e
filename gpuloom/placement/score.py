"""How good a node is for a pod: topology, resource and balance, each 0 to 100, weighted.

topology  what the contract's scale says of the devices that would be chosen; 50 for one device.
resource  half for packing: the share of the node's usable GPU capacity in use afterwards, so that empty nodes
          stay empty for big jobs; half for stranding: a placement that uses up the rest of a shared card is
          better than one that leaves things as they are, and that than one that leaves a new rest.
balance   how close the used shares of CPU, memory and GPU come to each other, so that none runs out while
          the others lie idle; 50 where CPU and memory are not known.
Never refuses: that is `fit`.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.request import PodRequest, RequestKind
from gpuloom.placement.choose import chosen_card, chosen_cards, chosen_slices
from gpuloom.placement.devices import GpuView, HostCapacity, NodeView
from gpuloom.placement.fit import Fit, Refusal, fit
from gpuloom.placement.topology import NEUTRAL_SCORE

MAX_EXTENDER_SCORE = 10


@dataclass(frozen=True, slots=True)
class ScoreWeights:
    """Relative weights; only their proportions matter."""

    topology: float = 40.0
    resource: float = 35.0
    balance: float = 25.0

    def __post_init__(self) -> None:
        if min(self.topology, self.resource, self.balance) < 0 or self.sum <= 0:
            raise ValueError("score weights must not be negative, and one must be above 0")

    @property
    def sum(self) -> float:
        return self.topology + self.resource + self.balance


@dataclass(frozen=True, slots=True)
class Scored:
    """A node that fits, with its parts; `total` is what ranks it. All are 0 to 100."""

    name: str
    total: float
    topology: float
    resource: float
    balance: float


DEFAULT_WEIGHTS = ScoreWeights()


def rank(
    request: PodRequest, nodes: Iterable[NodeView], weights: ScoreWeights = DEFAULT_WEIGHTS
) -> list[Scored]:
    """The nodes that fit, best first; equals by name."""
    outcomes = (evaluate(request, node, weights) for node in nodes)
    return in_order(outcome for outcome in outcomes if isinstance(outcome, Scored))


def evaluate(
    request: PodRequest, node: NodeView, weights: ScoreWeights = DEFAULT_WEIGHTS
) -> Scored | Refusal:
    """Fit and score of one node in one go."""
    outcome = fit(request, node)
    if isinstance(outcome, Refusal):
        return outcome
    effect = _effect(request, node, outcome)
    used_ratio = _used_ratio(node, effect.taken_milli)
    # A rest grows or shrinks by less than one card, so the change maps onto 0 to 1.
    stranding = (1.0 - effect.stranded_milli / MILLI_PER_GPU) / 2.0
    resource = 50.0 * used_ratio + 50.0 * stranding
    balance = NEUTRAL_SCORE if node.host is None else _balance(request, node.host, used_ratio)
    total = weights.topology * effect.topology + weights.resource * resource + weights.balance * balance
    return Scored(node.name, total / weights.sum, effect.topology, resource, balance)


def in_order(scored: Iterable[Scored]) -> list[Scored]:
    """Best first; equals by name."""
    return sorted(scored, key=_rank)


def best_of(scored: Iterable[Scored], count: int) -> list[Scored]:
    """The first `count` of `in_order`, without sorting the rest."""
    return heapq.nsmallest(count, scored, key=_rank)


def extender_scores(ranked: Sequence[Scored]) -> dict[str, int]:
    """kube-scheduler's integers 0 to 10 for an answer of `rank`.

    It breaks ties at random, so only the first has 10; the others get their share of its total, rounded down.
    """
    if not ranked:
        return {}
    best = ranked[0].total
    scores = {
        entry.name: min(MAX_EXTENDER_SCORE - 1, int(MAX_EXTENDER_SCORE * entry.total / best))
        if best > 0
        else 0
        for entry in ranked
    }
    scores[ranked[0].name] = MAX_EXTENDER_SCORE
    return scores


def _rank(entry: Scored) -> tuple[float, str]:
    return -entry.total, entry.name


@dataclass(frozen=True, slots=True)
class _Effect:
    """What the placement would do to the node's GPUs."""

    topology: float
    taken_milli: int
    stranded_milli: int = 0


def _effect(request: PodRequest, node: NodeView, outcome: Fit) -> _Effect:
    gpu = request.gpu
    if gpu.kind is RequestKind.WHOLE:
        chosen = chosen_cards(gpu, node, outcome)
        return _Effect(node.links.score(chosen, gpu.topology), gpu.count * MILLI_PER_GPU)
    if gpu.kind is RequestKind.SHARE:
        free_milli = chosen_card(node, outcome).free_milli
        rest_before = free_milli if free_milli < MILLI_PER_GPU else 0
        return _Effect(NEUTRAL_SCORE, gpu.milli, free_milli - gpu.milli - rest_before)
    taken = sum(
        MILLI_PER_GPU * instance.slices // _cut_slices(view)
        for view, instance in chosen_slices(gpu, node, outcome)
    )
    return _Effect(NEUTRAL_SCORE, taken)


def _used_ratio(node: NodeView, taken_milli: int) -> float:
    """Of the usable cards' capacity, after the placement."""
    used, total = taken_milli, 0
    for view in node.gpus:
        if not view.unusable_reason:
            total += MILLI_PER_GPU
            used += _used_milli(view)
    return min(1.0, used / total)


def _used_milli(view: GpuView) -> int:
    """In MIG mode what counts are the instances that exist: nothing else of the card can be given out."""
    if not view.gpu.mig_enabled:
        return MILLI_PER_GPU - view.free_milli
    if not view.gpu.mig_instances:
        return 0
    free = sum(instance.slices for instance in view.free_mig)
    return MILLI_PER_GPU - MILLI_PER_GPU * free // _cut_slices(view)


def _cut_slices(view: GpuView) -> int:
    return sum(instance.slices for instance in view.gpu.mig_instances)


def _balance(request: PodRequest, host: HostCapacity, gpu_ratio: float) -> float:
    ratios = (
        gpu_ratio,
        _ratio_after(host.cpu_total_milli, host.cpu_free_milli, request.cpu_milli),
        _ratio_after(host.memory_total_bytes, host.memory_free_bytes, request.memory_bytes),
    )
    return 100.0 * (1.0 - (max(ratios) - min(ratios)))


def _ratio_after(total: int, free: int, taken: int) -> float:
    return min(1.0, max(0.0, (total - free + taken) / total)) if total > 0 else 1.0
