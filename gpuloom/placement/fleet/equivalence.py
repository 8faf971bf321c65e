"""Equivalence classes of nodes: a number for everything that the evaluation of a node depends on.

Nodes of one class get the same result for any request, so each class is evaluated once. In a cluster of equal
machines with a few kinds of pods most nodes are like some other, and what a node becomes by the next pod,
another one was before.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from heapq import merge

import numpy as np
from numpy.typing import NDArray

_FIRST_ROWS = 64
_NO_NUMBER = -1
# Numbers of nodes that are no longer like that are kept for those that will be, up to this many for each row.
_KEPT_PER_ROW = 2
_LEAST_KEPT = 1024
_APPEARED_PER_NUMBER = 16

Numbers = NDArray[np.int64]


class EquivalenceClasses:
    """Numbers by row. They hold within an epoch; a new one begins when there are too many."""

    def __init__(self) -> None:
        self.epoch = 0
        self._numbers: dict[bytes, int] = {}
        self._by_row = np.full(_FIRST_ROWS, _NO_NUMBER, dtype=np.int64)
        self._names: list[list[str]] = []
        self.appeared: list[int] = []
        """Every number when a first node got it: those after a place are all that came since."""

    def __len__(self) -> int:
        """All numbers are below this."""
        return len(self._numbers)

    def at(self, rows: Numbers) -> Numbers:
        return self._by_row.take(rows)

    def count(self, number: int) -> int:
        """How many nodes have this number now."""
        return len(self._names[number])

    def first_name(self, number: int) -> str:
        """Of the nodes that have this number."""
        return self._names[number][0]

    def names(self, numbers: Sequence[int]) -> Iterable[str]:
        """Of all nodes that have one of these numbers, in order."""
        by_number = [self._names[number] for number in numbers]
        return by_number[0] if len(by_number) == 1 else merge(*by_number)

    def note(self, row: int, name: str, content: bytes) -> None:
        """`content` is all that the node of this name, in this row, is judged by."""
        if row >= len(self._by_row):
            self._by_row = np.concatenate((self._by_row, np.full_like(self._by_row, _NO_NUMBER)))
        number = self._numbers.setdefault(content, len(self._numbers))
        if number == len(self._names):
            self._names.append([])
        if number == self._by_row[row]:
            return
        self.forget(row, name)
        self._by_row[row] = number
        names = self._names[number]
        if not names:
            self.appeared.append(number)
        insort(names, name)

    def forget(self, row: int, name: str) -> None:
        """The node of this name is no longer in this row."""
        number = int(self._by_row[row])
        if number == _NO_NUMBER:
            return
        self._by_row[row] = _NO_NUMBER
        names = self._names[number]
        del names[bisect_left(names, name)]

    def is_full(self, rows: int) -> bool:
        most = max(_LEAST_KEPT, _KEPT_PER_ROW * rows)
        return len(self._numbers) > most or len(self.appeared) > _APPEARED_PER_NUMBER * most

    def begin_anew(self, contents: Iterable[tuple[int, str, bytes]]) -> None:
        """Forget every number; these are the rows as they are now."""
        self.epoch += 1
        self._numbers.clear()
        self._names.clear()
        self.appeared.clear()
        self._by_row[:] = _NO_NUMBER
        for row, name, content in contents:
            self.note(row, name, content)
