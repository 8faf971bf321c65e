"""The whole extender as its build function makes it, beside a discovery that says what the test says."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path

from gpuloom.catalog.manifests import definitions
from gpuloom.model.node import NodeMode
from gpuloom.model.snapshot import NodeFacts
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.server import RpcServer
from gpuloom.sim.kubeapi import SimKubeApi
from gpuloom.v1.discovery_pb2_grpc import add_DiscoveryServiceServicer_to_server
from services.discovery.app import SERVICE as DISCOVERY
from services.discovery.core.cluster import ClusterNode
from services.discovery.server import ALLOWED_CALLERS as READERS
from services.scheduler_extender import app as extender
from services.scheduler_extender.config import ExtenderConfig
from services.scheduler_extender.verbs.https import ExtenderHttp
from tests.mesh.discovery.builders import World
from tests.mesh.node_agent.builders import Mesh, Service
from tests.mesh.rpc.builders import an_environment, issue
from tests.mesh.scheduler_extender.kubernetes import JsonObject, add_node
from tests.mesh.scheduler_extender.line import Answer, Line, a_line, shown_by
from tests.mesh.waiting import until


class Cluster:
    """Kubernetes, discovery and certificates; extenders are started and stopped in it."""

    def __init__(self, folder: Path, api: SimKubeApi, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.api = api
        self.world = World()
        self._stack = stack
        self._mesh = Mesh(folder, api, stack)
        self._discovery: RpcServer | None = None
        self._discovery_port = 0

    def add_node(self, name: str, gpus: int = 1, mode: NodeMode = NodeMode.GPULOOM) -> None:
        """A node in Kubernetes whose agent discovery hears."""
        self.say(add_node(self.api, name, gpus, mode))

    def say(self, facts: NodeFacts) -> None:
        """Let discovery tell its readers of this state."""
        state, model = facts.state, self.world.model
        nvidia = state.mode is NodeMode.NVIDIA
        node = ClusterNode(
            state.node_name, state.node_uid, state.mode, offers_nvidia=nvidia, offers_gpuloom=not nvidia
        )
        model.observe_node(node)
        model.expect_agent(state.node_name)
        model.hear(state.node_name, state)
        model.publish()

    async def start_discovery(self) -> None:
        """At the port where it was before, if it was."""
        environment = an_environment(tls_files(self.folder, "discovery"))
        server = RpcServer(environment, "127.0.0.1", self._discovery_port)
        server.add(self.world.servicer, add_DiscoveryServiceServicer_to_server, DISCOVERY, READERS)
        self._discovery = await self._stack.enter_async_context(server)
        self._discovery_port = server.port

    async def stop_discovery(self) -> None:
        assert self._discovery is not None
        await self._discovery.drain(grace_s=0.0)

    async def start_extender(self, **settings: str) -> Service:
        """Started, which is not ready."""
        own = self.extender_settings() | settings
        return await self._mesh._start("scheduler_extender", ExtenderConfig, extender.build, own)

    def extender_settings(self) -> dict[str, str]:
        return {
            "GPULOOM_DISCOVERY_ADDRESS": f"127.0.0.1:{self._discovery_port}",
            "GPULOOM_EXTENDER_HOST": "127.0.0.1",
            "GPULOOM_EXTENDER_PORT": "0",
            "GPULOOM_EXTENDER_LEADER_ELECTION": "false",
            "GPULOOM_GRPC_HOST": "127.0.0.1",
            "GPULOOM_GRPC_PORT": "0",
        }

    @asynccontextmanager
    async def line(self, service: Service) -> AsyncIterator[Line]:
        """A connection of kube-scheduler."""
        async with a_line(https_port(service), shown_by(self.folder, "kube_scheduler")) as line:
            yield line

    async def ask(self, service: Service, verb: str, body: JsonObject) -> Answer:
        """On a connection of its own."""
        async with self.line(service) as line:
            return await line.post(f"/{verb}", body)


@cache
def _definitions() -> tuple[JsonObject, ...]:
    found = (dict(definition) for definition in definitions())
    return tuple(each for each in found if each["spec"]["names"]["kind"] == "GPUHold")


def https_port(service: Service) -> int:
    (port,) = (context.port for context in service.app.contexts if isinstance(context, ExtenderHttp))
    return port


async def ready(service: Service) -> None:
    await until(lambda: service.task.done() or not service.not_ready())
    assert not service.task.done()


@asynccontextmanager
async def a_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """Discovery runs; whatever else is started in it ends with it."""
    issue(folder, "discovery", "scheduler_extender", "kube_scheduler", "cli")
    async with SimKubeApi(preinstalled=_definitions()) as api, AsyncExitStack() as stack:
        cluster = Cluster(folder, api, stack)
        await cluster.start_discovery()
        yield cluster
