"""In which order gangs are tried, and how long a large one may be passed by smaller ones. Pure.

The higher priority comes first, then the older gang. One that does not fit is passed by those behind it, so
that capacity is used (backfill), but only so many times: then nothing behind it is reserved until it has its
place. One that would not fit even if nobody else were there blocks nobody.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

MOST_PASSES = 8


@dataclass(frozen=True, slots=True)
class Waiting:
    """`created` is as Kubernetes writes it, which sorts by time."""

    name: str
    priority: int
    created: str

    @property
    def place(self) -> tuple[int, str, str]:
        return -self.priority, self.created, self.name


class Turns:
    """Remembers how often each gang was passed."""

    def __init__(self, most_passes: int = MOST_PASSES) -> None:
        self._most_passes = most_passes
        self._passes: dict[str, int] = {}

    def in_order(self, waiting: Sequence[Waiting], may_ever_fit: Callable[[str], bool]) -> Iterator[Waiting]:
        """Whom to try next; ask for another only if the last one did not fit, and call `placed` if it did."""
        self._passes = {one.name: self._passes.get(one.name, 0) for one in waiting}
        for one in sorted(waiting, key=lambda each: each.place):
            yield one
            if self.holds_back(one.name) and may_ever_fit(one.name):
                return

    def placed(self, placed: Waiting, waiting: Sequence[Waiting]) -> None:
        """It has its place: those before it that still wait were passed once more."""
        self._passes.pop(placed.name, None)
        for one in waiting:
            if one.place < placed.place:
                self._passes[one.name] = self._passes.get(one.name, 0) + 1

    def holds_back(self, name: str) -> bool:
        """Whether it was passed as often as it may be."""
        return self._passes.get(name, 0) >= self._most_passes
