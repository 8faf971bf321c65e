"""Row numbers for things that come and go, and numbers for texts that repeat. Pure."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Rows(Generic[Key]):
    """A thing keeps its row while it lives; a new one gets the lowest that is free."""

    def __init__(self) -> None:
        self.used = 0
        """All rows in use are below this."""
        self._rows: dict[Key, int] = {}
        self._keys: list[Key | None] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, key: Key) -> int | None:
        return self._rows.get(key)

    def key(self, row: int) -> Key | None:
        """Who has the row; None if nobody has."""
        return self._keys[row] if 0 <= row < self.used else None

    def take(self, key: Key) -> int:
        """The row of this thing, which may be new."""
        row = self._rows.get(key)
        if row is not None:
            return row
        if self._free:
            row = heapq.heappop(self._free)
            self._keys[row] = key
        else:
            row = self.used
            self.used += 1
            self._keys.append(key)
        self._rows[key] = row
        return row

    def release(self, key: Key) -> int:
        """Raise KeyError if it has no row."""
        row = self._rows.pop(key)
        self._keys[row] = None
        heapq.heappush(self._free, row)
        return row


class TextCodes:
    """A number for each text ever seen; 0 is the empty one. For names that a cluster has few of."""

    def __init__(self) -> None:
        self._codes = {"": 0}
        self._texts = [""]

    def code(self, text: str) -> int:
        """The number of this text, which may be new."""
        code = self._codes.setdefault(text, len(self._texts))
        if code == len(self._texts):
            self._texts.append(text)
        return code

    def find(self, text: str) -> int | None:
        """None if nothing has this text, so that a query makes no new number."""
        return self._codes.get(text)

    def text(self, code: int) -> str:
        return self._texts[code]
