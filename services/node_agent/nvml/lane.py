"""Runs blocking calls off the event loop, one at a time per lane, and gives up on those that hang.

A call into the driver can't be interrupted. One that hangs is abandoned with its thread, and another thread
goes on; how many may hang at once is bounded, because each keeps its memory and a place in the driver. It
never decides what a call without an answer means.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpuloom.runtime.clock import Clock, deadline

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """When a job counts as hung, how many may, and the pause before the next try, which doubles."""

    hang_after_s: float = 10.0
    max_abandoned: int = 3
    first_pause_s: float = 30.0
    pause_cap_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What a job returned, or what it raised."""

    value: T | None
    error: Exception | None = None


class Lane(Generic[T]):
    def __init__(self, name: str, clock: Clock, limits: LaneLimits) -> None:
        self._name = name
        self._clock = clock
        self._limits = limits
        self._current: asyncio.Future[Outcome[T]] | None = None
        self._thread: threading.Thread | None = None
        self._started_s = 0.0
        self._abandoned: list[threading.Thread] = []
        self._retry_at_s = 0.0
        self._unanswered = False
        self._pause_s = limits.first_pause_s

    @property
    def busy(self) -> bool:
        return self._current is not None and not self._current.done()

    @property
    def pending(self) -> "asyncio.Future[Outcome[T]] | None":
        """The outcome to come of the job under way, or one that was not taken yet."""
        return self._current

    @property
    def hung_threads(self) -> int:
        self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
        return len(self._abandoned)

    @property
    def hung(self) -> bool:
        """A job got no answer in its time, and no other has answered since."""
        return self._unanswered or (self.busy and self._overdue())

    def start(self, job: Callable[[], T]) -> "asyncio.Future[Outcome[T]] | None":
        """Run the job, and return its outcome to come; an earlier one that was not taken yet goes first.

        None if there is nothing new to wait for: an earlier job is under way, or hung ones are given time.
        """
        if self.busy:
            if not self._overdue():
                return None
            self._abandon()
        if self._current is not None:
            return self._current
        if not self._may_start():
            return None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome[T]] = loop.create_future()
        self._thread = threading.Thread(
            target=_work, args=(job, loop, future), name=f"nvml-{self._name}", daemon=True
        )
        self._current, self._started_s = future, self._clock.monotonic()
        self._thread.start()
        return future

    def take(self) -> Outcome[T] | None:
        """The outcome of a job that ended since the last time, if any."""
        if self._current is None or not self._current.done():
            return None
        outcome, self._current = self._current.result(), None
        self._unanswered = False
        self._pause_s = self._limits.first_pause_s
        return outcome

    def _overdue(self) -> bool:
        return self._clock.monotonic() - self._started_s >= self._limits.hang_after_s

    def _abandon(self) -> None:
        if self._thread is not None:
            self._abandoned.append(self._thread)
        self._current, self._thread, self._unanswered = None, None, True
        self._retry_at_s = self._clock.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, self._limits.pause_cap_s)

    def _may_start(self) -> bool:
        hung = self.hung_threads
        if hung == 0:
            return True
        return hung < self._limits.max_abandoned and self._clock.monotonic() >= self._retry_at_s


async def wait_for(clock: Clock, patience_s: float, *outcomes: "asyncio.Future[Outcome[T]] | None") -> None:
    """Wait until all have come, but not longer than patience allows."""
    waiting = [outcome for outcome in outcomes if outcome is not None]
    if not waiting:
        return
    try:
        async with deadline(clock, patience_s):
            await asyncio.wait(waiting)
    except TimeoutError:
        return


def _work(
    job: Callable[[], T], loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Outcome[T]]"
) -> None:
    try:
        outcome: Outcome[T] = Outcome(job())
    except Exception as error:  # noqa: BLE001 - it crosses to the loop's thread, where it is judged
        outcome = Outcome(None, error)
    try:
        loop.call_soon_threadsafe(_deliver, future, outcome)
    except RuntimeError:
        # The loop was closed while the call hung: nobody waits any more.
        return


def _deliver(future: "asyncio.Future[Outcome[T]]", outcome: Outcome[T]) -> None:
    if not future.done():
        future.set_result(outcome)
