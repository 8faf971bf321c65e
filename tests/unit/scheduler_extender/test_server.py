"""The list of allocations, part by part."""

import pytest

from gpuloom.errors import InvalidRequestError
from gpuloom.model.node import PodRef
from gpuloom.v1 import scheduler_extender_pb2 as pb
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.server import MAX_PAGE, SchedulerExtenderServer
from tests.unit.scheduler_extender.builders import HandClock, a_gpu, a_holder, a_ref, some_facts
from tests.unit.scheduler_extender.inquiry_setup import InquiryDesk

PROCESS = PodRef("", "", "")


def a_server() -> SchedulerExtenderServer:
    """Two nodes; on each two pods and two processes that belong to no pod hold one card each."""
    ledger = Ledger(30.0)
    for name in ("n1", "n2"):
        cards = [a_gpu(f"GPU-{name}-{index}", index) for index in range(4)]
        owners = (PROCESS, PROCESS, a_ref("a"), a_ref("b"))
        holders = [a_holder(owner, card.uuid) for owner, card in zip(owners, cards, strict=True)]
        ledger.observe_node(name, f"uid-{name}")
        ledger.observe_facts(f"uid-{name}", some_facts(name, *cards, holders=holders), 0.0)
    desk = InquiryDesk()
    return SchedulerExtenderServer(ledger, desk.feed, DecisionLog(HandClock()), desk.inquiries)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8])
async def test_all_parts_together_are_the_whole_list_in_order(size: int) -> None:
    server, parts, token = a_server(), [], ""

    while True:
        request = pb.ListAllocationsRequest(page_size=size, page_token=token)
        answer = await server.ListAllocations(request, None)
        parts.append(answer.entries)
        token = answer.next_page_token
        if not token:
            break

    entries = [entry for part in parts for entry in part]
    assert all(0 < len(part) <= (size or 500) for part in parts)
    assert [entry.devices[0].device.gpu_uuid for entry in entries] == [
        f"GPU-{name}-{index}" for name in ("n1", "n2") for index in range(4)
    ]


@pytest.mark.parametrize("token", ["nonsense", "n1/uid", "n1/uid/x", "a/b/c/1"])
async def test_a_token_that_was_never_given_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequestError, match="page_token"):
        await a_server().ListAllocations(pb.ListAllocationsRequest(page_token=token), None)


async def test_a_page_beyond_the_bound_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="page_size"):
        await a_server().ListAllocations(pb.ListAllocationsRequest(page_size=MAX_PAGE + 1), None)
