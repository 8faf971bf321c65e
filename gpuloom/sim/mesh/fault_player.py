"""Plays a fault plan on a running mesh, and undoes what it did, also when it is cancelled in between.

It only breaks what heals: a machine's faults file, a process that is stopped for a while, one that is killed
and started again by its supervisor.
"""

import logging
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from gpuloom.runtime.clock import Clock
from gpuloom.sim.machines.load import Faults, GpuFault
from gpuloom.sim.machines.machine import Machine
from gpuloom.sim.mesh.fault_plan import FaultKind, FaultPlan, PlannedFault
from gpuloom.sim.mesh.plan import MeshPlan, agent_groups, agent_process, central

_log = logging.getLogger(__name__)


class Processes(Protocol):
    """Of a supervisor, what is needed here."""

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None: ...


def plan_faults(mesh: MeshPlan, seed: int) -> FaultPlan:
    """For the processes of that mesh."""
    groups = agent_groups([machine.node for machine in mesh.machines])
    alone = [agent_process(*group) for group in groups if len(group) == 1]
    return FaultPlan(mesh.machines, alone, [row.short for row in central(mesh.roster)], seed)


class FaultPlayer:
    """`active` is the fault of this moment, `played` are all so far."""

    def __init__(
        self, faults: Iterable[PlannedFault], machines_dir: Path, processes: Processes, clock: Clock
    ) -> None:
        self._faults = faults
        self._machines_dir = machines_dir
        self._processes = processes
        self._clock = clock
        self._started_s = clock.monotonic()
        self.active: PlannedFault | None = None
        self.played: list[PlannedFault] = []

    async def run(self) -> None:
        for fault in self._faults:
            await self._clock.sleep(max(0.0, fault.at_s - self._elapsed_s()))
            with self._injected(fault):
                await self._clock.sleep(fault.duration_s)

    @contextmanager
    def _injected(self, fault: PlannedFault) -> Iterator[None]:
        _log.info("fault injected", extra={"fault": str(fault)})
        self.active = fault
        self.played.append(fault)
        try:
            self._begin(fault)
            yield
        finally:
            self._end(fault)
            self.active = None
            _log.info("fault over", extra={"fault": str(fault)})

    def _begin(self, fault: PlannedFault) -> None:
        match fault.kind:
            case FaultKind.GPU:
                self._set_gpu(fault, GpuFault(fault.health, fault.reason))
            case FaultKind.SILENT_AGENT:
                self._processes.kill(fault.target, signal.SIGSTOP)
            case FaultKind.KILLED_PROCESS:
                self._processes.kill(fault.target, signal.SIGKILL)

    def _end(self, fault: PlannedFault) -> None:
        match fault.kind:
            case FaultKind.GPU:
                self._set_gpu(fault, None)
            case FaultKind.SILENT_AGENT:
                # Whatever process has that name now: a new one does not mind.
                self._processes.kill(fault.target, signal.SIGCONT)
            case FaultKind.KILLED_PROCESS:
                return

    def _set_gpu(self, fault: PlannedFault, state: GpuFault | None) -> None:
        """Faults that a person put into the file stay there."""
        machine = Machine.open(self._machines_dir / fault.target)
        uuid = machine.hardware.gpus[fault.gpu_index].uuid
        others = {name: its for name, its in machine.faults().gpus.items() if name != uuid}
        machine.write_faults(Faults(others if state is None else {**others, uuid: state}))

    def _elapsed_s(self) -> float:
        return self._clock.monotonic() - self._started_s
