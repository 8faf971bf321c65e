"""Keeps what agents tell: windows and cursors in one transaction, several nodes together.

All nodes close their windows at the same moment. Whoever comes while a transaction is written waits for the
next one, which takes all that wait.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from gpuloom.errors import GpuloomError
from gpuloom.model.usage import UsageBatch, UsageCursor
from gpuloom.runtime.clock import Clock
from services.cost_engine.core.intervals import NANOSECONDS_PER_SECOND
from services.cost_engine.metrics import CostMetrics
from services.cost_engine.store.store import CostStore

_log = logging.getLogger(__name__)

MAX_TOGETHER = 64


class UsageConsumer(Protocol):
    """What a follower of agents' spools hands windows to."""

    async def cursors(self) -> Iterable[UsageCursor]: ...

    async def take(self, batch: UsageBatch) -> None: ...


class StoreConsumer:
    def __init__(self, store: CostStore, clock: Clock, metrics: CostMetrics) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._waiting: list[tuple[UsageBatch, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()

    async def cursors(self) -> Iterable[UsageCursor]:
        return await self._store.cursors()

    async def take(self, batch: UsageBatch) -> None:
        """Return when it is kept. Raise a GpuloomError if it is not: then it comes again."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((batch, done))
        self._wake.set()
        await done

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            taken, self._waiting = self._waiting[:MAX_TOGETHER], self._waiting[MAX_TOGETHER:]
            if not self._waiting:
                self._wake.clear()
            try:
                await self._keep([batch for batch, _ in taken])
            except GpuloomError as error:
                await self._keep_each(taken, error)
            else:
                for _, done in taken:
                    _finish(done, None)

    async def _keep_each(
        self, taken: Sequence[tuple[UsageBatch, asyncio.Future[None]]], error: GpuloomError
    ) -> None:
        """One that can't be kept must not hold up the others."""
        if len(taken) == 1:
            _finish(taken[0][1], error)
            return
        for batch, done in taken:
            try:
                await self._keep([batch])
            except GpuloomError as own:
                _finish(done, own)
            else:
                _finish(done, None)

    async def _keep(self, batches: Sequence[UsageBatch]) -> None:
        kept = await self._store.ingest(batches, now_ns(self._clock))
        self._metrics.windows.inc(kept.rows)
        self._metrics.moved_windows.inc(kept.moved)
        self._metrics.lost_windows.labels("late").inc(kept.late)
        self._metrics.lost_windows.labels("missed").inc(sum(batch.missed for batch in batches))
        if kept.moved:
            nodes = sorted({batch.node_name for batch in batches})[:5]
            _log.warning("a node's clock was set", extra={"windows": kept.moved, "nodes": nodes})


def now_ns(clock: Clock) -> int:
    moment = clock.now()
    return int(moment.timestamp()) * NANOSECONDS_PER_SECOND + moment.microsecond * 1000


def _finish(done: asyncio.Future[None], error: GpuloomError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
