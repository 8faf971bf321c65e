"""Notices when the event loop stands still, by being late itself.

It decides whether the loop is alive enough to keep the process. It never looks at what a service does;
a service adds its own liveness checks for that.
"""

import asyncio
import logging
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, Histogram

from gpuloom.runtime.clock import Clock

BEAT_S = 1.0
LONG_LAG_S = 1.0
BLOCKED_S = 10.0
# A probe cannot be answered while the loop is blocked, so the verdict stays long enough for the next one
# to see it. A service that blocks once is not restarted for it; one that keeps blocking is.
VERDICT_S = 10.0

log = logging.getLogger(__name__)


class Heartbeat:
    """A context in which a task beats once a second."""

    def __init__(self, service: str, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._last_beat_s = clock.monotonic()
        self._blocked_at_s: float | None = None
        self._blocked_for_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._lag = Histogram(
            f"gpuloom_{service}_event_loop_lag_seconds",
            "How much later than asked for the event loop runs a timer",
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0),
            registry=registry,
        )

    async def __aenter__(self) -> Self:
        self._last_beat_s = self._clock.monotonic()
        self._task = asyncio.create_task(self._run(), name="event loop heartbeat")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def check(self) -> str | None:
        """The liveness check: why the loop counts as dead, or None."""
        now_s = self._clock.monotonic()
        silent_s = now_s - self._last_beat_s - BEAT_S
        if silent_s > BLOCKED_S:
            return f"no heartbeat of the event loop for {silent_s:.1f} s"
        if self._blocked_at_s is not None and now_s - self._blocked_at_s < VERDICT_S:
            return f"the event loop was blocked for {self._blocked_for_s:.1f} s"
        return None

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(BEAT_S)
            self._beat()

    def _beat(self) -> None:
        now_s = self._clock.monotonic()
        lag_s = max(0.0, now_s - self._last_beat_s - BEAT_S)
        self._last_beat_s = now_s
        self._lag.observe(lag_s)
        if lag_s > BLOCKED_S:
            self._blocked_at_s, self._blocked_for_s = now_s, lag_s
        if lag_s > LONG_LAG_S:
            log.warning("event loop was blocked", extra={"lag_s": round(lag_s, 3)})
