"""How good a node is for a pod, one node at a time, and what kube-scheduler is told of many.

The points are made in `points`; `fleet` gives the same for all nodes at once. Never refuses: that is `fit`.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.request import PodRequest, RequestKind
from gpuloom.placement.choose import chosen_card, chosen_cards, share_left_milli
from gpuloom.placement.demand import nominal_milli
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Fit, Refusal, fit
from gpuloom.placement.points import DEFAULT_WEIGHTS, Effects, Market, ScoreWeights, points, rises
from gpuloom.placement.potential import Prices, Room, neutral_prices
from gpuloom.placement.stock import MICRO_PER_GPU
from gpuloom.placement.topology import NEUTRAL_SCORE

__all__ = [
    "DEFAULT_WEIGHTS",
    "MAX_EXTENDER_SCORE",
    "Market",
    "ScoreWeights",
    "Scored",
    "best_of",
    "effects_of",
    "evaluate",
    "extender_scores",
    "in_order",
    "rank",
]

MAX_EXTENDER_SCORE = 10

_ONLY = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Scored:
    """A node that fits, with its parts; `total` is what ranks it. All are 0 to 100."""

    name: str
    total: float
    topology: float
    resource: float
    balance: float


def rank(
    request: PodRequest, nodes: Iterable[NodeView], weights: ScoreWeights = DEFAULT_WEIGHTS
) -> list[Scored]:
    """The nodes that fit, best first; equals by name."""
    outcomes = (evaluate(request, node, weights) for node in nodes)
    return in_order(outcome for outcome in outcomes if isinstance(outcome, Scored))


def evaluate(
    request: PodRequest,
    node: NodeView,
    weights: ScoreWeights = DEFAULT_WEIGHTS,
    market: Market | None = None,
) -> Scored | Refusal:
    """Fit and score of one node in one go."""
    outcome = fit(request, node)
    if isinstance(outcome, Refusal):
        return outcome
    market = market or Market(neutral_prices())
    found = rises(request, market.prices, effects_of(request, node, outcome, market.prices))
    scored = points(request, market, found, weights)
    return Scored(node.name, *(float(part[0]) for part in scored.parts(_ONLY)))


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


def effects_of(request: PodRequest, node: NodeView, outcome: Fit, prices: Prices) -> Effects:
    """What placing the request does to this node, as the only entry of arrays."""
    gpu, room = request.gpu, _room(node)
    whole = sum(
        view.untouched and not view.gpu.mig_enabled and not view.unusable_reason for view in node.gpus
    )
    topology, whole_after = NEUTRAL_SCORE, whole
    taken_milli = gpu.count * nominal_milli(gpu)
    card_micro = taken_milli * (MICRO_PER_GPU // MILLI_PER_GPU)
    if gpu.kind is RequestKind.WHOLE:
        topology = node.links.score(chosen_cards(gpu, node, outcome), gpu.topology)
        whole_after = whole - gpu.count
        card_micro = gpu.count * int(prices.card_micro[0] - prices.card_micro[MILLI_PER_GPU])
    elif gpu.kind is RequestKind.SHARE:
        view = node.gpus[chosen_card(gpu, node, outcome, prices)]
        before, after = view.free_share_milli, share_left_milli(gpu, view)
        whole_after = whole - int(view.untouched)
        card_micro = int(prices.card_micro[after] - prices.card_micro[before])
        taken_milli = before - after
    kinds = ((view.gpu.model, view.gpu.architecture) for view in node.gpus if not view.unusable_reason)
    return Effects(
        room=room,
        pin_micro=np.array([max((prices.pins_micro.get(kind, 0) for kind in kinds), default=0)]),
        topology=np.array([topology]),
        card_micro=np.array([card_micro]),
        taken_milli=np.array([taken_milli]),
        whole_before=np.array([whole]),
        whole_after=np.array([whole_after]),
    )


def _room(node: NodeView) -> Room:
    host = node.host
    return Room(
        gpu_milli=np.array([sum(view.free_share_milli for view in node.gpus)]),
        cpu_milli=np.array([0 if host is None else max(0, host.cpu_free_milli)]),
        memory_bytes=np.array([0 if host is None else max(0, host.memory_free_bytes)]),
        host_known=np.array([host is not None]),
    )
