"""One run of the embedded mesh from start to summary: signals, time, and what is shown meanwhile.

It decides when a run ends. How it is shown is a display's, how it is judged is the summary's.
"""

import asyncio
import logging
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpuloom.cli.run.observation import Observer, observe
from gpuloom.cli.run.summary import RunSummary
from gpuloom.errors import GpuloomError
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.interruption import interrupted_by
from gpuloom.runtime.logs import LogFormat, LogLevel, configure_logging
from gpuloom.sim.embedded import EmbeddedMesh, open_mesh
from gpuloom.sim.mesh.fault_player import FaultPlayer, plan_faults
from gpuloom.sim.mesh.plan import MeshOptions, MeshPlan
from gpuloom.sim.processes.supervisor import ProcessState

LOG_FILE = "gpuloom-run.log"
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedStartError(GpuloomError):
    """Told to end before the mesh was up."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """`duration_s` counts from when everything is up; None runs until told to end.

    With `faults` something breaks now and then, and heals by itself.
    """

    mesh: MeshOptions
    directory: Path
    duration_s: float | None = None
    faults: bool = True


class Display(Protocol):
    """Shows a run to somebody."""

    @property
    def interval_s(self) -> float:
        """How often to call `show`."""

    def opened(self, plan: MeshPlan) -> AbstractContextManager[object]:
        """Around the time in which `show` is called."""

    def show(self, observer: Observer) -> None: ...

    def say(self, text: str) -> None:
        """One line, before or after the rest."""


class RunSession:
    def __init__(self, request: RunRequest, display: Display, clock: Clock) -> None:
        self._request = request
        self._display = display
        self._clock = clock
        self._stop = asyncio.Event()

    async def run(self) -> RunSummary:
        """Raise StartError or InterruptedStartError if the mesh did not come up."""
        _stop_on_signals(self._stop)
        async with open_mesh(self._request.mesh, self._request.directory, self._clock) as mesh:
            directory = mesh.plan.directory
            with _log_file(directory.logs / LOG_FILE):
                if directory.machines_are_elsewhere:
                    self._display.say(f"sockets need a short path, so machines are in {directory.machines}")
                await self._start(mesh)
                faults = self._faults(mesh)
                async with observe(mesh, self._clock, faults) as observer:
                    with self._display.opened(mesh.plan):
                        await self._watch(mesh, observer)
                    duration_s, pods = observer.elapsed_s(), observer.tally.counts()
                failure, processes = mesh.supervisor.failure(), mesh.supervisor.statuses()
                self._display.say("ending all processes …")
        return RunSummary(
            duration_s=duration_s,
            nodes=self._request.mesh.nodes,
            seed=self._request.mesh.seed,
            pods=pods,
            # Only now have the kubelets written their last line.
            audit=mesh.audit(),
            restarts={process.name: process.restarts for process in processes},
            given_up=tuple(p.name for p in processes if p.state is ProcessState.GIVEN_UP),
            logs=directory.logs,
            failure=failure,
            faults=() if faults is None else tuple(map(str, faults.played)),
        )

    def _faults(self, mesh: EmbeddedMesh) -> FaultPlayer | None:
        if not self._request.faults:
            return None
        planned = plan_faults(mesh.plan, self._request.mesh.seed).faults()
        return FaultPlayer(planned, mesh.plan.directory.machines, mesh.supervisor, self._clock)

    async def _start(self, mesh: EmbeddedMesh) -> None:
        began_s = self._clock.monotonic()
        count = sum(len(stage) for stage in mesh.plan.stages)
        self._display.say(f"starting {count} processes for {len(mesh.plan.machines)} simulated nodes …")
        async with interrupted_by(self._stop.wait) as interruption:
            await mesh.start()
        if interruption.happened:
            raise InterruptedStartError("interrupted before everything was up")
        self._display.say(f"everything is up after {self._clock.monotonic() - began_s:.1f} s")

    async def _watch(self, mesh: EmbeddedMesh, observer: Observer) -> None:
        """Until told to end, the time is over, or to go on is pointless."""
        duration_s = math.inf if self._request.duration_s is None else self._request.duration_s
        async with interrupted_by(self._stop.wait):
            while not mesh.supervisor.failure():
                left_s = min(self._display.interval_s, duration_s - observer.elapsed_s())
                if left_s <= 0:
                    return
                await self._clock.sleep(left_s)
                self._display.show(observer)


def _stop_on_signals(stop: asyncio.Event) -> None:
    """The first signal asks for an end with a summary, a second one ends everything at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    for number in END_SIGNALS:
        loop.add_signal_handler(number, _stop_or_cancel(stop, task))


def _stop_or_cancel(stop: asyncio.Event, task: "asyncio.Task[object] | None") -> Callable[[], None]:
    def handle() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    return handle


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Our own log records into a file: on the terminal they would tear the screen."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", buffering=1) as stream:
        configure_logging("gpuloom_run", LogLevel.INFO, LogFormat.JSON, stream)
        try:
            yield
        finally:
            logging.basicConfig(handlers=[logging.NullHandler()], force=True)
