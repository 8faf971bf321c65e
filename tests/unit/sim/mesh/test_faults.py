"""The faults of a run: planned by seed, played on machines and processes, undone."""

import asyncio
import itertools
import signal
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.gpu import GpuHealth
from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.machines.cluster import create_machines, plan_machines
from gpuloom.sim.machines.load import Faults, GpuFault
from gpuloom.sim.machines.machine import Machine
from gpuloom.sim.mesh.fault_plan import SILENCE_S, FaultKind, FaultPlan, PlannedFault
from gpuloom.sim.mesh.fault_player import FaultPlayer, plan_faults
from gpuloom.sim.mesh.plan import MeshPlan
from tests.unit.sim.mesh.test_mesh import a_plan

MACHINES = plan_machines(4, seed=1)
AGENTS = tuple(f"agent-{machine.node}" for machine in MACHINES)
OLD = GpuFault(GpuHealth.UNHEALTHY, "put there by a person")


@dataclass
class FakeProcesses:
    signals: list[tuple[str, signal.Signals]] = field(default_factory=list)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        self.signals.append((name, number))


def first(seed: int, count: int, agents: tuple[str, ...] = AGENTS) -> list[PlannedFault]:
    plan = FaultPlan(MACHINES, agents, ("discovery", "extender"), seed)
    return list(itertools.islice(plan.faults(), count))


@given(st.integers(0, 10_000))
def test_faults_come_one_at_a_time_of_every_kind_and_repeatably(seed: int) -> None:
    faults = first(seed, 12)

    assert faults == first(seed, 12)
    assert all(a.at_s + a.duration_s < b.at_s for a, b in itertools.pairwise(faults))
    assert {fault.kind for fault in faults[:3]} == set(FaultKind)
    assert all(f.duration_s > 30 for f in faults if f.kind is FaultKind.SILENT_AGENT)
    assert SILENCE_S[0] > 30


def test_agents_that_share_a_process_are_not_silenced(tmp_path: Path) -> None:
    shared, alone = (plan_faults(a_plan(tmp_path, nodes), seed=1) for nodes in (100, 3))

    assert len(shared.agents) == 2
    assert len(alone.agents) == 3
    assert all(fault.kind is not FaultKind.SILENT_AGENT for fault in first(1, 12, agents=()))


def a_mesh(directory: Path) -> MeshPlan:
    plan = a_plan(directory)
    create_machines(plan.directory.machines, plan.machines)
    return plan


async def test_a_gpu_fails_and_heals_and_other_faults_stay(tmp_path: Path) -> None:
    mesh = a_mesh(tmp_path)
    machine = Machine.open(mesh.directory.machines / mesh.machines[0].node)
    old, broken = machine.hardware.gpus[0].uuid, machine.hardware.gpus[1].uuid
    machine.write_faults(Faults({old: OLD}))
    fault = PlannedFault(1.0, 5.0, FaultKind.GPU, machine.spec.node, 1, GpuHealth.LOST, "XID 79")
    clock = FakeClock()
    player = FaultPlayer([fault], mesh.directory.machines, FakeProcesses(), clock)
    running = asyncio.create_task(player.run())

    await clock.advance(2.0)
    during = dict(machine.faults().gpus)
    shown = player.active
    await clock.advance(10.0)
    await running

    assert during == {old: OLD, broken: GpuFault(GpuHealth.LOST, "XID 79")}
    assert str(shown) == f"GPU 1 of {machine.spec.node} lost: XID 79"
    assert dict(machine.faults().gpus) == {old: OLD}
    assert player.active is None


async def test_a_silent_agent_goes_on_when_the_run_ends_in_between(tmp_path: Path) -> None:
    processes = FakeProcesses()
    fault = PlannedFault(1.0, 45.0, FaultKind.SILENT_AGENT, AGENTS[0])
    clock = FakeClock()
    player = FaultPlayer([fault], tmp_path, processes, clock)
    running = asyncio.create_task(player.run())
    await clock.advance(2.0)

    running.cancel()
    await asyncio.wait({running})

    assert processes.signals == [(AGENTS[0], signal.SIGSTOP), (AGENTS[0], signal.SIGCONT)]
