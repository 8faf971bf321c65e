"""Agents over gRPC."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpuloom.codec.node import apply_node_delta, node_state_from_proto
from gpuloom.model.node import NodeState
from gpuloom.rpc.channel import RpcChannel, open_stream
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.streams import StreamCursor, StreamGapError
from gpuloom.runtime.parsers import Address
from gpuloom.v1.node_agent_pb2 import WatchStateRequest, WatchStateResponse
from gpuloom.v1.node_agent_pb2_grpc import NodeAgentServiceStub
from services.discovery.ports import AgentLink


class GrpcAgents:
    def __init__(self, environment: RpcEnvironment) -> None:
        self._environment = environment

    @asynccontextmanager
    async def link(self, address: Address) -> AsyncIterator[AgentLink]:
        async with RpcChannel(self._environment, str(address), "node_agent") as channel:
            yield GrpcAgentLink(channel)


class GrpcAgentLink:
    def __init__(self, channel: RpcChannel) -> None:
        self._channel = channel

    @asynccontextmanager
    async def states(self) -> AsyncIterator[AsyncIterator[NodeState | None]]:
        call = self._channel.stub(NodeAgentServiceStub).WatchState(WatchStateRequest())
        async with open_stream(call) as messages:
            yield _states(messages)


async def _states(messages: AsyncIterator[WatchStateResponse]) -> AsyncIterator[NodeState | None]:
    cursor = StreamCursor()
    state: NodeState | None = None
    async for message in messages:
        version, kind = message.version, message.WhichOneof("update")
        cursor.accept(version.epoch, version.number, version.after, kind == "full")
        if kind == "full":
            state = node_state_from_proto(message.full)
        elif kind == "delta" and state is not None:
            state = apply_node_delta(state, message.delta)
        elif kind == "heartbeat":
            yield None
            continue
        else:
            raise StreamGapError("a message that is no update")
        yield state
