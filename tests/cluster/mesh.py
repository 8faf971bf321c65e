"""Our services, and simulated kubelets, as processes beside a real control plane.

Every service runs under its own service account with the rules of the charts, nothing more; the kubelets
stand for the cluster's own and run as its administrator.
"""

import os
import random
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import orjson

from gpuloom.cli.scheduling.scheduler_config import (
    OWN_SCHEDULER,
    SchedulerConfigOptions,
    TlsPaths,
    render_scheduler_config,
)
from gpuloom.errors import GpuloomError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.resources import NODES
from gpuloom.roster import GRPC, HTTP, ROSTER, Kind
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.runtime.clock import Clock
from gpuloom.sim.machines.audit import AuditReport, audit
from gpuloom.sim.machines.cluster import create_machines
from gpuloom.sim.machines.hardware import MachineSpec
from gpuloom.sim.machines.machine import Machine
from gpuloom.sim.mesh.plan import central, clean_environment
from gpuloom.sim.processes.child_process import Probe, ProcessSpec
from gpuloom.sim.processes.ports import HOST, free_ports
from gpuloom.sim.processes.probes import answers_ok
from gpuloom.sim.processes.supervisor import Supervisor
from tests.cluster.control_plane import ControlPlane
from tests.cluster.shared import account_of, apply_rights

ACCOUNTS = (*(service.name.replace("_", "-") for service in ROSTER), "scheduler")
MAX_PUBLISH_DELAY_S = 3.0
NODES_LOOKED_AT_A_SECOND = 100
"""All agents are in one process here; a thousand that sample every second leave others half the machine."""


@dataclass(frozen=True)
class MeshOptions:
    """`discovery`: further settings of it."""

    scheduler_name: str = OWN_SCHEDULER
    discovery: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MeshPorts:
    """`services`: by service and name of the port, for all but the agents."""

    fleet_http: int
    services: Mapping[str, Mapping[str, int]]

    @property
    def extender_http(self) -> int:
        return self.services["scheduler_extender"][HTTP]

    def with_extender_at(self, https: int) -> "MeshPorts":
        """As whoever calls it there sees them."""
        extender = {**self.services["scheduler_extender"], "https": https}
        return replace(self, services={**self.services, "scheduler_extender": extender})


def count_ports() -> int:
    return 1 + sum(len(row.ports) for row in central(ROSTER))


def assign_ports(ports: Iterable[int]) -> MeshPorts:
    left = iter(ports)
    return MeshPorts(
        fleet_http=next(left),
        services={row.name: {port.name: next(left) for port in row.ports} for row in central(ROSTER)},
    )


@dataclass(frozen=True)
class MeshLayout:
    """What the processes are told."""

    directory: Path
    logs: Path
    admin: Path
    accounts: Mapping[str, Path]
    """Kubeconfigs by service account."""
    nodes: tuple[str, ...]
    ports: MeshPorts
    clock: Clock

    @property
    def machines(self) -> Path:
        return self.directory / "machines"

    @property
    def certificates(self) -> Path:
        return self.directory / "certificates"

    @property
    def agents_file(self) -> Path:
        return self.directory / "agents.json"

    def kubelets(self, ready: Probe) -> ProcessSpec:
        arguments = (
            *("--kubeconfig", str(self.admin), "--machines", str(self.machines)),
            *("--max-publish-delay", f"{MAX_PUBLISH_DELAY_S:g}s"),
        )
        return self._spec("kubelets", ("gpuloom.sim.kubelet", *arguments), {}, ready)

    def fleet(self) -> ProcessSpec:
        settings = {
            "GPULOOM_FLEET_MACHINES_DIR": str(self.machines),
            "GPULOOM_FLEET_NODES": ",".join(self.nodes),
            # A simulated cloud may bring machines later.
            "GPULOOM_FLEET_FOLLOW": "true",
            "GPULOOM_AGENTS_FILE": str(self.agents_file),
            "GPULOOM_AGENT_SAMPLE_INTERVAL": f"{max(1, len(self.nodes) // NODES_LOOKED_AT_A_SECOND)}s",
        }
        return self._service("agents", "services.node_agent.fleet", settings, self.ports.fleet_http)

    def discovery(self, further: Mapping[str, str] | None = None) -> ProcessSpec:
        return self.service("discovery", {"GPULOOM_AGENTS_FILE": str(self.agents_file), **(further or {})})

    def extender(self) -> ProcessSpec:
        return self.service("scheduler_extender")

    def service(self, name: str, further: Mapping[str, str] | None = None) -> ProcessSpec:
        """Any service but the agent, on the ports of the roster, told where those are that it calls."""
        row, ports = ROSTER[name], self.ports.services[name]
        settings = {port.setting: str(ports[port.name]) for port in row.ports}
        settings |= {port.host_setting: HOST for port in row.ports}
        for called in ROSTER.called_by(name):
            if called.kind is not Kind.DAEMON:
                settings[called.address_setting] = f"{HOST}:{self.ports.services[called.name][GRPC]}"
        return self._service(row.short, row.module, {**settings, **(further or {})}, ports[HTTP])

    def scheduler_config(self, scheduler_name: str) -> str:
        files = tls_files(self.certificates, "kube_scheduler")
        return render_scheduler_config(
            SchedulerConfigOptions(
                extender_url=f"https://{HOST}:{self.ports.services['scheduler_extender']['https']}",
                tls=TlsPaths(str(files.cert_file), str(files.key_file), str(files.ca_file)),
                kubeconfig=str(self.accounts["scheduler"]),
                scheduler_name=scheduler_name,
            )
        )

    def process(self, name: str, command: tuple[str, ...], ready: Probe) -> ProcessSpec:
        """Something that is no service of ours."""
        return self._spec(name, command, {}, ready)

    def _service(self, name: str, module: str, settings: Mapping[str, str], http_port: int) -> ProcessSpec:
        identity = module.split(".")[1]
        files = tls_files(self.certificates, identity)
        environment = {
            "GPULOOM_KUBECONFIG": str(self.accounts[identity.replace("_", "-")]),
            "GPULOOM_TLS_CERT_FILE": str(files.cert_file),
            "GPULOOM_TLS_KEY_FILE": str(files.key_file),
            "GPULOOM_TLS_CA_FILE": str(files.ca_file),
            "GPULOOM_GRPC_HOST": HOST,
            "GPULOOM_HTTP_HOST": HOST,
            "GPULOOM_HTTP_PORT": str(http_port),
            **settings,
        }
        ready = answers_ok(f"http://{HOST}:{http_port}/readyz", self.clock)
        return self._spec(name, (module,), environment, ready)

    def _spec(
        self, name: str, command: tuple[str, ...], settings: Mapping[str, str], ready: Probe
    ) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=(sys.executable, "-P", "-m", *command),
            log_path=self.logs / f"{name}.log",
            environment={**clean_environment(os.environ), **settings},
            working_dir=self.directory,
            ready=ready,
        )


@dataclass(frozen=True)
class Mesh:
    layout: MeshLayout
    supervisor: Supervisor
    extenders: tuple[str, ...] = ("extender",)
    """Names of their processes."""

    def machine(self, node: str) -> Machine:
        """What its kubelet and agent see, live."""
        return Machine.open(self.layout.machines / node)

    async def closed_nodes(self) -> int | None:
        """How many nodes the extender has closed; None while it does not tell."""
        url = f"http://{HOST}:{self.layout.ports.extender_http}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            text = await answer.text()
        found = re.search(r"^gpuloom_scheduler_extender_closed_nodes (\S+)$", text, re.MULTILINE)
        return None if found is None else int(float(found[1]))

    def denied_calls(self) -> list[str]:
        """What a service tried and its account was not allowed to do."""
        lines = [
            line
            for name in ("agents", "discovery", *self.extenders)
            for line in (self.layout.logs / f"{name}.log").read_text(encoding="utf-8").splitlines()
        ]
        return [line for line in lines if "answered 403" in line]

    def audit(self) -> AuditReport:
        """What the kubelets recorded, judged without asking the product."""
        return audit(self.layout.machines)


@asynccontextmanager
async def open_mesh(
    plane: ControlPlane, machines: Sequence[MachineSpec], clock: Clock, options: MeshOptions | None = None
) -> AsyncIterator[Mesh]:
    """Everything runs and is ready. Raise StartError if a process does not come up."""
    options = options or MeshOptions()
    async with open_foundation(plane, machines, clock) as mesh:
        await mesh.supervisor.start([[mesh.layout.discovery(options.discovery), mesh.layout.extender()]])
        await plane.start_scheduler(mesh.layout.scheduler_config(options.scheduler_name))
        yield mesh


@asynccontextmanager
async def open_foundation(
    plane: ControlPlane, machines: Sequence[MachineSpec], clock: Clock
) -> AsyncIterator[Mesh]:
    """The machines with their kubelets and agents, which all else stands on; what is started beside them
    with the mesh's supervisor ends with them. Raise StartError if a process does not come up.
    """
    await apply_rights(plane)
    accounts = {name: await plane.service_account_kubeconfig(*account_of(name)) for name in ACCOUNTS}
    # A short path of its own: the kubelets' sockets lie in it, and such a path may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="gpuloom-") as directory:
        nodes = tuple(machine.node for machine in machines)
        chosen = free_ports(count_ports() + len(nodes), random.Random())
        layout = MeshLayout(
            directory=Path(directory),
            logs=plane.directory / "logs",
            admin=plane.admin_kubeconfig,
            accounts=accounts,
            nodes=nodes,
            ports=assign_ports(chosen),
            clock=clock,
        )
        _write_files(layout, machines, chosen[count_ports() :])
        async with Supervisor(clock) as supervisor, plane.client() as client:
            kubelets = layout.kubelets(_nodes_are_there(client, len(nodes)))
            # The agents ask the kubelets, so these come first.
            await supervisor.start([[kubelets], [layout.fleet()]])
            yield Mesh(layout, supervisor)


def _write_files(layout: MeshLayout, machines: Sequence[MachineSpec], agent_ports: Sequence[int]) -> None:
    issue_development_certificates(layout.certificates, CertificateOrder(), layout.clock)
    create_machines(layout.machines, machines)
    addresses = {node: f"{HOST}:{port}" for node, port in zip(layout.nodes, agent_ports, strict=True)}
    layout.agents_file.write_bytes(orjson.dumps(addresses))


def _nodes_are_there(client: KubeClient, count: int) -> Probe:
    async def probe() -> bool:
        try:
            return len((await client.list(NODES, timeout_s=2.0)).items) >= count
        except GpuloomError:
            return False

    return probe
