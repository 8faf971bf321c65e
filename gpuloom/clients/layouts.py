"""How a node's GPUs are cut and shared, asked of its agent and changed through it."""

from gpuloom.codec.layout import change_from_proto, layouts_from_proto, request_to_proto
from gpuloom.model.layout import LayoutChange, LayoutRequest, NodeLayouts
from gpuloom.rpc.channel import RpcChannel
from gpuloom.v1.node_agent_pb2 import ListLayoutsRequest
from gpuloom.v1.node_agent_pb2_grpc import NodeAgentServiceStub


async def list_layouts(channel: RpcChannel, timeout_s: float) -> NodeLayouts:
    stub = channel.stub(NodeAgentServiceStub)
    return layouts_from_proto(await stub.ListLayouts(ListLayoutsRequest(), timeout=timeout_s))


async def change_layout(channel: RpcChannel, request: LayoutRequest, timeout_s: float) -> LayoutChange:
    """What became of it until now; ask again with the same request until it has ended.

    Raise ConflictError if it may not begin. The agent answers within about five seconds.
    """
    stub = channel.stub(NodeAgentServiceStub)
    answer = await stub.ChangeLayout(request_to_proto(request), timeout=timeout_s)
    return change_from_proto(answer.change)
