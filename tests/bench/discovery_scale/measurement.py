"""One cluster from its start to the last figure."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from prometheus_client import CollectorRegistry

from gpuloom.errors import UnavailableError
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.processes.ports import HOST
from gpuloom.sim.processes.probes import gpus_offered
from gpuloom.sim.processes.supervisor import Supervisor
from tests.bench.agent.observation import Memory, cpu_s, memory, yardstick_s
from tests.bench.discovery_scale.changes import AgentProbe, make_changes
from tests.bench.discovery_scale.figures import OwnFigures, parse_own_figures
from tests.bench.discovery_scale.ground import Ground, lay_ground
from tests.bench.discovery_scale.population import Size
from tests.bench.discovery_scale.reader import read_sightings
from tests.bench.discovery_scale.stage import DISCOVERY, STARTED_S, Stage

_QUIET_S = 15.0
_LOOK_S = 1.0
_YARDSTICKS = 9


@dataclass(frozen=True, slots=True)
class Effort:
    rest_s: float
    changes: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Discovery over a while in which nothing happens but usage and heartbeats."""

    took_s: float
    cpu_s: float
    own: OwnFigures
    memory: Memory
    yardstick_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """`told_s` is when agents told of changes, `seen_s` by reader when its mirror showed them."""

    size: Size
    synced_after_s: float
    rest: Rest
    told_s: Mapping[str, float]
    seen_s: Mapping[str, Mapping[str, float]]
    end: OwnFigures


async def measure(folder: Path, size: Size, effort: Effort, clock: Clock) -> Measured:
    """Raise UnavailableError if the cluster does not come to rest."""
    ground = await asyncio.to_thread(lay_ground, folder, size, clock)
    stage = Stage(ground, clock)
    async with Supervisor(clock) as supervisor:
        await supervisor.start([[stage.api()]])
        # One fleet after the other: they list 10,000 pods each.
        await supervisor.start([[fleet] for fleet in stage.fleets()])
        began_s = clock.monotonic()
        await supervisor.start([[stage.discovery()]])
        synced_after_s = clock.monotonic() - began_s
        await supervisor.start([[stage.reader(plan) for plan in stage.readers]])
        pid = _pid(supervisor)
        await _come_to_rest(ground, stage, clock)
        rest = await _rest(pid, stage, effort.rest_s, clock)
        told_s = await _change(ground, effort.changes, clock)
        end = await _own_figures(stage)
        seen_s = {plan.name: read_sightings(plan.seen) for plan in stage.readers}
        return Measured(size, synced_after_s, rest, told_s, seen_s, end)


async def _come_to_rest(ground: Ground, stage: Stage, clock: Clock) -> None:
    """Until every node is trusted and carries what discovery writes to it, and a while more."""
    nodes, figures = ground.size.nodes, None
    written = gpus_offered(f"http://{HOST}:{ground.api_port}", nodes, clock)
    try:
        async with deadline(clock, STARTED_S):
            while True:
                figures = await _own_figures(stage)
                if figures.trusted_nodes == nodes and await written():
                    break
                await clock.sleep(_LOOK_S)
    except TimeoutError:
        raise UnavailableError(
            f"after {STARTED_S:g} s not every node is trusted and written: {figures}"
        ) from None
    await clock.sleep(_QUIET_S)


async def _rest(pid: int, stage: Stage, rest_s: float, clock: Clock) -> Rest:
    before, began_s, began_cpu_s = await _own_figures(stage), clock.monotonic(), cpu_s(pid)
    await clock.sleep(rest_s)
    used_s, took_s = cpu_s(pid) - began_cpu_s, clock.monotonic() - began_s
    own = (await _own_figures(stage)).since(before)
    yardstick = sorted(yardstick_s() for _ in range(_YARDSTICKS))[_YARDSTICKS // 2]
    return Rest(took_s, used_s, own, memory(pid), yardstick)


async def _change(ground: Ground, count: int, clock: Clock) -> dict[str, float]:
    """When the agents told of the changes that were made."""
    rpc = RpcEnvironment(tls_files(ground.certificates, "cli"), CollectorRegistry(), clock)
    told_s: dict[str, float] = {}
    probes = [AgentProbe(rpc, ground.agent_address(machine), told_s) for machine in ground.probed]
    async with asyncio.TaskGroup() as tasks:
        listening = [tasks.create_task(probe.listen()) for probe in probes]
        await make_changes(ground.probed, count, clock)
        for task in listening:
            task.cancel()
    return told_s


async def _own_figures(stage: Stage) -> OwnFigures:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(raise_for_status=True))
        answer = await stack.enter_async_context(session.get(f"{stage.discovery_url}/metrics"))
        return parse_own_figures(await answer.text())


def _pid(supervisor: Supervisor) -> int:
    pid = supervisor.pid(DISCOVERY)
    if pid is None:
        raise UnavailableError("discovery died as soon as it was ready")
    return pid
