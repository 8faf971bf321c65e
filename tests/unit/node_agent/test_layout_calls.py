"""What the agent refuses of a change before its layouts are asked."""

from typing import Any

import pytest

from gpuloom.codec.layout import request_to_proto
from gpuloom.errors import ConflictError
from gpuloom.model.gpu import SharingMode
from gpuloom.model.layout import ChangeState, LayoutChange, LayoutRequest, Sharing
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.runtime.clock import FakeClock
from services.node_agent.layout.calls import LayoutCalls
from services.node_agent.node import Node

UUID = "GPU-11111111-2222-3333-4444-555555555555"


class Willing:
    async def change(self, request: LayoutRequest) -> LayoutChange:
        return LayoutChange(request, ChangeState.DONE)


def calls(delivery: Delivery) -> LayoutCalls:
    layouts: Any = Willing()
    return LayoutCalls(Node(NodeState("n1", "u", NodeMode.GPULOOM, delivery), FakeClock(), 30.0), layouts)


async def test_mps_is_refused_where_containers_can_not_be_made_its_clients() -> None:
    mps = request_to_proto(LayoutRequest("c1", UUID, sharing=Sharing(SharingMode.MPS)))
    by_time = request_to_proto(LayoutRequest("c2", UUID, sharing=Sharing(SharingMode.TIME_SLICING)))

    with pytest.raises(ConflictError, match="by environment"):
        await calls(Delivery.ENV).change_layout(mps)

    assert (await calls(Delivery.ENV).change_layout(by_time)).change.id == "c2"
    assert (await calls(Delivery.NRI).change_layout(mps)).change.id == "c1"
