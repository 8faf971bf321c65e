"""Runs processes: starts them in stages, restarts those that die, and ends all of them together.

    async with Supervisor(clock) as supervisor:
        await supervisor.start(stages)

Leaving the block ends every process, also if the start failed half-way. It knows nothing of what they do.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import Self

from gpuloom.errors import GpuloomError
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.runtime.interruption import interrupted_by
from gpuloom.sim.processes.child_process import (
    ChildProcess,
    ProcessGuard,
    ProcessSpec,
    bound_log,
    describe_exit,
    last_lines,
)

_log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 12.0
PROBE_INTERVAL_S = 0.1
LOG_CHECK_INTERVAL_S = 5.0
_LONGEST_TAIL = 600


class StartError(GpuloomError):
    """A process could not be started; the text names it, its log, and what it said last."""


class ProcessState(StrEnum):
    """RUNNING: it was ready at least once in this life. WAITING: it died and is started again soon."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    GIVEN_UP = "given up"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """`restarts` counts deaths that were answered; `last_exit` is empty until the first one."""

    name: str
    state: ProcessState
    pid: int | None = None
    restarts: int = 0
    last_exit: str = ""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Waits grow from death to death until a life was steady. Deaths at the very start end the patience.

    An early death is one before the process was ready, or, if nothing can tell that, within `early_s`.
    """

    first_delay_s: float = 0.2
    delay_cap_s: float = 5.0
    steady_s: float = 30.0
    early_s: float = 3.0
    max_early_deaths: int = 4


class Supervisor:
    def __init__(
        self,
        clock: Clock,
        policy: RestartPolicy | None = None,
        stop_timeout_s: float = STOP_TIMEOUT_S,
        keep_open: tuple[int, ...] = (),
    ) -> None:
        """`keep_open` are descriptors that stay open until the last process has ended, even after SIGKILL."""
        self._clock = clock
        self._policy = policy or RestartPolicy()
        self._stop_timeout_s = stop_timeout_s
        self._keep_open = keep_open
        self._guard: ProcessGuard | None = None
        self._supervised: dict[str, _Supervised] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._log_check: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._defect: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._guard = await ProcessGuard.start(self._keep_open)
        self._log_check = asyncio.create_task(self._bound_logs())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._log_check is not None:
            self._log_check.cancel()
        try:
            await self.stop()
        finally:
            if self._guard is not None:
                await self._guard.close()

    async def start(self, stages: Sequence[Sequence[ProcessSpec]]) -> None:
        """Start stage after stage, each once the one before is ready. Raise StartError if one can't be."""
        for stage in stages:
            for spec in stage:
                self._add(spec)
            for spec in stage:
                await self._wait_ready(spec)

    async def stop(self) -> None:
        """End all, the last one first; what is left after the bound, or if this is cancelled, is killed."""
        for supervised in reversed(self._supervised.values()):
            supervised.end(signal.SIGTERM)
        try:
            async with deadline(self._clock, self._stop_timeout_s):
                await _all_over(self._tasks.values())
        except TimeoutError:
            slow = [name for name, task in self._tasks.items() if not task.done()]
            _log.warning("processes did not end in time, killed", extra={"processes": slow})
        finally:
            for supervised in self._supervised.values():
                supervised.end(signal.SIGKILL)
        await _all_over(self._tasks.values())

    def statuses(self) -> tuple[ProcessStatus, ...]:
        """In the order of their start."""
        return tuple(supervised.status for supervised in self._supervised.values())

    def pid(self, name: str) -> int | None:
        return self._supervised[name].status.pid

    def restarts(self, name: str) -> int:
        return self._supervised[name].status.restarts

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        self._supervised[name].signal(number)

    def failure(self) -> str:
        """Why to go on is pointless, or an empty text."""
        for supervised in self._supervised.values():
            if supervised.spec.critical and supervised.status.state is ProcessState.GIVEN_UP:
                return supervised.explain("was given up")
        return ""

    async def until(self, condition: Callable[["Supervisor"], bool]) -> None:
        """Return when it holds; it is asked again whenever the status of a process changes."""
        while not condition(self):
            if self._defect is not None:
                raise self._defect
            self._changed.clear()
            await self._changed.wait()

    def _add(self, spec: ProcessSpec) -> None:
        if self._guard is None:
            raise ValueError("the supervisor has not been entered")
        if spec.name in self._supervised:
            raise ValueError(f"two processes are called {spec.name}")
        supervised = _Supervised(spec, self._guard, self._clock, self._policy, self._changed.set)
        self._supervised[spec.name] = supervised
        task = asyncio.create_task(supervised.run(), name=f"supervise {spec.name}")
        task.add_done_callback(self._on_done)
        self._tasks[spec.name] = task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """A mistake of ours in there must not leave anybody waiting for a change that never comes."""
        if not task.cancelled() and task.exception() is not None:
            self._defect = task.exception()
            self._changed.set()

    async def _wait_ready(self, spec: ProcessSpec) -> None:
        supervised = self._supervised[spec.name]
        settled = (ProcessState.RUNNING, ProcessState.GIVEN_UP)
        try:
            async with deadline(self._clock, spec.start_timeout_s):
                await self.until(lambda _: supervised.status.state in settled)
        except TimeoutError:
            raise StartError(supervised.explain(f"was not ready within {spec.start_timeout_s:g} s")) from None
        if supervised.status.state is ProcessState.GIVEN_UP:
            raise StartError(supervised.explain("could not be started"))

    async def _bound_logs(self) -> None:
        while True:
            await self._clock.sleep(LOG_CHECK_INTERVAL_S)
            for supervised in self._supervised.values():
                await asyncio.to_thread(bound_log, supervised.spec.log_path)


class _Supervised:
    """One process through its lives."""

    def __init__(
        self,
        spec: ProcessSpec,
        guard: ProcessGuard,
        clock: Clock,
        policy: RestartPolicy,
        on_change: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.status = ProcessStatus(spec.name, ProcessState.STARTING)
        self._guard = guard
        self._clock = clock
        self._policy = policy
        self._on_change = on_change
        self._child: ChildProcess | None = None
        self._ending = asyncio.Event()
        self._ending_by = signal.SIGTERM

    async def run(self) -> None:
        """Live after life, until told to stop or given up."""
        backoff = Backoff(self._policy.first_delay_s, self._policy.delay_cap_s)
        early_deaths = 0
        while True:
            began_s = self._clock.monotonic()
            self._tell(replace(self.status, state=ProcessState.STARTING))
            reason = await self._live()
            life_s = self._clock.monotonic() - began_s
            if self._ending.is_set():
                self._tell(replace(self.status, state=ProcessState.STOPPED, pid=None, last_exit=reason))
                return
            early_deaths = early_deaths + 1 if self._was_early(life_s) else 0
            _log.warning("process died", extra={"process_name": self.spec.name, "reason": reason})
            if early_deaths >= self._policy.max_early_deaths:
                self._tell(replace(self.status, state=ProcessState.GIVEN_UP, pid=None, last_exit=reason))
                return
            if life_s >= self._policy.steady_s:
                backoff.reset()
            self._tell(replace(self.status, state=ProcessState.WAITING, pid=None, last_exit=reason))
            # Not by cancelling this task: a process that is just being started would be lost from sight.
            async with interrupted_by(self._ending.wait):
                await self._clock.sleep(backoff.next_delay_s())
            if self._ending.is_set():
                self._tell(replace(self.status, state=ProcessState.STOPPED))
                return
            self._tell(replace(self.status, restarts=self.status.restarts + 1))

    def end(self, number: signal.Signals) -> None:
        """End it for good, also if it is only about to start."""
        self._ending_by = number
        self._ending.set()
        self.signal(number)

    def signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.signal(number)

    def explain(self, what: str) -> str:
        """One line: what happened to it, how it ended, and the end of its log."""
        how = f": it {self.status.last_exit}" if self.status.last_exit else ""
        said = " | ".join(last_lines(self.spec.log_path))[-_LONGEST_TAIL:]
        tail = f"its log {self.spec.log_path} ends with: {said}" if said else f"see {self.spec.log_path}"
        return f"{self.spec.name} {what}{how}; {tail}"

    async def _live(self) -> str:
        """One life, from start to end; how it ended."""
        try:
            self._child = child = await ChildProcess.spawn(self.spec, self._guard)
        except OSError as error:
            return f"can't be run: {error.strerror}: {self.spec.argv[0]}"
        state = ProcessState.STARTING if self.spec.ready else ProcessState.RUNNING
        self._tell(replace(self.status, state=state, pid=child.pid))
        if self._ending.is_set():
            child.signal(self._ending_by)
        probing = asyncio.create_task(self._probe())
        try:
            return describe_exit(await child.wait())
        finally:
            probing.cancel()
            child.release()

    async def _probe(self) -> None:
        if self.spec.ready is None:
            return
        while not await self.spec.ready():
            await self._clock.sleep(PROBE_INTERVAL_S)
        self._tell(replace(self.status, state=ProcessState.RUNNING))

    def _was_early(self, life_s: float) -> bool:
        if self.spec.ready is None:
            return life_s < self._policy.early_s
        return self.status.state is ProcessState.STARTING

    def _tell(self, status: ProcessStatus) -> None:
        self.status = status
        self._on_change()


async def _all_over(tasks: Iterable[asyncio.Task[None]]) -> None:
    waiting = [task for task in tasks if not task.done()]
    if waiting:
        await asyncio.wait(waiting)
