"""Ends waits when their time is up, by the injected clock: one sleeper for all waits, not a task for each.

Like asyncio.timeout it cancels the task that waits and takes that back on the way out; a cancellation from
elsewhere goes on. It never cuts short what came to its end, even if only just.
"""

import asyncio
from types import TracebackType

from gpuloom.runtime.clock import Clock

# A sleep may end a rounding error before its time; a wait that is due by then is due.
_SLACK_S = 1e-6


class Deadlines:
    """Use within one running loop; `close` when nothing waits any more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: set[Wait] = set()
        self._sleeper: asyncio.Task[None] | None = None
        self._wakes_s = 0.0

    def within(self, timeout_s: float) -> "Wait":
        """A context whose body gets TimeoutError in its place when the time is up."""
        return Wait(self, self._clock.monotonic() + timeout_s)

    async def close(self) -> None:
        if self._sleeper is not None:
            self._sleeper.cancel()
            await asyncio.wait([self._sleeper])
            self._sleeper = None

    def add(self, wait: "Wait") -> None:
        self._waits.add(wait)
        # Most waits are shorter than their deadline by far, and the next is due later than the one that the
        # sleeper was started for: it is seldom started anew.
        if self._sleeper is None or self._sleeper.done() or wait.ends_s < self._wakes_s:
            if self._sleeper is not None:
                self._sleeper.cancel()
            self._wakes_s = wait.ends_s
            self._sleeper = asyncio.create_task(self._sleep())

    def discard(self, wait: "Wait") -> None:
        self._waits.discard(wait)

    async def _sleep(self) -> None:
        while True:
            await self._clock.sleep(self._wakes_s - self._clock.monotonic())
            due_s = self._clock.monotonic() + _SLACK_S
            for wait in [wait for wait in self._waits if wait.ends_s <= due_s]:
                self._waits.discard(wait)
                wait.expire()
            if not self._waits:
                return
            self._wakes_s = min(wait.ends_s for wait in self._waits)


class Wait:
    __slots__ = ("_cancellations_before", "_deadlines", "_expired", "_task", "ends_s")

    def __init__(self, deadlines: Deadlines, ends_s: float) -> None:
        self.ends_s = ends_s
        self._deadlines = deadlines
        self._expired = False
        self._task: asyncio.Task[object] | None = None
        self._cancellations_before = 0

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("a deadline needs a running task")
        # Not zero when the body is the clean-up of a task that is being cancelled already.
        self._cancellations_before = self._task.cancelling()
        self._deadlines.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadlines.discard(self)
        if not self._expired or self._task is None:
            return
        # Taken back however the body ended, or the next wait of this task would pay for it.
        ours_alone = self._task.uncancel() <= self._cancellations_before
        if ours_alone and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from None

    def expire(self) -> None:
        self._expired = True
        if self._task is not None:
            self._task.cancel()
