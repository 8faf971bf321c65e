"""Which nodes are alike: a number for everything that judging a node depends on.

Nodes with the same number get the same answer to any request, so each kind of node is judged once. In a
cluster of equal machines with a few kinds of pods most nodes are like some other, and what a node becomes by
the next pod, another one was before.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_FIRST_ROWS = 64
# Numbers of nodes that are no longer like that are kept for those that will be, up to this many for each row.
_KEPT_PER_ROW = 2
_LEAST_KEPT = 1024

Numbers = NDArray[np.int64]


class Likeness:
    """Numbers by row. They hold within an epoch; a new one begins when there are too many."""

    def __init__(self) -> None:
        self.epoch = 0
        self._numbers: dict[bytes, int] = {}
        self._by_row = np.zeros(_FIRST_ROWS, dtype=np.int64)

    def __len__(self) -> int:
        """All numbers are below this."""
        return len(self._numbers)

    def at(self, rows: Numbers) -> Numbers:
        return self._by_row.take(rows)

    def note(self, row: int, content: bytes) -> None:
        """`content` is all that the node in this row is judged by."""
        if row >= len(self._by_row):
            self._by_row = np.concatenate((self._by_row, np.zeros_like(self._by_row)))
        self._by_row[row] = self._numbers.setdefault(content, len(self._numbers))

    def is_full(self, rows: int) -> bool:
        return len(self._numbers) > max(_LEAST_KEPT, _KEPT_PER_ROW * rows)

    def begin_anew(self, contents: Iterable[tuple[int, bytes]]) -> None:
        """Forget every number; these are the rows as they are now."""
        self.epoch += 1
        self._numbers.clear()
        for row, content in contents:
            self.note(row, content)
