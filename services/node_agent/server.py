"""The agent's gRPC service: the node's state, then its changes.

A stream vouches for the state by its heartbeats, so it ends when the node is not looked at any more.
"""

from collections.abc import AsyncIterator

from gpuloom.codec.node import node_state_to_proto
from gpuloom.errors import NotReadyError
from gpuloom.v1 import node_agent_pb2 as pb
from gpuloom.v1.node_agent_pb2_grpc import NodeAgentServiceServicer
from gpuloom.v1.types_pb2 import Heartbeat, StreamVersion
from services.node_agent.metrics import AgentMetrics
from services.node_agent.node import Node

ALLOWED_CALLERS = {"WatchState": frozenset({"discovery", "cli"})}


class NodeAgentServer(NodeAgentServiceServicer):
    def __init__(self, node: Node, heartbeat_interval_s: float, metrics: AgentMetrics) -> None:
        self._node = node
        self._heartbeat_interval_s = heartbeat_interval_s
        self._metrics = metrics

    async def WatchState(
        self, request: pb.WatchStateRequest, context: object
    ) -> AsyncIterator[pb.WatchStateResponse]:
        with (
            self._metrics.readers.track_inprogress(),
            self._node.feed.subscribe(self._heartbeat_interval_s) as updates,
        ):
            self._refuse_stale()
            full = node_state_to_proto(self._node.state)
            version = StreamVersion(epoch=updates.epoch, number=updates.number)
            yield pb.WatchStateResponse(version=version, full=full)
            async for update in updates:
                if update is None:
                    self._refuse_stale()
                    at = StreamVersion(epoch=updates.epoch, number=updates.number, after=updates.number)
                    yield pb.WatchStateResponse(version=at, heartbeat=Heartbeat())
                else:
                    at = StreamVersion(epoch=updates.epoch, number=update.number, after=update.after)
                    yield pb.WatchStateResponse(version=at, delta=update.delta)

    def _refuse_stale(self) -> None:
        stale = self._node.stale_reason()
        if stale is not None:
            raise NotReadyError(stale)
