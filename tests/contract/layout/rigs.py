"""Machines whose GPUs can be cut, for the same suite: a simulated one, and NVML on the stand-in library."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prometheus_client import CollectorRegistry

from gpuloom.catalog import load_catalog
from gpuloom.model.gpu import Gpu, GpuHealth
from gpuloom.model.layout import GpuLayout, LayoutChange, LayoutRequest
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.machines.machine import Machine as SimulatedMachine
from gpuloom.sim.machines.machine import MachineSpec
from services.node_agent.layout.adapters.journal_file import JournalFile
from services.node_agent.layout.adapters.nvml import NvmlLayoutOptions, NvmlLayouts
from services.node_agent.layout.adapters.simulated import NoDeviceFiles, SimulatedLayouts, SimulatedSharing
from services.node_agent.layout.core.admission import Usage
from services.node_agent.layout.executor import Machine, Patience
from services.node_agent.layout.layouts import LayoutParts, Layouts
from services.node_agent.layout.metrics import LayoutMetrics
from services.node_agent.layout.ports import LayoutDriver, SharingControl
from services.node_agent.node import Node
from services.node_agent.nvml.driver import NvmlDriver
from tests.nvml.drivers import QUICK
from tests.nvml.library import Standin
from tests.nvml.machines import uuid as standin_uuid

MODEL = "A100-SXM4-40GB"


class Crash(BaseException):
    """The agent is gone at once."""


@dataclass
class Crashing:
    """Failpoints that end the agent when it comes by for the n-th time; 0: never."""

    at: int = 0
    passed: int = 0

    async def reach(self, name: str) -> None:
        self.passed += 1
        if self.passed == self.at:
            raise Crash(name)


@dataclass
class Slow:
    """Work that goes on when it is told to."""

    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def reach(self, name: str) -> None:
        await self.go_on.wait()


@dataclass
class Users:
    by_place: dict[MigPlacement | None, str] = field(default_factory=dict)

    async def of(self, gpu_uuid: str) -> Usage:
        return Usage(dict(self.by_place))


class Rig(Protocol):
    """`boot` is a reboot of the machine."""

    gpu: str
    folder: Path

    @property
    def boots(self) -> int: ...
    def driver(self) -> LayoutDriver: ...
    def sharing(self) -> SharingControl: ...
    def boot(self) -> None: ...
    async def close(self) -> None: ...


class SimulatedRig:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        spec = MachineSpec("n1", NodeMode.GPULOOM, MODEL, 1, "single", 32, 128)
        self._machine = SimulatedMachine.create(folder / "machine", spec)
        self.gpu = self._machine.hardware.gpus[0].uuid

    @property
    def boots(self) -> int:
        return self._machine.boots

    def driver(self) -> LayoutDriver:
        return SimulatedLayouts(self._machine)

    def sharing(self) -> SharingControl:
        return SimulatedSharing(self._machine)

    def boot(self) -> None:
        self._machine.layouts.boot()

    async def close(self) -> None:
        return None


class StandinRig:
    """The sharing is simulated: what is under test is how the GPU is cut."""

    def __init__(self, folder: Path, standin: Standin) -> None:
        self.folder = folder
        self.gpu = standin_uuid(0)
        self.boots = 1
        self.standin = standin
        spec = MachineSpec("n1", NodeMode.GPULOOM, MODEL, 1, "single", 32, 128)
        self._shares = SimulatedMachine.create(folder / "machine", spec)
        self._driver = NvmlDriver(load_catalog(), SystemClock(), QUICK)

    def driver(self) -> LayoutDriver:
        options = NvmlLayoutOptions(reset_command=("/bin/false",), read_patience_s=1.0, write_patience_s=1.0)
        return NvmlLayouts(self._driver, SystemClock(), options)

    def sharing(self) -> SharingControl:
        return SimulatedSharing(self._shares)

    def boot(self) -> None:
        self.boots += 1
        self.standin.reset_gpu(0)
        self._shares.layouts.boot()

    async def close(self) -> None:
        await self._driver.__aexit__(None, None, None)


def a_node(rig: Rig) -> Node:
    gpu = Gpu(rig.gpu, 0, MODEL, "ampere", 40960, GpuHealth.HEALTHY)
    state = NodeState("n1", "uid-n1", NodeMode.GPULOOM, Delivery.NRI, (gpu,))
    return Node(state, SystemClock(), 60.0)


@dataclass
class Agent:
    """One life of the agent on a rig."""

    rig: Rig
    layouts: Layouts
    node: Node
    users: Users

    @classmethod
    async def start(
        cls,
        rig: Rig,
        points: Crashing | Slow | None = None,
        users: Users | None = None,
        patience_s: float = 10.0,
    ) -> "Agent":
        node, users = a_node(rig), users or Users()
        parts = LayoutParts(
            machine=Machine(rig.driver(), rig.sharing(), users),
            store=JournalFile(rig.folder / "layouts.json"),
            devices=NoDeviceFiles(),
            clock=SystemClock(),
            metrics=LayoutMetrics(CollectorRegistry()),
            boot_id=lambda: str(rig.boots),
            reach=(points or Crashing()).reach,
            patience=Patience(pause_s=0.0, step_timeout_s=2.0, read_timeout_s=2.0),
        )
        agent = cls(rig, Layouts(node, parts), node, users)
        await agent.layouts.open()
        await agent.layouts.settle(patience_s)
        return agent

    async def change(self, request: LayoutRequest) -> LayoutChange:
        """Raise Crash if the agent dies of it."""
        working = asyncio.create_task(self.layouts.run())
        asking = asyncio.create_task(self.layouts.change(request))
        await asyncio.wait((working, asking), return_when=asyncio.FIRST_COMPLETED)
        for task in (working, asking):
            task.cancel()
        results = await asyncio.gather(working, asking, return_exceptions=True)
        for result in results:
            if isinstance(result, Crash) or (
                isinstance(result, BaseExceptionGroup) and result.subgroup(Crash)
            ):
                raise Crash
        outcome = results[1]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def layout(self) -> GpuLayout:
        return (await self.layouts.list_now()).gpus[0]

    async def places(self) -> set[MigPlacement]:
        return set((await self.layout()).usable)


MakeRig = Callable[[], Rig]


@asynccontextmanager
async def opened(rig: Rig) -> AsyncIterator[Rig]:
    try:
        yield rig
    finally:
        await rig.close()
