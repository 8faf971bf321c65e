"""Node agents that say what a test tells them to: over gRPC as real ones do, or in this process for many."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from gpuloom.codec.node import node_delta_to_proto, node_state_to_proto
from gpuloom.errors import NotReadyError
from gpuloom.model.gpu import Gpu, GpuHealth
from gpuloom.model.node import Delivery, Holder, NodeMode, NodeState
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer
from gpuloom.rpc.tls import TlsFiles
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.parsers import Address
from gpuloom.v1 import node_agent_pb2 as pb
from gpuloom.v1.node_agent_pb2_grpc import (
    NodeAgentServiceServicer,
    add_NodeAgentServiceServicer_to_server,
)
from gpuloom.v1.types_pb2 import Heartbeat, StreamVersion

HOST = "127.0.0.1"
CARD_MIB = 40_960
HEARTBEAT_S = 5.0
_FIRST_PORT = 20_000
_HANDSHAKE_S = 0.03
_SERVICE = pb.DESCRIPTOR.services_by_name["NodeAgentService"]
_ALLOWED = {method.name: frozenset({"discovery"}) for method in _SERVICE.methods}


def a_state(name: str, uid: str, *holders: Holder, cards: int = 8) -> NodeState:
    """A healthy node of mode gpuloom. Its GPUs are GPU-<node>-<index>."""
    gpus = tuple(
        Gpu(gpu_of(name, index), index, "A100-SXM4-40GB", "ampere", CARD_MIB, GpuHealth.HEALTHY)
        for index in range(cards)
    )
    return NodeState(name, uid, NodeMode.GPULOOM, Delivery.NRI, gpus, holders=holders)


def gpu_of(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


def with_lost_gpu(state: NodeState, index: int, reason: str = "XID 79") -> NodeState:
    lost = replace(state.gpus[index], health=GpuHealth.LOST, health_reason=reason)
    return replace(state, gpus=(*state.gpus[:index], lost, *state.gpus[index + 1 :]))


class Script:
    """What each agent says; whoever follows one hears every change."""

    def __init__(self) -> None:
        self.states: dict[str, NodeState] = {}
        self._followers: dict[str, set[asyncio.Event]] = {}

    def say(self, state: NodeState) -> None:
        self.states[state.node_name] = state
        for follower in self._followers.get(state.node_name, ()):
            follower.set()

    def change(self, name: str, **changes: Any) -> None:
        self.say(replace(self.states[name], **changes))

    async def follow(self, name: str) -> AsyncIterator[NodeState | None]:
        changed = asyncio.Event()
        followers = self._followers.setdefault(name, set())
        followers.add(changed)
        try:
            yield self.states[name]
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await changed.wait()
                except TimeoutError:
                    yield None
                    continue
                changed.clear()
                yield self.states[name]
        finally:
            followers.discard(changed)


class NearAgents:
    """All agents of a script without a network: discovery's port of agents. Each takes a while to answer."""

    def __init__(self, script: Script, names: list[str]) -> None:
        self.addresses = {name: Address(HOST, _FIRST_PORT + number) for number, name in enumerate(names)}
        self._script = script
        self._names = {address: name for name, address in self.addresses.items()}

    @asynccontextmanager
    async def link(self, address: Address) -> AsyncIterator["NearLink"]:
        yield NearLink(self._script, self._names[address])


class NearLink:
    def __init__(self, script: Script, name: str) -> None:
        self._script = script
        self._name = name

    @asynccontextmanager
    async def states(self) -> AsyncIterator[AsyncIterator[NodeState | None]]:
        await asyncio.sleep(_HANDSHAKE_S)
        yield self._script.follow(self._name)


class ScriptedAgent(NodeAgentServiceServicer):
    def __init__(self, script: Script, name: str) -> None:
        self._script = script
        self._name = name

    async def WatchState(
        self, request: pb.WatchStateRequest, context: object
    ) -> AsyncIterator[pb.WatchStateResponse]:
        shown, number = self._script.states[self._name], 1
        first = StreamVersion(epoch="script", number=number)
        yield pb.WatchStateResponse(version=first, full=node_state_to_proto(shown))
        async for state in self._script.follow(self._name):
            delta = None if state is None else node_delta_to_proto(shown, state)
            if state is None or delta is None:
                version = StreamVersion(epoch="script", number=number, after=number)
                yield pb.WatchStateResponse(version=version, heartbeat=Heartbeat())
            else:
                version = StreamVersion(epoch="script", number=number + 1, after=number)
                yield pb.WatchStateResponse(version=version, delta=delta)
                shown, number = state, number + 1

    async def GetTopology(self, request: pb.GetTopologyRequest, context: object) -> pb.GetTopologyResponse:
        raise NotReadyError("this agent has a script for its state alone")

    async def ListProcesses(
        self, request: pb.ListProcessesRequest, context: object
    ) -> pb.ListProcessesResponse:
        raise NotReadyError("this agent has a script for its state alone")

    async def StreamUsage(
        self, request: pb.StreamUsageRequest, context: object
    ) -> AsyncIterator[pb.StreamUsageResponse]:
        nothing: tuple[pb.StreamUsageResponse, ...] = ()
        for response in nothing:
            yield response
        raise NotReadyError("this agent has a script for its state alone")

    async def ListLayouts(self, request: pb.ListLayoutsRequest, context: object) -> pb.ListLayoutsResponse:
        return pb.ListLayoutsResponse()

    async def ChangeLayout(self, request: pb.ChangeLayoutRequest, context: object) -> pb.ChangeLayoutResponse:
        raise NotReadyError("a scripted agent changes nothing")


@asynccontextmanager
async def serving_agents(script: Script, files: TlsFiles) -> AsyncIterator[Mapping[str, int]]:
    """An agent for every node of the script, each on a port of its own; the ports by node."""
    async with AsyncExitStack() as stack:
        ports = {}
        for name in script.states:
            environment = RpcEnvironment(files, CollectorRegistry(), SystemClock())
            server = RpcServer(environment, HOST, 0)
            servicer = ScriptedAgent(script, name)
            server.add(servicer, add_NodeAgentServiceServicer_to_server, _SERVICE, _ALLOWED)
            await stack.enter_async_context(server)
            stack.push_async_callback(server.drain, 0.0)
            ports[name] = server.port
        yield ports
