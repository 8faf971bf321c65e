"""The topology tables of all nodes, asked at once: one gather instead of a question per node.

Nodes of one shape share a row. Shapes of at most 8 GPUs are answered from arrays over all masks; larger ones
one node at a time, from what their table remembers. Decides nothing that `topology` does not decide.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpuloom.model.request import GpuRequest, TopologyPreference
from gpuloom.placement.fleet.interning import Interner
from gpuloom.placement.topology import MAX_TABLE_GPUS, TopologyTable

_MASKS = 1 << MAX_TABLE_GPUS

Rows = NDArray[np.int64]
Masks = NDArray[np.uint64]
Floats = NDArray[np.float64]


class Shapes:
    """Rows are given and taken back with the nodes that have the shape."""

    def __init__(self) -> None:
        self._tables: Interner[TopologyTable] = Interner()
        self._best: dict[tuple[int, TopologyPreference, bool], Masks] = {}
        self._scores: dict[TopologyPreference, Floats] = {}
        self._is_small = np.zeros(0, dtype=np.bool_)

    @property
    def reuses(self) -> int:
        """How often a row that had meant one shape was given to another."""
        return self._tables.reuses

    def acquire(self, table: TopologyTable) -> int:
        known = len(self._tables)
        row = self._tables.acquire(table)
        if len(self._tables) != known:
            self._forget_answers()
        return row

    def release(self, row: int) -> None:
        self._tables.release(row)

    def best(self, rows: Rows, free: Masks, gpu: GpuRequest, required: bool) -> Masks:
        """For each node the chosen mask, 0 where there is none."""
        key = (gpu.count, gpu.topology, required)
        if key not in self._best:
            self._best[key] = np.zeros((self._tables.capacity, _MASKS), dtype=np.uint64)
            self._fill(self._best[key], lambda table: table.best_by_mask(*key))
        chosen = self._best[key][rows, self._small_masks(rows, free)]
        for entry, table in self._large(rows):
            chosen[entry] = table.best(int(free[entry]), *key)
        return chosen

    def scores(self, rows: Rows, chosen: Masks, preference: TopologyPreference) -> Floats:
        """For each node the points of the chosen set."""
        if preference not in self._scores:
            self._scores[preference] = np.zeros((self._tables.capacity, _MASKS))
            self._fill(self._scores[preference], lambda table: table.score_by_mask(preference))
        scores = self._scores[preference][rows, self._small_masks(rows, chosen)]
        for entry, table in self._large(rows):
            scores[entry] = table.score(int(chosen[entry]), preference)
        return scores

    def _forget_answers(self) -> None:
        self._best.clear()
        self._scores.clear()
        self._is_small = np.ones(self._tables.capacity, dtype=np.bool_)
        for row, table in self._tables.items():
            self._is_small[row] = table.gpu_count <= MAX_TABLE_GPUS

    def _fill(
        self, stacked: Masks | Floats, column: Callable[[TopologyTable], NDArray[np.uint8] | Floats]
    ) -> None:
        for row, table in self._tables.items():
            if self._is_small[row]:
                stacked[row, : 1 << table.gpu_count] = column(table)

    def _small_masks(self, rows: Rows, masks: Masks) -> Masks:
        return np.where(self._is_small[rows], masks, np.uint64(0))

    def _large(self, rows: Rows) -> list[tuple[int, TopologyTable]]:
        entries = np.nonzero(~self._is_small[rows])[0]
        return [(int(entry), self._tables.thing(int(rows[entry]))) for entry in entries]
