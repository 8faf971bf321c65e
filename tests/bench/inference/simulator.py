"""One service second by second: requests wait in order, replicas start slowly, a policy is asked every 15 s.

A replica costs from the moment it is asked for; what is taken away finishes what it works on.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.bench.inference.trace import Arrivals

PLACES = 8
"""Requests that a replica works on at once."""
SYNC_S = 15
SLO_WAIT_S = 2
MOST = 60


@dataclass(frozen=True, slots=True)
class Seen:
    """What a policy may know."""

    at_s: int
    replicas: int
    ready: int
    settled: int
    running: int
    waiting: int
    rate: float
    service_s: float | None

    @property
    def starting(self) -> int:
        return self.replicas - self.ready


class Policy(Protocol):
    def wanted(self, seen: Seen) -> int: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    slo: float
    replica_hours: float
    flips: int


@dataclass
class Fleet:
    """Moments from which replicas are ready, in order."""

    cold_start_s: int
    ready_at: list[int] = field(default_factory=lambda: [0])

    def resize(self, wanted: int, at_s: int) -> None:
        while len(self.ready_at) < wanted:
            self.ready_at.append(at_s + self.cold_start_s)
        # The youngest go first, as a ReplicaSet does it with those that are not ready.
        del self.ready_at[wanted:]

    def ready(self, at_s: int) -> int:
        return sum(moment <= at_s for moment in self.ready_at)


def simulate(arrivals: Arrivals, policy: Policy, cold_start_s: int, start: int = 4) -> Outcome:
    fleet = Fleet(cold_start_s, [0] * start)
    ends: deque[int] = deque([0] * 4096)
    """How many end, by seconds from now."""
    queue: deque[tuple[int, int]] = deque()
    recent: deque[Sequence[int]] = deque(maxlen=300)
    running = met = total = held = flips = last_sign = 0
    for at_s, coming in enumerate(arrivals.work_s):
        running -= ends.popleft()
        ends.append(0)
        recent.append(coming)
        total += len(coming)
        queue.extend((at_s, work_s) for work_s in coming)
        slots = fleet.ready(at_s) * PLACES
        while queue and running < slots:
            came_s, work_s = queue.popleft()
            met += at_s - came_s <= SLO_WAIT_S
            running += 1
            ends[min(work_s, 4095) - 1] += 1
        held += len(fleet.ready_at)
        if at_s % SYNC_S == 0:
            before = len(fleet.ready_at)
            wanted = max(1, min(MOST, policy.wanted(_seen(at_s, fleet, running, len(queue), recent))))
            fleet.resize(wanted, at_s)
            sign = (wanted > before) - (wanted < before)
            if sign and sign == -last_sign:
                flips += 1
            last_sign = sign or last_sign
    return Outcome(met / max(1, total), held / 3600, flips)


def _seen(at_s: int, fleet: Fleet, running: int, waiting: int, recent: deque[Sequence[int]]) -> Seen:
    minute = list(recent)[-60:]
    works = [work_s for coming in recent for work_s in coming]
    return Seen(
        at_s=at_s,
        replicas=len(fleet.ready_at),
        ready=fleet.ready(at_s),
        settled=fleet.ready(at_s - 120) if at_s >= 120 else fleet.ready(at_s),
        running=running,
        waiting=waiting,
        rate=sum(map(len, minute)) / len(minute),
        service_s=sum(works) / len(works) if works else None,
    )
