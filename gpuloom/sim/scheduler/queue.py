"""Which pending pod is tried next. Pure; time is passed in.

A pod is in exactly one place: active (ready to be tried), backing off, unschedulable (asleep until something
changes in the cluster), or being tried. The queue holds at most the cluster's pending pods; it adds none.
"""

import heapq
import itertools
from dataclasses import dataclass, field
from typing import TypeVar

from gpuloom.placement.constraints.objects import SchedulablePod

FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 10.0
UNSCHEDULABLE_TIMEOUT_S = 300.0

Key = TypeVar("Key")


@dataclass(slots=True)
class QueuedPod:
    """`moves_seen` is how many wake-ups the queue had heard when this try began."""

    pod: SchedulablePod
    queued_at_s: float
    attempts: int = 0
    backoff_until_s: float = 0.0
    asleep_since_s: float = 0.0
    moves_seen: int = 0


@dataclass(slots=True)
class SchedulingQueue:
    _active: dict[str, QueuedPod] = field(default_factory=dict)
    _backoff: dict[str, QueuedPod] = field(default_factory=dict)
    _asleep: dict[str, QueuedPod] = field(default_factory=dict)
    _in_flight: dict[str, QueuedPod] = field(default_factory=dict)
    _heap: list[tuple[int, float, int, str]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _moves: int = 0

    def __len__(self) -> int:
        return len(self._active) + len(self._backoff) + len(self._asleep) + len(self._in_flight)

    def __contains__(self, uid: object) -> bool:
        return any(uid in place for place in self._places())

    def put(self, pod: SchedulablePod, now_s: float, *, changed: bool = True) -> None:
        """A new pending pod, or a known one as it is now; a change of what it asks for wakes it."""
        for place in self._places():
            if pod.uid in place:
                place[pod.uid].pod = pod
                if changed and place is self._asleep:
                    self._wake(self._asleep.pop(pod.uid), now_s)
                return
        self._activate(QueuedPod(pod, queued_at_s=now_s))

    def remove(self, uid: str) -> None:
        """It was bound or deleted. A try that is under way finds out when it ends."""
        for place in self._places():
            place.pop(uid, None)

    def pop(self, now_s: float) -> QueuedPod | None:
        """The next pod to try: highest priority first, then the one that waits longest."""
        self._flush(now_s)
        while self._heap:
            _, _, _, uid = heapq.heappop(self._heap)
            entry = self._active.pop(uid, None)
            if entry is not None:
                entry.attempts += 1
                entry.moves_seen = self._moves
                self._in_flight[uid] = entry
                return entry
        return None

    def failed(self, uid: str, now_s: float) -> None:
        """The try went wrong (an error, not a verdict): again after the backoff."""
        entry = self._in_flight.pop(uid, None)
        if entry is not None:
            self._back_off(entry, now_s)

    def unschedulable(self, uid: str, now_s: float) -> None:
        """No node fits: sleep until the cluster changes. If it changed during the try, the verdict is old."""
        entry = self._in_flight.pop(uid, None)
        if entry is None:
            return
        if entry.moves_seen != self._moves:
            self._back_off(entry, now_s)
            return
        entry.backoff_until_s = now_s + backoff_s(entry.attempts)
        entry.asleep_since_s = now_s
        self._asleep[uid] = entry

    def wake_all(self, now_s: float) -> None:
        """Something in the cluster changed that may make room."""
        self._moves += 1
        asleep, self._asleep = self._asleep, {}
        for entry in asleep.values():
            self._wake(entry, now_s)

    def next_due_s(self) -> float | None:
        """When the queue changes by itself; None if never."""
        times = [entry.backoff_until_s for entry in self._backoff.values()]
        times += [entry.asleep_since_s + UNSCHEDULABLE_TIMEOUT_S for entry in self._asleep.values()]
        return min(times, default=None)

    def _places(self) -> tuple[dict[str, QueuedPod], ...]:
        return self._active, self._backoff, self._asleep, self._in_flight

    def _flush(self, now_s: float) -> None:
        for uid, entry in list(self._asleep.items()):
            if now_s - entry.asleep_since_s >= UNSCHEDULABLE_TIMEOUT_S:
                self._wake(self._asleep.pop(uid), now_s)
        for uid, entry in list(self._backoff.items()):
            if now_s >= entry.backoff_until_s:
                self._activate(self._backoff.pop(uid))

    def _wake(self, entry: QueuedPod, now_s: float) -> None:
        """The backoff runs from the last try, also while the pod sleeps."""
        if now_s >= entry.backoff_until_s:
            self._activate(entry)
        else:
            self._backoff[entry.pod.uid] = entry

    def _back_off(self, entry: QueuedPod, now_s: float) -> None:
        entry.backoff_until_s = now_s + backoff_s(entry.attempts)
        self._backoff[entry.pod.uid] = entry

    def _activate(self, entry: QueuedPod) -> None:
        self._active[entry.pod.uid] = entry
        order = (-entry.pod.priority, entry.queued_at_s, next(self._order), entry.pod.uid)
        heapq.heappush(self._heap, order)


def backoff_s(attempts: int) -> float:
    return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (max(1, attempts) - 1))
