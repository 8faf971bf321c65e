"""The cluster from its start to the last figure."""

import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from gpuloom.errors import UnavailableError
from gpuloom.kube.access import access_from_kubeconfig
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.resources import PODS
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.processes.child_process import ProcessSpec, last_lines
from gpuloom.sim.processes.ports import HOST
from gpuloom.sim.processes.supervisor import RestartPolicy, Supervisor
from tests.bench.agent.observation import Memory, cpu_s, memory
from tests.bench.audit import check_devices, check_nodes, placed_pods
from tests.bench.discovery import discovery_server
from tests.bench.extender_scale.caller import Address, Script, Waits, read_waits, write_script
from tests.bench.extender_scale.ground import Ground, lay_ground
from tests.bench.extender_scale.population import Size
from tests.bench.extender_scale.stage import DO_NOTHING, EXTENDER, Stage
from tests.bench.workload import NAMESPACE, pod_object

_SCHEDULER = "bench"
_SETTLE_S = 5.0
_CALLS_TIMEOUT_S = 900.0
# Whoever dies is not started again: a second life would be measured as a slow first one.
_POLICY = RestartPolicy(max_early_deaths=1, first_delay_s=_CALLS_TIMEOUT_S, delay_cap_s=_CALLS_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Use:
    """Of one extender: what its caller waited, and its processor time from the first call to the last."""

    waits: Waits
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    size: Size
    ready_after_s: float
    ready_cpu_s: float
    ready: Memory
    end: Memory
    ours: Use
    do_nothing: Use
    load_average: float
    """Of the machine, over the minute before the calls."""
    problems: tuple[str, ...]
    """Of what was placed."""


async def measure(folder: Path, size: Size, clock: Clock) -> Measured:
    """Raise StartError or UnavailableError if something does not come up, or ends before it should."""
    ground = await asyncio.to_thread(lay_ground, folder, size, clock)
    async with AsyncExitStack() as stack:
        facts = tuple(ground.nodes.values())
        discovery = await stack.enter_async_context(
            discovery_server(facts, ground.identities["discovery"], clock)
        )
        stage = Stage(ground, f"{HOST}:{discovery.port}", clock)
        supervisor = await stack.enter_async_context(Supervisor(clock, _POLICY))
        await supervisor.start([stage.apis(), [stage.do_nothing()]])
        began_s = clock.monotonic()
        await supervisor.start([[stage.extender()]])
        ready_after_s, pid = clock.monotonic() - began_s, _pid(supervisor, EXTENDER)
        ready_cpu_s, ready = cpu_s(pid), memory(pid)
        await clock.sleep(_SETTLE_S)
        load_average = os.getloadavg()[0]
        ours, do_nothing = await _call(supervisor, ground, stage, clock)
        end, problems = memory(pid), await _problems(ground, clock)
    return Measured(
        size=size,
        ready_after_s=ready_after_s,
        ready_cpu_s=ready_cpu_s,
        ready=ready,
        end=end,
        ours=ours,
        do_nothing=do_nothing,
        load_average=load_average,
        problems=problems,
    )


async def _call(supervisor: Supervisor, ground: Ground, stage: Stage, clock: Clock) -> tuple[Use, Use]:
    pids = [_pid(supervisor, name) for name in (EXTENDER, DO_NOTHING)]
    ports = ground.ports
    addresses = {
        EXTENDER: Address(ports.extender, ports.api),
        DO_NOTHING: Address(ports.do_nothing, ports.aside_api),
    }
    pods = [pod_object(plan, _SCHEDULER) for plan in ground.pods]
    script = Script(str(ground.certificates), addresses, list(ground.nodes), pods)
    await asyncio.to_thread(write_script, stage.script_file, script)
    before_s = [cpu_s(pid) for pid in pids]
    await _run_to_its_end(stage.caller(), clock)
    used_s = [cpu_s(pid) - earlier_s for pid, earlier_s in zip(pids, before_s, strict=True)]
    waits = await asyncio.to_thread(read_waits, stage.waits_file)
    return Use(waits[EXTENDER], used_s[0]), Use(waits[DO_NOTHING], used_s[1])


async def _run_to_its_end(spec: ProcessSpec, clock: Clock) -> None:
    with spec.log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *spec.argv, env=dict(spec.environment), cwd=spec.working_dir, stdout=log, stderr=log
        )
    try:
        async with deadline(clock, _CALLS_TIMEOUT_S):
            code = await process.wait()
    except TimeoutError:
        raise UnavailableError(f"the calls were not done within {_CALLS_TIMEOUT_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code:
        said = " | ".join(last_lines(spec.log_path))
        raise UnavailableError(f"the caller ended with {code}: {said}")


async def _problems(ground: Ground, clock: Clock) -> tuple[str, ...]:
    """What is wrong with where pods are and with what they were given, beside those who were there before."""
    access = access_from_kubeconfig([ground.kubeconfig(ground.ports.api)], None, clock)
    async with KubeClient(access, clock) as client:
        listing = await client.list(PODS, Selection(NAMESPACE))
    everybody = [*ground.residents, *placed_pods(ground.pods, listing.items)]
    return (*check_nodes(everybody, ground.nodes), *check_devices(everybody, ground.nodes))


def _pid(supervisor: Supervisor, name: str) -> int:
    pid = supervisor.pid(name)
    if pid is None:
        raise UnavailableError(f"{name} died as soon as it was ready")
    return pid
