"""The list of processes on request.

One listing runs at a time, since the driver holds a lock meanwhile; whoever asks during it shares its answer.
"""

import asyncio
import contextvars
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gpuloom.model.process import GpuProcess
from services.node_agent.attribution.census import Census
from services.node_agent.ports import GpuDriver


@dataclass(frozen=True, slots=True)
class ProcessList:
    """`unanswered` are the GPUs whose processes are not known now, by UUID, with the reason."""

    processes: tuple[GpuProcess, ...]
    unanswered: dict[str, str]


class ProcessLister:
    """A context: a listing that still runs ends with it."""

    def __init__(self, driver: GpuDriver, census: Census) -> None:
        self._driver = driver
        self._census = census
        self._running: asyncio.Task[ProcessList] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def list_now(self) -> ProcessList:
        """Raise UnavailableError if the driver does not answer."""
        running = self._running
        if running is None or running.done():
            # Not in the caller's context: its deadline is not that of those who join.
            running = asyncio.create_task(self._list(), context=contextvars.Context())
            running.add_done_callback(_hear_error)
            self._running = running
        # A caller whose time is up leaves; the listing goes on for the others.
        return await asyncio.shield(running)

    async def _list(self) -> ProcessList:
        processes, unanswered = await self._driver.list_processes()
        return ProcessList(await self._census.of(processes), unanswered)


def _hear_error(task: asyncio.Task[ProcessList]) -> None:
    """Every caller may have left before it failed."""
    if not task.cancelled():
        task.exception()
