"""Keys that want work: each once, one worker at a time, later after a failure, as controllers have it.

A key that is added while it is being worked on is worked on once more afterwards, so no change is missed and
two workers never act on one object. Waiting keys are kept in a dictionary, so a flood about one object costs
one entry; beyond its capacity the queue forgets the keys and asks for everything once instead. What is looked
at only because everything is waits behind what changed, but never for ever.
"""

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable, Iterable

from gpuloom.kube.objects import ObjectKey
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock

_TURNS = 8
"""Of so many keys one at least comes from those behind, if there are any."""


class WorkQueue:
    """`everything` gives all keys there are; it is asked when more were added than are kept."""

    def __init__(
        self,
        clock: Clock,
        everything: Callable[[], Iterable[ObjectKey]],
        *,
        capacity: int = 100_000,
        new_backoff: Callable[[], Backoff] = lambda: Backoff(0.5, 300.0),
    ) -> None:
        self._clock = clock
        self._everything = everything
        self._capacity = capacity
        self._new_backoff = new_backoff
        self._due: dict[ObjectKey, None] = {}
        self._behind: dict[ObjectKey, None] = {}
        """Due as well, once nothing else is."""
        self._turn = 0
        self._active: set[ObjectKey] = set()
        self._again: set[ObjectKey] = set()
        """Added while they were worked on."""
        self._later: dict[ObjectKey, float] = {}
        self._held_until_s: dict[ObjectKey, float] = {}
        """Not before that, whatever changes; each has its plan in `_later`."""
        self._timers: list[tuple[float, int, ObjectKey]] = []
        self._order = itertools.count()
        self._backoffs: dict[ObjectKey, Backoff] = {}
        self._overflowed = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Keys that wait, now or for later, and those in work."""
        return self.due_count + len(self._later)

    @property
    def due_count(self) -> int:
        """Keys that should be worked on now, and those that are."""
        return len(self._due) + len(self._behind) + len(self._active)

    def add(self, key: ObjectKey) -> None:
        """As soon as a worker is free and it is not held; what was planned for later is then done now."""
        if key in self._active:
            self._later.pop(key, None)
            self._again.add(key)
            return
        if self._is_held(key):
            self.add_after(key, self._held_until_s[key] - self._clock.monotonic())
            return
        self._later.pop(key, None)
        self._behind.pop(key, None)
        if key not in self._due and self._is_full():
            self._overflowed = True
        else:
            self._due[key] = None
        self._changed.set()

    def add_behind(self, keys: Iterable[ObjectKey]) -> None:
        """In this order, behind everything else that is due; also those that are due already."""
        for key in keys:
            self._due.pop(key, None)
            self.add(key)
            if key in self._due:
                del self._due[key]
                self._behind[key] = None

    def add_after(self, key: ObjectKey, delay_s: float) -> None:
        """Not before that; an earlier plan for the same key stands."""
        due_s = self._clock.monotonic() + max(0.0, delay_s)
        if key in self._due or key in self._behind or self._later.get(key, math.inf) <= due_s:
            return
        if self._is_full():
            self._overflowed = True
        else:
            self._later[key] = due_s
            heapq.heappush(self._timers, (due_s, next(self._order), key))
        self._changed.set()

    def add_after_failure(self, key: ObjectKey, at_least_s: float = 0.0) -> float:
        """After a delay that grows with each failure in a row, and differs; returns the delay.

        `at_least_s` comes on top, and though the key is added meanwhile it waits for that.
        """
        delay_s = at_least_s + self._backoffs.setdefault(key, self._new_backoff()).next_delay_s()
        self.add_after(key, delay_s)
        if at_least_s > 0 and key in self._later:
            self._held_until_s[key] = self._clock.monotonic() + at_least_s
        return delay_s

    def forget_failures(self, key: ObjectKey) -> None:
        self._backoffs.pop(key, None)

    async def get(self) -> ObjectKey:
        """The key that waits longest, those behind after the others. Whoever gets one must call `done`."""
        while True:
            self._promote()
            if self._due or self._behind:
                key = self._next()
                self._active.add(key)
                return key
            self._changed.clear()
            await self._wait()

    def done(self, key: ObjectKey) -> None:
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _next(self) -> ObjectKey:
        self._turn = (self._turn + 1) % _TURNS
        waiting = self._behind if self._behind and (not self._due or self._turn == 0) else self._due
        key = next(iter(waiting))
        del waiting[key]
        return key

    def _is_held(self, key: ObjectKey) -> bool:
        until_s = self._held_until_s.get(key)
        if until_s is None or until_s > self._clock.monotonic():
            return until_s is not None
        del self._held_until_s[key]
        return False

    def _is_full(self) -> bool:
        return len(self._due) + len(self._behind) + len(self._later) >= self._capacity

    def _promote(self) -> None:
        """Move to `due` what has waited long enough, and everything if keys were forgotten."""
        if self._overflowed and not self._due and not self._behind:
            # Asked for only when there is room again: else it would overflow at once.
            self._overflowed = False
            self.add_behind(self._everything())
        now_s = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now_s:
            due_s, _, key = heapq.heappop(self._timers)
            # A plan that was replaced leaves its timer behind.
            if self._later.get(key) == due_s:
                del self._later[key]
                self.add(key)

    async def _wait(self) -> None:
        if not self._timers:
            await self._changed.wait()
            return
        delay_s = self._timers[0][0] - self._clock.monotonic()
        sleeper = asyncio.ensure_future(self._clock.sleep(delay_s))
        waiter = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((sleeper, waiter), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sleeper, waiter):
                task.cancel()
