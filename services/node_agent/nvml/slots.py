"""One place in the driver's list of GPUs: its lanes, what is asked of it when, and how it answered last.

The lane of a GPU carries looks and process lists, one at a time: two calls never ask one GPU at once.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from gpuloom.runtime.clock import Clock
from services.node_agent.core.readings import GpuCounters
from services.node_agent.nvml.binding import NvmlError, failure_of
from services.node_agent.nvml.core.failure import Failure
from services.node_agent.nvml.core.topology import Wiring
from services.node_agent.nvml.gpm import ActivityHistory
from services.node_agent.nvml.lane import Lane, LaneLimits, Outcome
from services.node_agent.nvml.session import (
    Acquaintance,
    Listing,
    Look,
    LookOrder,
    Session,
    SlowPart,
)

HUNG = Failure(0, "the driver does not answer for this GPU: a call hangs")

Answer = Look | Listing

# Creating an instance or switching a mode takes seconds where a reading takes none.
_WRITES_SLOWER = 6


@dataclass(frozen=True, slots=True)
class Tiers:
    """How often what is read that a sample does not read every time."""

    slow_interval_s: float = 10.0
    process_interval_s: float = 10.0
    wiring_interval_s: float = 60.0
    counter_interval_s: float = 60.0


class Slot:
    """For one session, on the event loop."""

    def __init__(self, index: int, clock: Clock, limits: LaneLimits, tiers: Tiers) -> None:
        self.index = index
        self.known: Acquaintance | None = None
        self.failure: Failure | None = None
        self.fresh: Look | None = None
        self.history = ActivityHistory()
        self._clock = clock
        self._tiers = tiers
        self._lane: Lane[Answer] = Lane(f"gpu-{index}", clock, limits)
        self._wiring_lane: Lane[Wiring] = Lane(f"links-{index}", clock, limits)
        slow = replace(limits, hang_after_s=limits.hang_after_s * _WRITES_SLOWER)
        self.writes: Lane[object] = Lane(f"cut-{index}", clock, slow)
        """Changes of the GPU, and the readings that verify them."""
        self._listing = False
        self._slow: SlowPart | None = None
        self._slow_due_s = 0.0
        self._counters: GpuCounters | None = None
        self._counters_due_s = 0.0
        self._processes_due_s = 0.0
        self._wired_with: frozenset[str] = frozenset()
        self._wiring_due_s = 0.0

    @property
    def in_flight(self) -> bool:
        """A call of it is under way or hangs."""
        return any(lane.busy or lane.hung_threads for lane in (self._lane, self._wiring_lane, self.writes))

    @property
    def hung(self) -> bool:
        return self._lane.hung

    @property
    def listed_late(self) -> bool:
        """A process list came after its asker had gone; it must not be taken for a sample."""
        return self._listing and not self._lane.busy

    def read_all_next(self) -> None:
        """Something happened to the GPU: the next sample reads the slow part and the counters, too.

        One that is under way may have read them before.
        """
        self._slow_due_s = self._counters_due_s = 0.0

    def start_look(self, session: Session) -> "asyncio.Future[Outcome[Answer]] | None":
        now_s = self._clock.monotonic()
        if self._lane.hung:
            # The thread that hangs may still use the old one.
            self.history = ActivityHistory()
        order = LookOrder(
            index=self.index,
            known=self.known,
            history=self.history,
            slow=None if now_s >= self._slow_due_s else self._slow,
            counters=None if now_s >= self._counters_due_s else self._counters,
            with_processes=now_s >= self._processes_due_s,
        )
        started = self._lane.start(partial(session.look, order))
        if started is None:
            return None
        self._listing = False
        if order.slow is None:
            self._slow_due_s = now_s + self._tiers.slow_interval_s
        if order.counters is None:
            self._counters_due_s = now_s + self._tiers.counter_interval_s
        if order.with_processes:
            self._processes_due_s = now_s + self._tiers.process_interval_s
        return started

    def start_listing(self, session: Session) -> "asyncio.Future[Outcome[Answer]] | None":
        """Not while it does something else, and not before it is known."""
        if self.known is None:
            return None
        started = self._lane.start(partial(session.list_processes, self.known))
        if started is not None:
            self._listing = True
            self._processes_due_s = self._clock.monotonic() + self._tiers.process_interval_s
        return started

    def take(self) -> Answer | None:
        """What the GPU answered since the last time, if it did. Raise what is no error of the driver's."""
        outcome = self._lane.take()
        if outcome is None:
            if self._lane.hung:
                self._fail(HUNG)
            return None
        self._listing = False
        if outcome.error is not None:
            self._fail(_failure(outcome.error))
        elif isinstance(outcome.value, Look):
            self.failure, self.fresh, self.known = None, outcome.value, outcome.value.known
            self._slow, self._counters = outcome.value.slow, outcome.value.sample.counters
        return outcome.value

    def start_wiring(
        self, session: Session, later: Iterable[Acquaintance]
    ) -> "asyncio.Future[Outcome[Wiring]] | None":
        """Compare with those that come later; one that did not answer just now is not asked."""
        if self.known is None or self.fresh is None:
            return None
        peers = list(later)
        uuids, now_s = frozenset(peer.identity.uuid for peer in peers), self._clock.monotonic()
        if uuids <= self._wired_with and now_s < self._wiring_due_s:
            return None
        started = self._wiring_lane.start(partial(session.wiring, self.known, peers))
        if started is not None:
            self._wired_with, self._wiring_due_s = uuids, now_s + self._tiers.wiring_interval_s
        return started

    def take_wiring(self) -> Wiring | None:
        outcome = self._wiring_lane.take()
        if outcome is None:
            return None
        if outcome.error is not None:
            _failure(outcome.error)
        return outcome.value

    def _fail(self, failure: Failure) -> None:
        """Nothing of before is believed once the GPU answers again."""
        self.failure, self._slow, self._counters = failure, None, None
        self._slow_due_s = self._counters_due_s = self._processes_due_s = 0.0


def _failure(error: Exception) -> Failure:
    if not isinstance(error, NvmlError):
        raise error
    return failure_of(error)
