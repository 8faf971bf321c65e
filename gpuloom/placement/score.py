"""How good a node is for a pod, one node at a time, and what kube-scheduler is told of many.

The points are made in `points`; `fleet` gives the same for all nodes at once. Never refuses: that is `fit`.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.request import PodRequest, RequestKind
from gpuloom.placement.choose import chosen_card, chosen_cards, share_left_milli
from gpuloom.placement.demand import nominal_milli
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Fit, Refusal, fit
from gpuloom.placement.points import DEFAULT_WEIGHTS, Market, Rise, Rises, ScoreWeights, points
from gpuloom.placement.potential import (
    NodeRoom,
    Prices,
    neutral_prices,
    spread_micro_of_one,
    starved_micro_of_one,
)
from gpuloom.placement.stock import MICRO_PER_GPU
from gpuloom.placement.topology import NEUTRAL_SCORE

__all__ = [
    "DEFAULT_WEIGHTS",
    "MAX_EXTENDER_SCORE",
    "Market",
    "Ranked",
    "ScoreWeights",
    "Scored",
    "best_of",
    "evaluate",
    "extender_scores",
    "in_order",
    "rank",
    "rise",
]

MAX_EXTENDER_SCORE = 10

_ONLY = np.zeros(1, dtype=np.int64)


class Ranked(NamedTuple):
    """A node that fits, and what ranks it."""

    name: str
    total: float


@dataclass(frozen=True, slots=True)
class Scored:
    """A node that fits, with its parts; `total` is what ranks it. All are 0 to 100."""

    name: str
    total: float
    topology: float
    resource: float
    balance: float

    @property
    def ranked(self) -> Ranked:
        return Ranked(self.name, self.total)


Rankable = TypeVar("Rankable", Scored, Ranked)


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
    found = rise(request, node, outcome, market.prices)
    scored = points(request, market, _alone(found), weights)
    return Scored(node.name, *(float(part[0]) for part in scored.parts(_ONLY)))


def in_order(scored: Iterable[Rankable]) -> list[Rankable]:
    """Best first; equals by name."""
    return sorted(scored, key=_rank)


def best_of(scored: Iterable[Scored], count: int) -> list[Scored]:
    """The first `count` of `in_order`, without sorting the rest."""
    return heapq.nsmallest(count, scored, key=_rank)


def extender_scores(ranked: Sequence[Scored] | Sequence[Ranked]) -> dict[str, int]:
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


def falling_scores(ranked: Sequence[Scored]) -> dict[str, int]:
    """The same by place alone, for an order that points did not make: never rising, and one 10."""
    count = len(ranked)
    scores = {
        entry.name: (MAX_EXTENDER_SCORE - 1) * (count - place) // count for place, entry in enumerate(ranked)
    }
    if ranked:
        scores[ranked[0].name] = MAX_EXTENDER_SCORE
    return scores


def _rank(entry: Scored | Ranked) -> tuple[float, str]:
    return -entry.total, entry.name


def rise(request: PodRequest, node: NodeView, outcome: Fit, prices: Prices) -> Rise:
    """By how much placing the request raises the potential of this node: `points.rises` for one alone."""
    effect = _effect(request, node, outcome, prices)
    room = _room(node)
    after = room.less(effect.taken_milli, request.cpu_milli, request.memory_bytes)
    kinds = ((view.gpu.model, view.gpu.architecture) for view in node.gpus if not view.unusable_reason)
    pin_micro = max((prices.pins_micro.get(kind, 0) for kind in kinds), default=0) if prices.pins_micro else 0
    return Rise(
        resource=effect.card_micro
        + spread_micro_of_one(after, prices)
        - spread_micro_of_one(room, prices)
        + pin_micro * effect.taken_milli // MILLI_PER_GPU,
        balance=starved_micro_of_one(after, prices) - starved_micro_of_one(room, prices),
        topology=effect.topology,
        whole_before=effect.whole_before,
        whole_after=effect.whole_after,
    )


@dataclass(frozen=True, slots=True)
class _Effect:
    """What the placement does to the node's cards."""

    topology: float
    card_micro: int
    taken_milli: int
    whole_before: int
    whole_after: int


def _effect(request: PodRequest, node: NodeView, outcome: Fit, prices: Prices) -> _Effect:
    gpu = request.gpu
    whole = sum(
        view.untouched and not view.gpu.mig_enabled and not view.unusable_reason for view in node.gpus
    )
    if gpu.kind is RequestKind.SHARE:
        view = node.gpus[chosen_card(gpu, node, outcome, prices)]
        before, after = view.free_share_milli, share_left_milli(gpu, view)
        card_micro = int(prices.card_micro[after] - prices.card_micro[before])
        return _Effect(NEUTRAL_SCORE, card_micro, before - after, whole, whole - int(view.untouched))
    taken_milli = gpu.count * nominal_milli(gpu)
    if gpu.kind is RequestKind.WHOLE:
        topology = node.links.score(chosen_cards(gpu, node, outcome), gpu.topology)
        card_micro = gpu.count * int(prices.card_micro[0] - prices.card_micro[MILLI_PER_GPU])
        return _Effect(topology, card_micro, taken_milli, whole, whole - gpu.count)
    return _Effect(NEUTRAL_SCORE, taken_milli * (MICRO_PER_GPU // MILLI_PER_GPU), taken_milli, whole, whole)


def _room(node: NodeView) -> NodeRoom:
    host = node.host
    return NodeRoom(
        gpu_milli=sum(view.free_share_milli for view in node.gpus),
        cpu_milli=0 if host is None else max(0, host.cpu_free_milli),
        memory_bytes=0 if host is None else max(0, host.memory_free_bytes),
        host_known=host is not None,
    )


def _alone(found: Rise) -> Rises:
    return Rises(
        resource=np.array([found.resource]),
        balance=np.array([found.balance]),
        topology=np.array([found.topology]),
        whole_before=np.array([found.whole_before]),
        whole_after=np.array([found.whole_after]),
    )
