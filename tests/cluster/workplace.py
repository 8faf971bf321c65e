"""The controller and the webhook as processes beside a real control plane, each under its own account."""

import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.roster import GRPC, HTTP
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.processes.child_process import ProcessSpec
from gpuloom.sim.processes.ports import HOST, free_ports
from gpuloom.sim.processes.supervisor import RestartPolicy, Supervisor
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane, ControlPlaneOptions, open_control_plane
from tests.cluster.mesh import MeshLayout, assign_ports, count_ports
from tests.cluster.shared import MANIFESTS, account_of, apply_rights
from tests.cluster.stand_in_optimizer import StandInOptimizer, serving

CONTROLLER = {
    "GPULOOM_CONTROLLER_LEADER_ELECTION": "true",
    "GPULOOM_CONTROLLER_LEASE_NAMESPACE": "gpuloom-system",
    "GPULOOM_CONTROLLER_DEFAULT_IMAGE": "example/model:1",
    "GPULOOM_CONTROLLER_GPU_RESOURCE": "nvidia.com/gpu",
    "GPULOOM_CONTROLLER_WASTE_INTERVAL": "2s",
}


@dataclass(frozen=True)
class Workplace:
    plane: ControlPlane
    client: KubeClient
    supervisor: Supervisor
    layout: MeshLayout
    optimizer: StandInOptimizer
    clock: Clock

    def replica(self, service: str, number: int, settings: dict[str, str]) -> tuple[ProcessSpec, int]:
        """A process of it on ports of its own, and its port of metrics."""
        chosen = assign_ports(free_ports(count_ports(), random.Random()))
        services = {**chosen.services, "optimizer": self.layout.ports.services["optimizer"]}
        layout = replace(self.layout, ports=replace(chosen, services=services))
        name = f"{service}-{number}"
        spec = replace(layout.service(service, settings), name=name, log_path=layout.logs / f"{name}.log")
        return spec, services[service][HTTP]

    def pid(self, name: str) -> int:
        (found,) = (one.pid for one in self.supervisor.statuses() if one.name == name)
        assert found is not None
        return found

    def denied_calls(self) -> list[str]:
        """What a service tried and its account was not allowed to do."""
        logs = [path for kind in ("controller", "webhook") for path in self.layout.logs.glob(f"{kind}*.log")]
        lines = [line for path in logs for line in path.read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if "answered 403" in line]

    async def eventually(
        self,
        find: Callable[[], Awaitable[JsonObject | bool | None]],
        within_s: float = 120.0,
        every_s: float = 0.2,
    ) -> JsonObject | bool:
        async with deadline(self.clock, within_s):
            while True:
                if found := await find():
                    return found
                await self.clock.sleep(every_s)


@asynccontextmanager
async def open_workplace(
    binaries: Binaries, directory: Path, clock: Clock, *, controllers: bool
) -> AsyncIterator[Workplace]:
    options = ControlPlaneOptions(controller_manager=controllers)
    async with open_control_plane(binaries, directory, clock, options) as plane, plane.client() as client:
        await plane.apply(MANIFESTS.parent / "crds", MANIFESTS.parent / "priority-classes.yaml")
        await apply_rights(plane)
        accounts = {
            name: await plane.service_account_kubeconfig(*account_of(name))
            for name in ("controller", "webhook")
        }
        with tempfile.TemporaryDirectory(prefix="gpuloom-") as folder:
            layout = MeshLayout(
                directory=Path(folder),
                logs=plane.directory / "logs",
                admin=plane.admin_kubeconfig,
                accounts=accounts,
                nodes=(),
                ports=assign_ports(free_ports(count_ports(), random.Random())),
                clock=clock,
            )
            issue_development_certificates(layout.certificates, CertificateOrder(), clock)
            optimizer = StandInOptimizer(clock)
            port = layout.ports.services["optimizer"][GRPC]
            async with (
                serving(optimizer, layout.certificates, port, clock),
                Supervisor(clock, RestartPolicy(max_early_deaths=10)) as supervisor,
            ):
                yield Workplace(plane, client, supervisor, layout, optimizer, clock)


async def metrics_of(port: int) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://{HOST}:{port}/metrics") as answer:
        return await answer.text()


def rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024
