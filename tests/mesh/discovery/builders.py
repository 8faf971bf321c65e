"""Discovery's server on loopback: the real one on a read model, or one that follows a script."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from gpuloom.clients.discovery import ClusterMirror, MirrorOptions
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer
from gpuloom.runtime.clock import SystemClock
from gpuloom.v1 import discovery_pb2 as pb
from gpuloom.v1.discovery_pb2_grpc import (
    DiscoveryServiceServicer,
    add_DiscoveryServiceServicer_to_server,
)
from services.discovery.app import SERVICE
from services.discovery.cluster import ClusterModel
from services.discovery.metrics import DiscoveryMetrics
from services.discovery.readmodel import ReadModel
from services.discovery.server import ALLOWED_CALLERS, DiscoveryServer
from tests.unit.discovery.builders import a_node, a_state

HEARTBEAT_S = 0.05


class World:
    """A read model whose nodes are listed when the test says so."""

    def __init__(self, *names: str, nodes_synced: bool = True) -> None:
        self.nodes_synced = nodes_synced
        self.asked = 0
        metrics = DiscoveryMetrics(CollectorRegistry())
        self.model = ReadModel(ClusterModel(30.0), self._synced, SystemClock(), metrics)
        self.servicer = DiscoveryServer(self.model, HEARTBEAT_S, metrics)
        for name in names:
            self.model.observe_node(a_node(name))
            self.model.expect_agent(name)
            self.model.hear(name, a_state(name))
        self.model.publish()

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
    server = RpcServer(an_environment(), "127.0.0.1", port)
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
