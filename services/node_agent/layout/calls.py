"""The calls about layouts: decode, ask, encode."""

from gpuloom.codec.layout import change_to_proto, layouts_to_proto, request_from_proto
from gpuloom.errors import ConflictError
from gpuloom.model.gpu import SharingMode
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.v1 import node_agent_pb2 as pb
from services.node_agent.layout.layouts import Layouts
from services.node_agent.node import Node

LAYOUT_CALLERS = {
    "ListLayouts": frozenset({"mig_controller", "cli"}),
    "ChangeLayout": frozenset({"mig_controller"}),
}

_NO_CLIENTS = (
    "devices are delivered by environment here, which makes no container a client of an MPS daemon: NRI does"
)
_NOT_OURS = "NVIDIA's device plugin and MIG manager cut the GPUs of a node of mode nvidia"


class LayoutCalls:
    def __init__(self, node: Node, layouts: Layouts) -> None:
        self._node = node
        self._layouts = layouts

    async def list_layouts(self) -> pb.ListLayoutsResponse:
        return layouts_to_proto(await self._layouts.list_now())

    async def change_layout(self, message: pb.ChangeLayoutRequest) -> pb.ChangeLayoutResponse:
        request = request_from_proto(message)
        if self._node.state.mode is not NodeMode.GPULOOM:
            raise ConflictError(_NOT_OURS)
        sharing = request.sharing
        by_environment = self._node.state.delivery is Delivery.ENV
        if sharing is not None and sharing.mode is SharingMode.MPS and by_environment:
            raise ConflictError(_NO_CLIENTS)
        return pb.ChangeLayoutResponse(change=change_to_proto(await self._layouts.change(request)))
