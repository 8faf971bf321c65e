"""Discovery's server on loopback: the real one on a read model, or one that follows a script."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from gpuloom.clients.discovery import ClusterMirror, MirrorOptions
from gpuloom.model.node import NodeState
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer
from gpuloom.runtime.clock import SystemClock
from gpuloom.v1 import discovery_pb2 as pb
from gpuloom.v1.discovery_pb2_grpc import (
    DiscoveryServiceServicer,
    add_DiscoveryServiceServicer_to_server,
)
from services.discovery.core.cluster import ClusterModel, ClusterNode
from services.discovery.metrics import DiscoveryMetrics
from services.discovery.readmodel import ReadModel
from services.discovery.server import ALLOWED_CALLERS, SERVICE, DiscoveryServer, add_to_server
from tests.unit.discovery.builders import a_node, a_state

HEARTBEAT_S = 0.05


class FedReadModel(ReadModel):
    """A read model that its test feeds itself, in place of informers and followers."""

    def __init__(self, cluster: ClusterModel, listed: Callable[[], bool], metrics: DiscoveryMetrics) -> None:
        clock = SystemClock()
        super().__init__(cluster, listed, clock, metrics, usage_interval_s=0.0)
        self._cluster = cluster
        self._time = clock

    def observe_node(self, node: ClusterNode) -> None:
        self._cluster.observe_node(node)

    def expect_agent(self, name: str) -> None:
        self._cluster.expect_agent(name, self._time.monotonic())

    def hear(self, name: str, state: NodeState | None) -> None:
        self._cluster.hear(name, self._time.monotonic(), state)


class ParsedDiscovery(DiscoveryServiceServicer):
    """The real server for the generated registration, which wants messages and not bytes."""

    def __init__(self, encoded: DiscoveryServer) -> None:
        self.encoded = encoded

    async def WatchCluster(
        self, request: pb.WatchClusterRequest, context: Any
    ) -> AsyncIterator[pb.WatchClusterResponse]:
        async for message in self.encoded.WatchCluster(request, context):
            yield pb.WatchClusterResponse.FromString(message)


class World:
    """A read model whose nodes are listed when the test says so."""

    def __init__(self, *names: str, nodes_synced: bool = True) -> None:
        self.nodes_synced = nodes_synced
        self.asked = 0
        metrics = DiscoveryMetrics(CollectorRegistry())
        self.cluster = ClusterModel(30.0)
        self.model = FedReadModel(self.cluster, self._synced, metrics)
        self.servicer = ParsedDiscovery(DiscoveryServer(self.model, HEARTBEAT_S, metrics))
        for name in names:
            self.cluster.observe_node(a_node(name))
            self.expect(name)
            self.hear(name, a_state(name))
        self.model.publish()

    def expect(self, name: str) -> None:
        self.model.expect_agent(name)

    def hear(self, name: str, state: NodeState | None) -> None:
        self.model.hear(name, state)

    def _synced(self) -> bool:
        self.asked += 1
        return self.nodes_synced


class ScriptedDiscovery(DiscoveryServiceServicer):
    """Answers each call with the next script, and says nothing more after it."""

    def __init__(self, *scripts: Iterable[pb.WatchClusterResponse]) -> None:
        self._scripts = iter(scripts)
        self.calls = 0

    async def WatchCluster(
        self, request: pb.WatchClusterRequest, context: Any
    ) -> AsyncIterator[pb.WatchClusterResponse]:
        self.calls += 1
        for message in next(self._scripts):
            yield message
        await asyncio.Event().wait()


def an_environment() -> RpcEnvironment:
    return RpcEnvironment(None, CollectorRegistry(), SystemClock())


@asynccontextmanager
async def serving(servicer: DiscoveryServiceServicer, port: int = 0) -> AsyncIterator[RpcServer]:
    """The real server is served as it ships: encoded."""
    server = RpcServer(an_environment(), "127.0.0.1", port)
    if isinstance(servicer, ParsedDiscovery):
        server.add(servicer.encoded, add_to_server, SERVICE, ALLOWED_CALLERS)
    else:
        server.add(servicer, add_DiscoveryServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)
    async with server:
        yield server


@asynccontextmanager
async def a_mirror(port: int, **options: Any) -> AsyncIterator[ClusterMirror]:
    """A mirror that follows; it comes back quickly when it is lost."""
    given = MirrorOptions(**{"first_backoff_s": 0.01, "backoff_cap_s": 0.05, **options})
    async with RpcChannel(an_environment(), f"127.0.0.1:{port}", "discovery") as channel:
        mirror = ClusterMirror(channel, SystemClock(), given)
        task = asyncio.create_task(mirror.run())
        try:
            yield mirror
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled(), "the mirror ended by itself"
