"""The life of a service: start, run until told to stop or a loop dies, drain, cancel, close.

It decides the order of these steps and how long each may take. It never touches signals, arguments or the
process; those are `service`'s.

    1. the status endpoint answers, not ready     4. not ready, drains in reverse order
    2. build                                      5. loops cancelled in reverse order
    3. loops run, ready                           6. contexts closed in reverse order
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from gpuloom.runtime.app import App, Work
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.runtime.heartbeat import Heartbeat
from gpuloom.runtime.http import StatusServer
from gpuloom.runtime.interruption import interrupted_by
from gpuloom.runtime.settings import HttpConfig

EXIT_OK = 0
EXIT_FAILED = 1

# After the drain time, loops may take this long to end, and contexts a little longer to close. Together
# with a drain time of 8 s that stays within a pod's grace period of 10 s.
CANCEL_TIME_S = 0.5
CLOSE_TIME_S = 1.5
# One step that uses up all the time must not keep a later one (releasing a lease, say) from being tried.
LEAST_SHARE_S = 0.1

log = logging.getLogger(__name__)


class Phase(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class StopTimes:
    """By when each step of a stop must be over, in seconds of the monotonic clock."""

    drained_by_s: float
    cancelled_by_s: float
    closed_by_s: float

    @classmethod
    def starting_at(cls, now_s: float, drain_timeout_s: float) -> Self:
        drained_by_s = now_s + drain_timeout_s
        return cls(drained_by_s, drained_by_s + CANCEL_TIME_S, drained_by_s + CLOSE_TIME_S)


class Lifecycle:
    """One run of one app. `on_stopping` is called once, when the stop begins for whatever reason."""

    def __init__(
        self,
        app: App,
        build: Work,
        http: HttpConfig,
        stop: asyncio.Event,
        on_stopping: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._build = build
        self._http = http
        self._stop = stop
        self._on_stopping = on_stopping
        self._phase = Phase.STARTING
        self._loops: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> int:
        """Return the exit code. Raises what build raised, after everything that was open is closed."""
        try:
            await self._start()
            if self._phase is Phase.STARTING:
                log.info("told to stop before the start was complete")
                return EXIT_OK
            return EXIT_FAILED if await self._loop_died() else EXIT_OK
        finally:
            await self._shut_down()

    async def _start(self) -> None:
        app, http = self._app, self._http
        app.add_readiness("lifecycle", self._why_not_ready)
        heartbeat = Heartbeat(app.name, app.clock, app.registry)
        app.add_liveness("event_loop", heartbeat.check)
        server = StatusServer(http.host, http.port, app.registry, app.liveness, app.readiness)
        await app.enter(server)
        app.http_port = server.port
        await app.enter(heartbeat)
        async with interrupted_by(self._stop.wait):
            await self._build()
        if self._stop.is_set():
            return
        app.seal()
        self._loops = {name: _start_task(f"loop {name}", loop) for name, loop in app.loops.items()}
        self._phase = Phase.RUNNING
        log.info("started", extra={"http_port": app.http_port, "loops": list(self._loops)})

    def _why_not_ready(self) -> str | None:
        return None if self._phase is Phase.RUNNING else self._phase.value

    async def _loop_died(self) -> bool:
        """Wait for the stop (False) or for the end of a loop that should have gone on (True)."""
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({stopping, *self._loops.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if self._stop.is_set():
            return False
        for name, task in self._loops.items():
            if task.done():
                fields = {"loop": name, "reason": _why_ended(task)}
                log.critical("loop ended, so the service ends", extra=fields, exc_info=_error_of(task))
        return True

    async def _shut_down(self) -> None:
        self._on_stopping()
        times = StopTimes.starting_at(self._app.clock.monotonic(), self._http.drain_timeout_s)
        # A service that never was ready has taken no work, and its drains may need what was never built.
        if self._phase is Phase.RUNNING:
            self._phase = Phase.DRAINING
            await self._drain(times.drained_by_s)
        await self._cancel_loops(times.cancelled_by_s)
        await self._close_contexts(times.closed_by_s)

    async def _drain(self, by_s: float) -> None:
        log.info("draining", extra={"drains": list(self._app.drains)})
        for name, drain in reversed(list(self._app.drains.items())):
            task = _start_task(f"drain {name}", drain)
            if not await _is_over(task, self._app.clock, by_s):
                log.error("drain took too long, abandoned", extra={"drain": name})
                task.cancel()
                await _is_over(task, self._app.clock, by_s)
            elif task.cancelled() or task.exception():
                fields = {"drain": name, "reason": _why_ended(task)}
                log.error("drain failed", extra=fields, exc_info=_error_of(task))

    async def _cancel_loops(self, by_s: float) -> None:
        for name, task in reversed(self._loops.items()):
            task.cancel()
            if not await _is_over(task, self._app.clock, by_s):
                log.error("loop ignores its cancellation, abandoned", extra={"loop": name})
            elif (error := _error_of(task)) is not None:
                log.error("loop failed while stopping", extra={"loop": name}, exc_info=error)

    async def _close_contexts(self, by_s: float) -> None:
        clock, contexts = self._app.clock, self._app.contexts
        while contexts:
            context = contexts.pop()
            try:
                async with deadline(clock, _share_s(clock, by_s)):
                    await context.__aexit__(None, None, None)
            except TimeoutError:
                log.error("context took too long to close, abandoned", extra={"context": _title(context)})
            except Exception:
                # One that cannot close must not keep the others open.
                log.exception("context failed to close", extra={"context": _title(context)})


def _start_task(name: str, work: Work) -> asyncio.Task[None]:
    async def run() -> None:
        await work()

    return asyncio.create_task(run(), name=name)


async def _is_over(task: asyncio.Task[None], clock: Clock, by_s: float) -> bool:
    """Wait for the task, at most until by_s. What it raised stays in the task."""
    timer = asyncio.create_task(clock.sleep(_share_s(clock, by_s)))
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
    return task.done()


def _share_s(clock: Clock, by_s: float) -> float:
    return max(LEAST_SHARE_S, by_s - clock.monotonic())


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


def _why_ended(task: asyncio.Task[None]) -> str:
    if task.cancelled():
        return "it was cancelled"
    error = task.exception()
    return "it returned" if error is None else f"{type(error).__name__}: {error}"


def _title(context: AbstractAsyncContextManager[Any]) -> str:
    """The name of the class, or of the function that @asynccontextmanager made it from."""
    return str(getattr(getattr(context, "gen", None), "__qualname__", type(context).__name__))
