"""What a left-over share of a card is worth, given the share sizes that pods ask for.

Packing shares onto cards is a cutting-stock problem: cut the demanded pieces from as few cards as possible.
The dual prices of its linear relaxation say what part of a card each size is worth, and a knapsack over those
prices what any left-over is worth: 190 milli that no pod can use are worth nothing, 470 milli that many pods
fill exactly are worth half a card. Prices are found by column generation. Knows no nodes and no pods.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpuloom.model.gpu import MILLI_PER_GPU

MICRO_PER_GPU = 1_000_000
# Rarer sizes than the 32 most wanted change prices by less than the demand's own noise.
MAX_SIZES = 32

# Every round brings one better cutting pattern; it ends after about three rounds a size. The cap keeps a
# degenerate problem from turning in circles, and the prices found until then are still usable.
_MAX_ROUNDS = 400
_EPSILON = 1e-9

Floats = NDArray[np.float64]
Micros = NDArray[np.int64]


def linear_values() -> Micros:
    """What left-overs are worth while nothing is known of demand: their size."""
    return np.arange(MILLI_PER_GPU + 1, dtype=np.int64) * (MICRO_PER_GPU // MILLI_PER_GPU)


def share_values(demand: Mapping[int, float]) -> Micros:
    """By free milli, 0 to 1000, the worth in millionths of a card; `demand` is how often a size is wanted."""
    wanted = {size: weight for size, weight in demand.items() if 0 < size < MILLI_PER_GPU and weight > 0}
    if not wanted:
        return linear_values()
    heaviest = sorted(wanted, key=lambda size: (-wanted[size], size))[:MAX_SIZES]
    sizes = sorted(heaviest)
    prices = _dual_prices(sizes, np.array([wanted[size] for size in sizes]))
    worth = np.minimum(_Knapsack(sizes, prices).worth, 1.0)
    values: Micros = np.rint(worth * MICRO_PER_GPU).astype(np.int64)
    values[MILLI_PER_GPU] = MICRO_PER_GPU
    return values


def _dual_prices(sizes: list[int], demand: Floats) -> Floats:
    """The revised simplex method, from the patterns that cut only one size."""
    patterns = np.diag([float(MILLI_PER_GPU // size) for size in sizes])
    cards = np.linalg.solve(patterns, demand)
    prices = np.ones(len(sizes))
    for _ in range(_MAX_ROUNDS):
        prices = np.maximum(np.linalg.solve(patterns.T, np.ones(len(sizes))), 0.0)
        knapsack = _Knapsack(sizes, prices)
        if knapsack.worth[MILLI_PER_GPU] <= 1.0 + _EPSILON:
            break
        better = knapsack.best_pattern()
        share = np.linalg.solve(patterns, better)
        limits = np.divide(cards, share, out=np.full(len(sizes), np.inf), where=share > _EPSILON)
        leaving = int(np.argmin(limits))
        used = limits[leaving]
        cards = np.maximum(cards - used * share, 0.0)
        cards[leaving] = used
        patterns[:, leaving] = better
    return prices


class _Knapsack:
    """The best worth of pieces in every amount up to a card, each size as often as it goes in.

    A size is offered once, twice, four times and so on: that reaches every number of pieces in few steps.
    """

    def __init__(self, sizes: list[int], prices: Floats) -> None:
        self._steps = [
            (position, copies)
            for position, size in enumerate(sizes)
            for copies in (1 << power for power in range(MILLI_PER_GPU.bit_length()))
            if size * copies <= MILLI_PER_GPU
        ]
        self._sizes = sizes
        worth = np.zeros(MILLI_PER_GPU + 1)
        self._stages = [worth]
        for position, copies in self._steps:
            width = sizes[position] * copies
            before, worth = worth, worth.copy()
            worth[width:] = np.maximum(before[width:], before[:-width] + prices[position] * copies)
            self._stages.append(worth)
        self.worth = worth

    def best_pattern(self) -> Floats:
        """How many pieces of each size make up the worth of a whole card."""
        pattern = np.zeros(len(self._sizes))
        amount = MILLI_PER_GPU
        stages = list(pairwise(self._stages))
        for (position, copies), (before, after) in zip(reversed(self._steps), reversed(stages), strict=True):
            if after[amount] > before[amount]:
                pattern[position] += copies
                amount -= self._sizes[position] * copies
        return pattern
