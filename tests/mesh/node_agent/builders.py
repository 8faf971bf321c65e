"""A node agent and discovery as their build functions make them, over mutual TLS, on a simulated cluster."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import orjson
from prometheus_client import CollectorRegistry

from gpuloom.clients.discovery import ClusterMirror, MirrorOptions
from gpuloom.kube.objects import JsonObject
from gpuloom.model.node import NodeMode
from gpuloom.model.snapshot import NodeFacts
from gpuloom.roster import ROSTER
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer
from gpuloom.rpc.tls import TlsFiles
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.config import load_config
from gpuloom.runtime.lifecycle import Lifecycle
from gpuloom.runtime.service import ServiceConfig
from gpuloom.sim.kubeapi import SimKubeApi
from gpuloom.sim.kubelet.host import Behaviour, Host
from gpuloom.sim.kubelet.podresources import PodResourcesServer
from gpuloom.sim.machines.machine import Machine
from services.discovery import app as discovery
from services.discovery.config import DiscoveryConfig
from services.mig_controller import app as mig_controller
from services.mig_controller.config import MigConfig
from services.node_agent import app as node_agent
from services.node_agent import fleet
from services.node_agent.config import AgentConfig
from services.node_agent.usage.core.integrator import Integrator
from services.node_agent.usage.metrics import UsageMetrics
from services.node_agent.usage.recorder import Recorder
from services.node_agent.usage.spools import SpoolBounds, Spools
from services.node_agent.usage.stream import UsageStreams
from services.scheduler_extender import app as scheduler_extender
from services.scheduler_extender.config import ExtenderConfig
from tests.mesh.waiting import until
from tests.unit.sim.builders import a_spec

Config = TypeVar("Config", bound=ServiceConfig)

AGENT_TTL = "600ms"
LONG_LEASE = "60"
"""Nobody here starts a leader again that ended because the machine stood still."""
SERVICES = ROSTER.identities


class Service:
    """One running service."""

    def __init__(self, app: App, task: asyncio.Task[int], stop: asyncio.Event) -> None:
        self.app = app
        self.task = task
        self._stop = stop

    @property
    def servers(self) -> list[RpcServer]:
        return [context for context in self.app.contexts if isinstance(context, RpcServer)]

    @property
    def port(self) -> int:
        return self.servers[0].port

    def not_ready(self) -> list[str]:
        return [reason for check in self.app.readiness.values() if (reason := check())]

    async def stop(self) -> int:
        """End it as a signal would; its exit code."""
        self._stop.set()
        return await self.task


class Mesh:
    """A folder with certificates, machines and the files that tie the services together."""

    def __init__(self, folder: Path, api: SimKubeApi, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.api = api
        self._stack = stack
        self._kubelets: set[str] = set()
        self.agents_file = folder / "agents.json"
        self.agents_file.write_bytes(b"{}")
        # JSON is YAML, too.
        kubeconfig = {
            "current-context": "sim",
            "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "sim"}}],
            "clusters": [{"name": "sim", "cluster": {"server": api.url}}],
            "users": [{"name": "sim", "user": {}}],
        }
        (folder / "kubeconfig").write_bytes(orjson.dumps(kubeconfig))

    def add_machine(self, name: str, mode: NodeMode = NodeMode.GPULOOM) -> Machine:
        """A machine, and its node in Kubernetes."""
        resource = "gpuloom.dev/gpu-milli" if mode is NodeMode.GPULOOM else "nvidia.com/gpu"
        amounts = {resource: "8000" if mode is NodeMode.GPULOOM else "8"}
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
        status = {"allocatable": amounts, "capacity": amounts, "addresses": addresses}
        self.api.store.create("nodes", {"metadata": {"name": name}, "status": status})
        return Machine.create(self.folder / name, a_spec(name, mode))

    def node_uid(self, name: str) -> str:
        return str(self.api.store.get("nodes", name)["metadata"]["uid"])

    def tell_agents(self, **ports: int) -> None:
        addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        replacement = self.folder / "agents.json.new"
        replacement.write_bytes(orjson.dumps(addresses))
        os.replace(replacement, self.agents_file)

    async def start_agent(self, name: str, port: int = 0) -> Service:
        await self.start_kubelet(name)
        own = self.agent_settings(name, port)
        return await self._start("node_agent", AgentConfig, node_agent.build, own)

    def agent_settings(self, name: str, port: int) -> dict[str, str]:
        return {
            "GPULOOM_NODE_NAME": name,
            "GPULOOM_AGENT_DRIVER": "simulated",
            "GPULOOM_AGENT_MACHINE_DIR": str(self.folder / name),
            "GPULOOM_AGENT_SAMPLE_INTERVAL": "50ms",
            "GPULOOM_AGENT_HEARTBEAT_INTERVAL": "100ms",
            "GPULOOM_AGENT_USAGE_WINDOW": "1s",
            "GPULOOM_GRPC_HOST": "127.0.0.1",
            "GPULOOM_GRPC_PORT": str(port),
        }

    async def start_fleet(self, *names: str, follow: bool = False) -> Service:
        for name in names:
            await self.start_kubelet(name)
        own = {
            "GPULOOM_FLEET_MACHINES_DIR": str(self.folder),
            **({"GPULOOM_FLEET_NODES": ",".join(names)} if names else {}),
            "GPULOOM_FLEET_FOLLOW": str(follow).lower(),
            "GPULOOM_AGENTS_FILE": str(self.agents_file),
            "GPULOOM_AGENT_SAMPLE_INTERVAL": "50ms",
            "GPULOOM_AGENT_HEARTBEAT_INTERVAL": "100ms",
        }
        return await self._start("node_agent", fleet.FleetConfig, fleet.build, own)

    async def start_kubelet(self, name: str) -> None:
        """As far as an agent asks it. On nvidia machines tests do so themselves, with what it should say."""
        machine = Machine.open(self.folder / name)
        if machine.spec.mode is NodeMode.GPULOOM and name not in self._kubelets:
            self._kubelets.add(name)
            await self._stack.enter_async_context(a_kubelet_of(machine))

    async def start_discovery(self, port: int = 0, agent_port: int | None = None) -> Service:
        """With an agent port, agents are found by their nodes' addresses; else by the agents file."""
        found_by = (
            {"GPULOOM_AGENTS_FILE": str(self.agents_file)}
            if agent_port is None
            else {"GPULOOM_DISCOVERY_AGENT_PORT": str(agent_port)}
        )
        own = {
            "GPULOOM_DISCOVERY_AGENT_TTL": AGENT_TTL,
            "GPULOOM_AGENT_HEARTBEAT_INTERVAL": "100ms",
            "GPULOOM_DISCOVERY_PUBLISH_INTERVAL": "20ms",
            "GPULOOM_DISCOVERY_HEARTBEAT_INTERVAL": "200ms",
            "GPULOOM_GRPC_HOST": "127.0.0.1",
            "GPULOOM_GRPC_PORT": str(port),
        }
        return await self._start("discovery", DiscoveryConfig, discovery.build, own | found_by)

    async def start_extender(self, discovery: Service) -> Service:
        """Which keeps the ledger and holds; nobody asks it to schedule."""
        own = {
            "GPULOOM_DISCOVERY_ADDRESS": f"127.0.0.1:{discovery.port}",
            "GPULOOM_EXTENDER_HOST": "127.0.0.1",
            "GPULOOM_EXTENDER_PORT": str(free_port()),
            "GPULOOM_EXTENDER_ADMISSION_POLICIES": "none",
            "GPULOOM_EXTENDER_LEASE_NAMESPACE": "default",
            "GPULOOM_EXTENDER_LEASE_DURATION": LONG_LEASE,
            "GPULOOM_GRPC_HOST": "127.0.0.1",
            "GPULOOM_GRPC_PORT": "0",
        }
        return await self._start("scheduler_extender", ExtenderConfig, scheduler_extender.build, own)

    async def start_mig(self, discovery: Service, extender: Service, **own: str) -> Service:
        settings = {
            "GPULOOM_EXTENDER_ADDRESS": f"127.0.0.1:{extender.port}",
            "GPULOOM_DISCOVERY_ADDRESS": f"127.0.0.1:{discovery.port}",
            "GPULOOM_MIG_INTERVAL": "50ms",
            "GPULOOM_MIG_DELAY": "50ms",
            "GPULOOM_MIG_LEASE_NAMESPACE": "default",
            "GPULOOM_MIG_LEASE_DURATION": LONG_LEASE,
            "GPULOOM_GRPC_HOST": "127.0.0.1",
            "GPULOOM_GRPC_PORT": "0",
        }
        return await self._start("mig_controller", MigConfig, mig_controller.build, settings | own)

    async def mirror(self, service: Service, caller: str = "cli", **options: Any) -> ClusterMirror:
        """A reader of this discovery, which follows until the mesh is taken down."""
        channel = await self.channel(service, "discovery", caller)
        given = MirrorOptions(**{"first_backoff_s": 0.02, "backoff_cap_s": 0.1, **options})
        mirror = ClusterMirror(channel, SystemClock(), given)
        task = asyncio.create_task(mirror.run())
        self._stack.push_async_callback(_cancel, task)
        return mirror

    async def channel(self, service: Service, name: str, caller: str | TlsFiles) -> RpcChannel:
        files = tls_files(self.folder, caller) if isinstance(caller, str) else caller
        environment = RpcEnvironment(files, CollectorRegistry(), SystemClock())
        target = RpcChannel(environment, f"127.0.0.1:{service.port}", name)
        return await self._stack.enter_async_context(target)

    def shared_settings(self, service: str) -> dict[str, str]:
        files = tls_files(self.folder, service)
        return {
            "GPULOOM_TLS_CERT_FILE": str(files.cert_file),
            "GPULOOM_TLS_KEY_FILE": str(files.key_file),
            "GPULOOM_TLS_CA_FILE": str(files.ca_file),
            "GPULOOM_KUBECONFIG": str(self.folder / "kubeconfig"),
            "GPULOOM_HTTP_HOST": "127.0.0.1",
            "GPULOOM_HTTP_PORT": "0",
            "GPULOOM_DRAIN_TIMEOUT": "2s",
        }

    async def _start(
        self,
        name: str,
        config_type: type[Config],
        build: Callable[[App, Config], Awaitable[None]],
        settings: dict[str, str],
    ) -> Service:
        config = load_config(config_type, self.shared_settings(name) | settings)
        app, stop = App(name, SystemClock(), CollectorRegistry()), asyncio.Event()

        async def build_app() -> None:
            await build(app, config)

        task = asyncio.create_task(Lifecycle(app, build_app, config.http, stop).run())
        service = Service(app, task, stop)
        self._stack.push_async_callback(_end, service)
        await until(lambda: task.done() or service.servers)
        if task.done():
            task.result()
        return service


@asynccontextmanager
async def a_kubelet_of(machine: Machine) -> AsyncIterator[Host]:
    host = Host(machine, Behaviour(max_publish_delay_s=0.0), SystemClock())
    server = PodResourcesServer(host)
    await server.start()
    try:
        yield host
    finally:
        await server.stop()
        host.close()


@asynccontextmanager
async def a_mesh(folder: Path, preinstalled: Iterable[JsonObject] = ()) -> AsyncIterator[Mesh]:
    """Certificates and a Kubernetes API; whatever is started in it ends with it."""
    issue_development_certificates(folder, CertificateOrder(SERVICES), SystemClock())
    async with SimKubeApi(preinstalled=preinstalled) as api, AsyncExitStack() as stack:
        yield Mesh(folder, api, stack)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def trusted(mirror: ClusterMirror, uid: str) -> bool:
    facts = mirror.snapshot().nodes.get(uid)
    return facts is not None and facts.trusted


def facts_of(mirror: ClusterMirror, uid: str) -> NodeFacts:
    return mirror.snapshot().nodes[uid]


def no_usage() -> UsageStreams:
    """For a server that is asked for other things."""
    clock, metrics = SystemClock(), UsageMetrics(CollectorRegistry())
    spools = Spools(None, SpoolBounds(1, 1, 1), clock)
    recorder = Recorder(Integrator(10**9, 1), spools, lambda _uid: {}, clock, metrics)
    return UsageStreams(recorder, 5.0, clock, metrics)


async def _end(service: Service) -> None:
    if not service.task.done():
        await service.stop()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
