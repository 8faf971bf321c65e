"""Names to look at again at a given time, at a cost that does not grow with how often nothing is due."""

import heapq


class Alarms:
    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, name: str, due_s: float) -> None:
        """One alarm a name: this replaces the one before."""
        if self._due_s.get(name) != due_s:
            self._due_s[name] = due_s
            heapq.heappush(self._heap, (due_s, name))

    def clear(self, name: str) -> None:
        self._due_s.pop(name, None)

    def take_due(self, now_s: float) -> list[str]:
        """The names whose time has come; each has no alarm any more."""
        due = []
        while self._heap and self._heap[0][0] <= now_s:
            due_s, name = heapq.heappop(self._heap)
            # One that was replaced or cleared since still lies in the heap.
            if self._due_s.get(name) == due_s:
                del self._due_s[name]
                due.append(name)
        return due
