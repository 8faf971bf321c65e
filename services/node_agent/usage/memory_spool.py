"""A spool that is only in memory: while the disk does not take windows, or where there is none to use."""

from collections import deque
from collections.abc import Sequence

from services.node_agent.usage.disk_spool import Written


class MemorySpool:
    def __init__(self, spool_id: str, max_bytes: int) -> None:
        self.spool_id = spool_id
        self.last = 0
        self._max_bytes = max_bytes
        self._windows: deque[Written] = deque()
        self._size = 0

    @property
    def first(self) -> int:
        return self.last - len(self._windows) + 1

    @property
    def windows(self) -> tuple[Written, ...]:
        return tuple(self._windows)

    def append(self, windows: Sequence[Written]) -> int:
        """How many old ones had to go for them."""
        for window in windows:
            self._windows.append(window)
            self._size += len(window.data)
        self.last += len(windows)
        dropped = 0
        while self._size > self._max_bytes and len(self._windows) > 1:
            self._size -= len(self._windows.popleft().data)
            dropped += 1
        return dropped

    def read(self, sequence: int, max_bytes: int) -> tuple[int, list[bytes]]:
        first = max(sequence, self.first)
        found: list[bytes] = []
        taken = 0
        for place in range(first - self.first, len(self._windows)):
            data = self._windows[place].data
            if found and taken + len(data) > max_bytes:
                break
            found.append(data)
            taken += len(data)
        return first, found
