"""From what a placement does to a node to points: topology, resource and balance, each 0 to 100, weighted.

topology  what the contract's scale says of the devices that would be chosen; 50 for one device.
resource  how little the placement raises the resource part of the potential.
balance   how little it raises the part of GPUs starved of CPU and memory.

Resource and balance are cut from the same ruler: with the contract's weights their weighted sum falls exactly
as the potential rises, so that of two nodes with equal topology the one with the smaller rise always wins.
The ruler's length depends on the request and on prices alone, never on the nodes it is held against.
Works on arrays, one entry per node; refuses nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.request import PodRequest, RequestKind
from gpuloom.model.topology import MAX_GPUS_PER_NODE
from gpuloom.placement.demand import nominal_milli
from gpuloom.placement.potential import (
    CPU_WEIGHT,
    MEMORY_WEIGHT,
    TIGHT_CARD_WEIGHT,
    Micros,
    Prices,
    Room,
    Value,
    spread_micro,
    starved_micro,
)
from gpuloom.placement.stock import MICRO_PER_GPU

# Hints and prices are advice: each moves a node by at most so many of the 100 points.
MAX_ADVICE = 10.0

_MAX_POINTS = 100.0
# Every rounded term is off by half a millionth at most.
_ROUNDING_MICRO = 8

Floats = NDArray[np.float64]
Amounts = NDArray[np.int64]


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


DEFAULT_WEIGHTS = ScoreWeights()


@dataclass(frozen=True, slots=True, eq=False)
class Market:
    """What scoring knows beside the node: prices, and what taking the last nodes for a set of cards costs."""

    prices: Prices
    sets_micro: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """What the placement does to each node.

    `room` is what is free until now; `card_micro` is by how much the cards' own part of the potential rises;
    `whole_before` and `whole_after` are numbers of fully free cards.
    """

    room: Room
    pin_micro: Micros
    topology: Floats
    card_micro: Micros
    taken_milli: Amounts
    whole_before: Amounts
    whole_after: Amounts


@dataclass(frozen=True, slots=True, eq=False)
class Rises:
    """By how much the parts of the potential rise, but for the sets that a node can then no longer hold."""

    resource: Micros
    balance: Micros
    topology: Floats
    whole_before: Amounts
    whole_after: Amounts


@dataclass(frozen=True, slots=True)
class Rise:
    """`Rises` of a single node."""

    resource: int
    balance: int
    topology: float
    whole_before: int
    whole_after: int


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """`total` ranks the nodes. What it is made of is worked out for those that somebody looks at.

    `resource_left` and `balance_left` are how far the rises stay below the largest ones possible.
    """

    total: Floats
    topology: Floats
    resource_left: Micros
    balance_left: Micros
    points_per_micro: float
    weight_sum: float

    @property
    def per_gpu(self) -> float:
        """By how much the total falls when the potential rises by a whole GPU."""
        return self.points_per_micro * MICRO_PER_GPU / self.weight_sum

    def parts(self, entries: Amounts) -> tuple[Floats, Floats, Floats, Floats]:
        """Total, topology, resource and balance of these entries, each 0 to 100."""
        resource = self.resource_left[entries] * self.points_per_micro / DEFAULT_WEIGHTS.resource
        balance = self.balance_left[entries] * self.points_per_micro / DEFAULT_WEIGHTS.balance
        return (
            self.total[entries],
            self.topology[entries],
            np.minimum(np.maximum(resource, 0), _MAX_POINTS),
            np.minimum(np.maximum(balance, 0), _MAX_POINTS),
        )


def rises(request: PodRequest, prices: Prices, effects: Effects) -> Rises:
    after = effects.room.less(effects.taken_milli, request.cpu_milli, request.memory_bytes)
    resource = effects.card_micro + spread_micro(after, prices) - spread_micro(effects.room, prices)
    resource += effects.pin_micro * effects.taken_milli // MILLI_PER_GPU
    return Rises(
        resource=resource,
        balance=starved_micro(after, prices) - starved_micro(effects.room, prices),
        topology=effects.topology,
        whole_before=effects.whole_before,
        whole_after=effects.whole_after,
    )


def points(request: PodRequest, market: Market, found: Rises, weights: ScoreWeights) -> Points:
    ruler = _ruler(request, market)
    resource_left = ruler.resource_top - found.resource
    if market.sets_micro:
        able_micro = np.array(_able_micro(market), dtype=np.int64)
        resource_left -= able_micro[found.whole_before] - able_micro[found.whole_after]
    balance_left = ruler.balance_top - found.balance
    parts = resource_left.astype(np.float64), balance_left.astype(np.float64)
    total = _total(found.topology, *parts, ruler, weights)
    return Points(total, found.topology, resource_left, balance_left, ruler.points_per_micro, weights.sum)


class Scale:
    """`points` of single nodes, one after the other."""

    def __init__(self, request: PodRequest, market: Market, weights: ScoreWeights) -> None:
        self._weights = weights
        self._ruler = _ruler(request, market)
        self._able_micro = _able_micro(market) if market.sets_micro else None

    def total(self, found: Rise) -> float:
        ruler = self._ruler
        resource_left = ruler.resource_top - found.resource
        if self._able_micro is not None:
            resource_left -= self._able_micro[found.whole_before] - self._able_micro[found.whole_after]
        balance_left = ruler.balance_top - found.balance
        return _total(found.topology, float(resource_left), float(balance_left), ruler, self._weights)


def with_advice(scored: Points, names: Sequence[str], advice: Iterable[Mapping[str, float]]) -> Points:
    """The same with bounded points added to the totals by node name; what is not named stays as it is."""
    given = [of_node for of_node in advice if of_node]
    if not given:
        return scored
    total = scored.total
    for of_node in given:
        total = total + np.clip([of_node.get(name, 0.0) for name in names], -MAX_ADVICE, MAX_ADVICE)
    return replace(scored, total=np.maximum(total, 0.0))


def _total(
    topology: Value, resource_left: Value, balance_left: Value, ruler: "_Ruler", weights: ScoreWeights
) -> Value:
    # Multiplied once, after what were integers was added: equal sums stay equal, and unequal ones unequal.
    parts = (weights.resource / DEFAULT_WEIGHTS.resource) * resource_left
    parts = parts + (weights.balance / DEFAULT_WEIGHTS.balance) * balance_left
    return (weights.topology * topology + ruler.points_per_micro * parts) / weights.sum


def _able_micro(market: Market) -> list[int]:
    """By a node's number of fully free cards: the prices of all sets that it could hold, added up."""
    prices = [0] * (MAX_GPUS_PER_NODE + 1)
    for count, price_micro in market.sets_micro:
        # No node could ever hold more, so nothing takes that away.
        if count <= MAX_GPUS_PER_NODE:
            prices[count] += price_micro
    return list(accumulate(prices))


@dataclass(frozen=True, slots=True)
class _Ruler:
    """The largest rises possible, which get 0 points, and how many weighted points a millionth GPU is."""

    resource_top: int
    balance_top: int
    points_per_micro: float


def _ruler(request: PodRequest, market: Market) -> _Ruler:
    """Both parts have the same unit and fit into 0 to 100, whatever the node."""
    gpu = request.gpu
    gpus = 1.0 if gpu.kind is RequestKind.SHARE else gpu.count * nominal_milli(gpu) / MILLI_PER_GPU
    cpu_gpus = request.cpu_milli / 1000 / market.prices.cores_per_gpu
    memory_gpus = request.memory_bytes / (1 << 20) / market.prices.mib_per_gpu
    lowest_cards, highest_cards = -TIGHT_CARD_WEIGHT * gpus, gpus
    cpu_spread = market.prices.busy_cpu * math.sqrt(cpu_gpus)
    falling = market.prices.busy_gpus * math.sqrt(gpus) + max(0.0, cpu_spread)
    sets = sum(price_micro for _, price_micro in market.sets_micro) / MICRO_PER_GPU
    pins = market.prices.highest_pin_micro * gpus / MICRO_PER_GPU
    resource_top = _upper(highest_cards + pins + sets + max(0.0, -cpu_spread))
    resource_span = resource_top - _lower(lowest_cards - falling)
    balance_top = _upper(CPU_WEIGHT * cpu_gpus + MEMORY_WEIGHT * memory_gpus)
    balance_span = balance_top - _lower(-(CPU_WEIGHT + MEMORY_WEIGHT) * gpus)
    points_per_micro = _MAX_POINTS * min(
        DEFAULT_WEIGHTS.resource / resource_span, DEFAULT_WEIGHTS.balance / balance_span
    )
    return _Ruler(resource_top, balance_top, points_per_micro)


def _upper(gpus: float) -> int:
    return math.ceil(gpus * MICRO_PER_GPU) + _ROUNDING_MICRO


def _lower(gpus: float) -> int:
    return math.floor(gpus * MICRO_PER_GPU) - _ROUNDING_MICRO
