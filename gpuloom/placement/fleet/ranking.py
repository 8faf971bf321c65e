"""The kinds of nodes (equivalence classes) that a request fits, best first, kept in order while nodes change.

How good a kind is depends on the request and prices, and on which sets of cards have become rare meanwhile.
That last part is the same for all kinds that lose the same sets, so kinds of one group never change places:
each group is kept sorted, and the best of all is found among the first of every group. A filter then looks at
a few kinds, however many nodes there are.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush

from gpuloom.placement.fleet.class_results import ClassResults
from gpuloom.placement.fleet.equivalence import EquivalenceClasses
from gpuloom.placement.points import Rise, Scale

# Topology, and the fully free cards before and after.
_Group = tuple[float, int, int]
# By how much the potential rises, the number of the kind, and the same rise in its parts.
_Kind = tuple[int, int, Rise]
_Head = tuple[float, int, list[_Kind], int]


class Ranking:
    """For one request at one state of prices, within one epoch of the classes."""

    def __init__(self, results: ClassResults, classes: EquivalenceClasses) -> None:
        self._results = results
        self._classes = classes
        self._read = 0
        self._rises: dict[int, Rise | None] = {}
        self._placed: set[int] = set()
        self._groups: defaultdict[_Group, list[_Kind]] = defaultdict(list)

    def kinds(self, scale: Scale) -> Iterator[tuple[float, list[int]]]:
        """Totals, highest first, each with the numbers of all kinds that have it; only kinds that exist."""
        self._read_on()
        heads: list[_Head] = []
        for kinds in self._groups.values():
            self._push(heads, kinds, 0, scale)
        while heads:
            highest = heads[0][0]
            numbers = []
            while heads and heads[0][0] == highest:
                _, number, kinds, place = heappop(heads)
                numbers.append(number)
                self._push(heads, kinds, place + 1, scale)
            yield -highest, numbers

    def _push(self, heads: list[_Head], kinds: list[_Kind], place: int, scale: Scale) -> None:
        """The first kind from this place on that some node is of; others are left out until one is again."""
        while place < len(kinds):
            _, number, rise = kinds[place]
            if self._classes.count(number):
                heappush(heads, (-scale.total(rise), number, kinds, place))
                return
            del kinds[place]
            self._placed.discard(number)

    def _read_on(self) -> None:
        """Take in the kinds that have appeared since the last time."""
        appeared = self._classes.appeared
        if self._read == len(appeared):
            return
        new = {number for number in appeared[self._read :] if self._classes.count(number)} - self._placed
        self._read = len(appeared)
        unknown = sorted(new - self._rises.keys())
        if unknown:
            self._rises.update(zip(unknown, self._results.of(unknown), strict=True))
        for number in new:
            rise = self._rises[number]
            if rise is not None:
                kinds = self._groups[rise.topology, rise.whole_before, rise.whole_after]
                insort(kinds, (rise.resource + rise.balance, number, rise))
                self._placed.add(number)
