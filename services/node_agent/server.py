"""The agent's gRPC service: the node's state and its changes, its wiring, its processes, its usage windows.

A stream vouches for the state by its heartbeats, so it ends when the node is not looked at any more.
"""

from collections.abc import AsyncIterator

from gpuloom.codec.machine import processes_answer_to_proto, topology_answer_to_proto
from gpuloom.codec.node import node_state_to_proto
from gpuloom.errors import NotFoundError, NotReadyError
from gpuloom.v1 import node_agent_pb2 as pb
from gpuloom.v1.node_agent_pb2_grpc import NodeAgentServiceServicer
from gpuloom.v1.types_pb2 import Heartbeat, StreamVersion
from services.node_agent.attribution.listing import ProcessLister
from services.node_agent.layout.calls import LAYOUT_CALLERS, LayoutCalls
from services.node_agent.metrics import AgentMetrics
from services.node_agent.node import Node
from services.node_agent.usage.stream import UsageStreams

_READERS = frozenset({"discovery", "cli"})
ALLOWED_CALLERS = {
    "WatchState": _READERS,
    "GetTopology": _READERS,
    "ListProcesses": _READERS,
    "StreamUsage": frozenset({"cost_engine", "optimizer", "cli"}),
    **LAYOUT_CALLERS,
}


class NodeAgentServer(NodeAgentServiceServicer):
    def __init__(
        self,
        node: Node,
        lister: ProcessLister,
        usage: UsageStreams,
        heartbeat_interval_s: float,
        metrics: AgentMetrics,
        layouts: LayoutCalls | None = None,
    ) -> None:
        self._node = node
        self._usage = usage
        self._lister = lister
        self._layouts = layouts
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

    async def GetTopology(self, request: pb.GetTopologyRequest, context: object) -> pb.GetTopologyResponse:
        self._refuse_unseen()
        return topology_answer_to_proto(self._node.state.topology, self._node.wiring)

    async def ListProcesses(
        self, request: pb.ListProcessesRequest, context: object
    ) -> pb.ListProcessesResponse:
        self._refuse_unseen()
        wanted = request.gpu_uuid
        if wanted and wanted not in {gpu.uuid for gpu in self._node.state.gpus}:
            raise NotFoundError("no GPU of this node has that UUID")
        found = await self._lister.list_now()
        return processes_answer_to_proto(
            tuple(each for each in found.processes if wanted in ("", each.device.gpu_uuid)),
            {uuid: why for uuid, why in found.unanswered.items() if wanted in ("", uuid)},
        )

    async def StreamUsage(
        self, request: pb.StreamUsageRequest, context: object
    ) -> AsyncIterator[pb.StreamUsageResponse]:
        async for response in self._usage.stream(request):
            yield response

    async def ListLayouts(self, request: pb.ListLayoutsRequest, context: object) -> pb.ListLayoutsResponse:
        self._refuse_unseen()
        return await self._layout_calls().list_layouts()

    async def ChangeLayout(self, request: pb.ChangeLayoutRequest, context: object) -> pb.ChangeLayoutResponse:
        self._refuse_unseen()
        return await self._layout_calls().change_layout(request)

    def _layout_calls(self) -> LayoutCalls:
        if self._layouts is None:
            raise NotReadyError("layouts are not looked after here")
        return self._layouts

    def _refuse_unseen(self) -> None:
        if not self._node.looked_at:
            raise NotReadyError("the node has not been sampled yet")
        self._refuse_stale()

    def _refuse_stale(self) -> None:
        stale = self._node.stale_reason()
        if stale is not None:
            raise NotReadyError(stale)
