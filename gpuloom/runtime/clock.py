"""Time as a dependency. Code that waits or measures takes a Clock; tests give it a FakeClock."""

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from gpuloom.runtime.interruption import interrupted_by


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go back. Every decision about time uses this."""

    def now(self) -> datetime:
        """Wall-clock time in UTC, for people and for Kubernetes objects."""

    async def sleep(self, delay_s: float) -> None:
        """Return after delay_s, or at once (after yielding) if it is not positive."""


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(max(0.0, delay_s))


class FakeClock:
    """Stands still until `advance` is called; wakes sleepers in the order of their time."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self._elapsed_s

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s)

    async def sleep(self, delay_s: float) -> None:
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_s + delay_s, next(self._order), woken))
        await woken

    async def advance(self, delay_s: float) -> None:
        """Move time on, letting everything that was due run to its next wait before time moves further."""
        if delay_s < 0:
            raise ValueError(f"time never goes back, asked for {delay_s:g} s")
        end_s = self._elapsed_s + delay_s
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end_s:
            due_s, _, woken = heapq.heappop(self._sleepers)
            self._elapsed_s = max(self._elapsed_s, due_s)
            if not woken.done():
                woken.set_result(None)
                await settle()
        # A second advance() may have run while this one let others run.
        self._elapsed_s = max(self._elapsed_s, end_s)
        await settle()


async def settle(rounds: int = 20) -> None:
    """Let ready tasks run. Twenty rounds cover any chain of awaits that does no I/O in our code."""
    for _ in range(rounds):
        await asyncio.sleep(0)


@asynccontextmanager
async def deadline(clock: Clock, timeout_s: float) -> AsyncIterator[None]:
    """Like asyncio.timeout, but by the injected clock: raises TimeoutError when time is up."""
    async with interrupted_by(lambda: clock.sleep(timeout_s)) as interruption:
        yield
    if interruption.happened:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
