"""Which GPUs of a node belong together.

For one link shape this answers, exactly: the best set of k GPUs among those free, and how good a set is on
the contract's scale of 0 to 100. Sets are bit masks over the GPUs' positions.

A set is better than another by, in this order:
 1. if the topology is required: every pair has the link that was asked for;
 2. the pairs' sum of what was asked for (nothing, NVLinks, NUMA closeness, PCIe closeness);
 3. its link score: the sum over its pairs of the PCIe level (SYS 10 to one board 60) plus 100 per NVLink;
 4. the link score of the GPUs that stay free, so that what remains is well connected too;
 5. the lower positions, compared from the lowest upward.

The chosen set comes first and the remainder second. On a DGX-1V with GPUs 0, 2, 4, 5 free, two GPUs are
therefore {0, 4} (two NVLinks, score 210), although {4, 5} would leave the better pair {0, 2}.

Up to 8 GPUs the answers are arrays over all masks, built at first use; up to 16 GPUs each question is
searched exhaustively and remembered; above, sets are grown greedily and may miss the optimum.
Never looks at who owns a GPU.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gpuloom.model.request import TopologyPreference
from gpuloom.model.topology import PcieLevel, Topology, pair_index

MAX_TABLE_GPUS = 8
MAX_EXACT_GPUS = 16
NEUTRAL_SCORE = 50.0

_SHAPES_REMEMBERED = 64
_ANSWERS_REMEMBERED = 4096
_PCIE_SCORE = 10
_NVLINK_SCORE = 100
# Keeps every sum below 2^21 at 16 GPUs (120 pairs), so that the order above fits into one 64-bit number.
_MAX_LINKS_COUNTED = 100
_SUM_BITS = 21
_WISH_BITS = 15

# The five steps from SYS to one board; an unknown level counts as the farthest.
_LATENCY_STEPS = int(PcieLevel.BOARD) - int(PcieLevel.SYS)

Weights = NDArray[np.int64]
Masks = NDArray[np.int64]


class TopologyTable:
    """Answers for one link shape; nodes of equal shape share it. Use `for_shape`."""

    def __init__(self, topology: Topology, numa: tuple[int | None, ...]) -> None:
        self.gpu_count = topology.gpu_count
        self._links = _matrix(topology, lambda a, b: _link_score(topology, a, b))
        self._wishes = {
            TopologyPreference.NVLINK: _matrix(topology, lambda a, b: _nvlinks(topology, a, b)),
            TopologyPreference.NUMA: _matrix(topology, lambda a, b: _numa_weight(topology, numa, a, b)),
            TopologyPreference.PCIE: _matrix(topology, lambda a, b: _pcie_weight(topology, numa, a, b)),
        }
        self._linked = {
            TopologyPreference.NVLINK: _matrix(topology, lambda a, b: int(_nvlinks(topology, a, b) > 0)),
            TopologyPreference.NUMA: _matrix(topology, lambda a, b: int(_one_numa(numa, a, b))),
            TopologyPreference.PCIE: _matrix(topology, lambda a, b: int(_one_switch(topology, a, b))),
        }
        self._choosers: dict[tuple[TopologyPreference, bool], Callable[[int, int], int]] = {}
        self._score = lru_cache(maxsize=_ANSWERS_REMEMBERED)(self._computed_score)

    @staticmethod
    def for_shape(topology: Topology, numa: tuple[int | None, ...]) -> "TopologyTable":
        """The table of this shape. `numa` has one entry per GPU, None where it is not known."""
        return _table_of_shape(topology, numa)

    def best(
        self,
        free: int,
        count: int,
        preference: TopologyPreference = TopologyPreference.NONE,
        required: bool = False,
    ) -> int:
        """The best `count` of the GPUs in mask `free`.

        0 if there are too few, or if the topology is required and no such set has it.
        """
        if count < 1 or free.bit_count() < count:
            return 0
        required = required and preference is not TopologyPreference.NONE
        chooser = self._choosers.get((preference, required))
        if chooser is None:
            chooser = self._choosers[preference, required] = self._chooser(preference, required)
        chosen = chooser(free, count)
        return 0 if required and not self.satisfies(chosen, preference) else chosen

    def best_by_mask(self, count: int, preference: TopologyPreference, required: bool) -> NDArray[np.uint8]:
        """`best` for every mask of free GPUs, for shapes of at most 8."""
        masks = range(1 << self.gpu_count)
        return np.array([self.best(free, count, preference, required) for free in masks], dtype=np.uint8)

    def score_by_mask(self, preference: TopologyPreference) -> NDArray[np.float64]:
        """`score` of every set, for shapes of at most 8."""
        masks = range(1 << self.gpu_count)
        return np.array([self.score(chosen, preference) for chosen in masks], dtype=np.float64)

    def score(self, chosen: int, preference: TopologyPreference) -> float:
        """How well the set meets the preference, 0 to 100; 50 where there is nothing to prefer."""
        return self._score(chosen, preference)

    def satisfies(self, chosen: int, preference: TopologyPreference) -> bool:
        """Whether every pair has an NVLink, is on one NUMA node, or is under one PCIe switch."""
        if preference is TopologyPreference.NONE:
            return True
        size = chosen.bit_count()
        return _pair_sum(self._linked[preference], chosen) == size * (size - 1) // 2

    def link_score(self, chosen: int) -> int:
        """Sum over the set's pairs: PCIe level plus 100 per NVLink."""
        return _pair_sum(self._links, chosen)

    def _computed_score(self, chosen: int, preference: TopologyPreference) -> float:
        size = chosen.bit_count()
        if preference is TopologyPreference.NONE or size < 2 or not self._linked[preference].any():
            return NEUTRAL_SCORE
        wished = _pair_sum(self._wishes[preference], chosen)
        pairs = size * (size - 1) // 2
        if preference is TopologyPreference.NVLINK:
            best = self.best((1 << self.gpu_count) - 1, size, preference)
            return NEUTRAL_SCORE + 50.0 * wished / max(wished, _pair_sum(self._wishes[preference], best), 1)
        if preference is TopologyPreference.NUMA:
            return NEUTRAL_SCORE + 20.0 * wished / (_LATENCY_STEPS * pairs)
        return NEUTRAL_SCORE + 10.0 * wished / pairs

    def _chooser(self, preference: TopologyPreference, required: bool) -> Callable[[int, int], int]:
        wishes = self._wishes.get(preference, np.zeros_like(self._links))
        linked = self._linked[preference] if required else None
        if self.gpu_count <= MAX_TABLE_GPUS:
            return _Table(_SetValues(self._links, wishes, linked)).best
        if self.gpu_count <= MAX_EXACT_GPUS:
            values = _SetValues(self._links, wishes, linked)
            return lru_cache(maxsize=_ANSWERS_REMEMBERED)(values.search)
        return _Greedy(self._links, wishes, linked).best


class _SetValues:
    """The value of every set as one number: larger is better by rules 1 to 3 of the module's order."""

    def __init__(self, links: Weights, wishes: Weights, linked: Weights | None) -> None:
        self.gpu_count = len(links)
        self.links = _sums_over_masks(links)
        self.value = (_sums_over_masks(wishes) << _SUM_BITS) + self.links
        if linked is not None:
            sizes = _sums_over_bits(np.ones(self.gpu_count, dtype=np.int64))
            whole = _sums_over_masks(linked) == sizes * (sizes - 1) // 2
            self.value = self.value + (whole.astype(np.int64) << (_SUM_BITS + _WISH_BITS))
        self._sets: dict[int, Masks] = {}

    def search(self, free: int, count: int) -> int:
        """Try every set; `argmax` takes the first of equals, and sets come lowest positions first."""
        sets = self.sets(count)
        sets = sets[sets & ~free == 0]
        order = (self.value[sets] << _SUM_BITS) + self.links[free ^ sets]
        return int(sets[np.argmax(order)])

    def sets(self, count: int) -> Masks:
        if count not in self._sets:
            chosen = combinations(range(self.gpu_count), count)
            self._sets[count] = np.array(
                [sum(1 << i for i in positions) for positions in chosen], dtype=np.int64
            )
        return self._sets[count]


class _Table:
    """best[k - 1][mask of free GPUs] is the chosen mask, for all of them."""

    def __init__(self, values: _SetValues) -> None:
        self._best = [self._column(values, count) for count in range(1, values.gpu_count + 1)]

    def best(self, free: int, count: int) -> int:
        return int(self._best[count - 1][free])

    @staticmethod
    def _column(values: _SetValues, count: int) -> NDArray[np.uint8]:
        sets = values.sets(count)
        free = np.arange(1 << values.gpu_count, dtype=np.int64)[:, None]
        order = (values.value[sets] << _SUM_BITS) + values.links[free & ~sets]
        order[(sets & ~free) != 0] = -1
        chosen = sets[np.argmax(order, axis=1)]
        return np.where(order.max(axis=1) >= 0, chosen, 0).astype(np.uint8)


class _Greedy:
    """Grows a set from every GPU by the neighbour that adds most; keeps the best by the same order."""

    def __init__(self, links: Weights, wishes: Weights, linked: Weights | None) -> None:
        required = linked if linked is not None else np.zeros_like(links)
        self._gain = [
            [(int(required[a, b]), int(wishes[a, b]), int(links[a, b])) for b in range(len(links))]
            for a in range(len(links))
        ]

    def best(self, free: int, count: int) -> int:
        positions = [i for i in range(len(self._gain)) if free >> i & 1]
        grown = (self._grow(first, positions, count) for first in positions)
        return max(grown, key=lambda found: found[0])[1]

    def _grow(self, first: int, positions: list[int], count: int) -> tuple[tuple[int, ...], int]:
        gains = {i: self._gain[first][i] for i in positions if i != first}
        value, chosen = (0, 0, 0), 1 << first
        for _ in range(count - 1):
            nearest = max(gains, key=lambda i: (gains[i], -i))
            value = _added(value, gains.pop(nearest))
            chosen |= 1 << nearest
            gains = {i: _added(gain, self._gain[nearest][i]) for i, gain in gains.items()}
        return value, chosen


def _added(a: tuple[int, int, int], b: tuple[int, int, int]) -> tuple[int, int, int]:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


@lru_cache(maxsize=_SHAPES_REMEMBERED)
def _table_of_shape(topology: Topology, numa: tuple[int | None, ...]) -> TopologyTable:
    if len(numa) != topology.gpu_count:
        raise ValueError(f"{topology.gpu_count} GPUs have as many NUMA nodes, not {len(numa)}")
    return TopologyTable(topology, numa)


def _matrix(topology: Topology, weight: Callable[[int, int], int]) -> Weights:
    matrix = np.zeros((topology.gpu_count, topology.gpu_count), dtype=np.int64)
    for a, b in combinations(range(topology.gpu_count), 2):
        matrix[a, b] = matrix[b, a] = weight(a, b)
    return matrix


def _sums_over_masks(matrix: Weights) -> Masks:
    """For every mask the sum over its pairs, by doubling: masks with bit i are those below plus bit i."""
    sums = np.zeros(1 << len(matrix), dtype=np.int64)
    for i in range(len(matrix)):
        sums[1 << i : 2 << i] = sums[: 1 << i] + _sums_over_bits(matrix[i, :i])
    return sums


def _sums_over_bits(row: Weights) -> Masks:
    sums = np.zeros(1 << len(row), dtype=np.int64)
    for i, weight in enumerate(row):
        sums[1 << i : 2 << i] = sums[: 1 << i] + weight
    return sums


def _pair_sum(matrix: Weights, chosen: int) -> int:
    positions = [i for i in range(len(matrix)) if chosen >> i & 1]
    return int(matrix[np.ix_(positions, positions)].sum()) // 2


def _link_score(topology: Topology, a: int, b: int) -> int:
    return _PCIE_SCORE * _level(topology, a, b) + _NVLINK_SCORE * _nvlinks(topology, a, b)


def _nvlinks(topology: Topology, a: int, b: int) -> int:
    return min(topology.nvlinks[pair_index(a, b, topology.gpu_count)], _MAX_LINKS_COUNTED)


def _numa_weight(topology: Topology, numa: tuple[int | None, ...], a: int, b: int) -> int:
    """In units of 20/5 points of the contract's numa score: 5 for one NUMA node, 0 to 5 for low latency."""
    return _LATENCY_STEPS * _one_numa(numa, a, b) + _level(topology, a, b) - int(PcieLevel.SYS)


def _pcie_weight(topology: Topology, numa: tuple[int | None, ...], a: int, b: int) -> int:
    """In units of 10 points of the contract's pcie score: 2 for one switch, 1 for the same CPUs."""
    return 2 * _one_switch(topology, a, b) + _one_numa(numa, a, b)


def _one_numa(numa: tuple[int | None, ...], a: int, b: int) -> bool:
    return numa[a] is not None and numa[a] == numa[b]


def _one_switch(topology: Topology, a: int, b: int) -> bool:
    return _level(topology, a, b) >= PcieLevel.PIX


def _level(topology: Topology, a: int, b: int) -> int:
    return max(int(topology.pcie_level(a, b)), int(PcieLevel.SYS))
