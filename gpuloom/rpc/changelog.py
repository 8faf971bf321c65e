"""In which order nodes changed last, so that a reader is nothing but a number.

Pure. A node has one entry, that of its newest change: however far a reader is behind, what it must be told
is no longer than the list of nodes. It never holds facts, and knows no reader.
"""

from collections import OrderedDict
from itertools import takewhile

from gpuloom.rpc.streams import ReaderTooSlowError

KEPT_REMOVALS = 4096
"""Removed nodes that are remembered for readers that have not been told yet."""


class ChangeLog:
    def __init__(self, kept_removals: int = KEPT_REMOVALS) -> None:
        self.number = 0
        """Of the newest change."""
        self.changes = 0
        """All there ever were."""
        self._kept_removals = kept_removals
        self._order: OrderedDict[str, int] = OrderedDict()
        self._removals: OrderedDict[str, int] = OrderedDict()
        self._forgotten = 0

    def change(self, uid: str, number: int) -> None:
        """Numbers only grow."""
        self._removals.pop(uid, None)
        self._put(uid, number)

    def remove(self, uid: str, number: int) -> None:
        self._put(uid, number)
        self._removals[uid] = number
        if len(self._removals) > self._kept_removals:
            oldest, self._forgotten = self._removals.popitem(last=False)
            del self._order[oldest]

    def since(self, number: int) -> list[tuple[str, int]]:
        """Every node that changed or went after that number, with the number of its newest change, in order.

        Raise ReaderTooSlowError if a removal since then has been forgotten.
        """
        if number < self._forgotten:
            raise ReaderTooSlowError(
                f"more than {self._kept_removals} removed nodes behind; read the full state again"
            )
        newest_first = takewhile(lambda entry: entry[1] > number, reversed(self._order.items()))
        return list(newest_first)[::-1]

    def _put(self, uid: str, number: int) -> None:
        self._order[uid] = number
        self._order.move_to_end(uid)
        self.number = number
        self.changes += 1
