"""A simulated cluster for a mesh that runs elsewhere: each service in a container, on one network.

Runs what is not ours (Kubernetes API, kubelets, scheduler, controllers, workload) and leaves in its directory
what the others need: machines, a kubeconfig, and where the agents are to listen. The directory outlives it,
so a restart goes on with the same nodes and pods. It never starts a service of ours.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import yaml

from gpuloom.errors import UnavailableError
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.parsers import Address
from gpuloom.sim.machines.cluster import create_machines, plan_machines, with_mig_slices
from gpuloom.sim.machines.hardware import MachineSpec
from gpuloom.sim.machines.machine import machine_names
from gpuloom.sim.mesh.files import kubeconfig
from gpuloom.sim.mesh.plan import Elsewhere, MeshOptions, MeshPlanner, MeshPorts, clean_environment
from gpuloom.sim.mesh.run_directory import RunDirectory, resume_run_directory
from gpuloom.sim.processes.ports import HOST
from gpuloom.sim.processes.probes import gpus_offered
from gpuloom.sim.processes.supervisor import PROBE_INTERVAL_S, Supervisor

EVERYWHERE = "0.0.0.0"  # noqa: S104 - the mesh comes from other containers


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`name`: this host as others call it. `agents`: their host, and the port of the first of them."""

    name: str
    api_port: int
    cloud_port: int
    agents: Address
    extender_url: str
    certificates: Path
    inference_port: int = 8003


class SimulatedCluster:
    def __init__(self, options: MeshOptions, around: Surroundings, clock: Clock) -> None:
        self._options = options
        self._around = around
        self._clock = clock

    async def run(self, directory: Path) -> None:
        """Until cancelled. Raise StartError or UnavailableError if a process can't be kept running."""
        machines = with_mig_slices(plan_machines(self._options.nodes, self._options.seed))
        with resume_run_directory(directory, self._around.certificates) as run_directory:
            self._write(run_directory, machines)
            first, then = self._planner(run_directory, machines).simulation()
            async with Supervisor(self._clock, keep_open=(run_directory.lock_descriptor,)) as supervisor:
                await supervisor.start([(spec,) for spec in first])
                await self._wait_for_gpus(supervisor, len(machines))
                await supervisor.start([then])
                await supervisor.until(lambda each: bool(each.failure()))
                raise UnavailableError(supervisor.failure())

    def _planner(self, directory: RunDirectory, machines: tuple[MachineSpec, ...]) -> MeshPlanner:
        ports = MeshPorts(
            api=self._around.api_port,
            cloud=self._around.cloud_port,
            inference=self._around.inference_port,
            services={},
            agents_grpc=(),
            agents=(),
        )
        return MeshPlanner(
            self._options,
            directory,
            machines,
            ports,
            clean_environment(os.environ),
            self._clock,
            elsewhere=Elsewhere(EVERYWHERE, self._around.extender_url),
        )

    def _write(self, directory: RunDirectory, machines: Sequence[MachineSpec]) -> None:
        known = machine_names(directory.machines)
        create_machines(directory.machines, (spec for spec in machines if spec.node not in known))
        self._list_agents(directory.agents_file, [spec.node for spec in machines])
        api_url = f"http://{self._around.name}:{self._around.api_port}"
        directory.kubeconfig.write_text(yaml.safe_dump(kubeconfig(api_url)), encoding="utf-8")

    def _list_agents(self, path: Path, nodes: Iterable[str]) -> None:
        """Whoever is listed stays as it is: agents of machines that came later have listed themselves."""
        listed = orjson.loads(path.read_bytes()) if path.exists() else {}
        addresses = {**agent_addresses(nodes, self._around.agents), **listed}
        if addresses != listed:
            path.write_bytes(orjson.dumps(addresses, option=orjson.OPT_INDENT_2))

    async def _wait_for_gpus(self, supervisor: Supervisor, count: int) -> None:
        """However long the mesh takes to start; a pod that is tried too early would wait out its backoff."""
        offered = gpus_offered(f"http://{HOST}:{self._around.api_port}", count, self._clock)
        while not await offered():
            if supervisor.failure():
                raise UnavailableError(supervisor.failure())
            await self._clock.sleep(PROBE_INTERVAL_S)


def agent_addresses(nodes: Iterable[str], first: Address) -> Mapping[str, str]:
    """A port for each agent, in the order of the nodes' names."""
    return {node: f"{first.host}:{first.port + index}" for index, node in enumerate(sorted(nodes))}
