"""The extender's gRPC service over mutual TLS: its decisions as they are made, its ledger page by page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuloom.clients.extender import DecisionFollower, list_allocations
from gpuloom.codec.ledger import decision_from_proto, entry_from_proto
from gpuloom.errors import InvalidRequestError, NotAllowedError
from gpuloom.model.ledger import Decision, LedgerEntry, Verdict
from gpuloom.model.node import PodRef
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.server import RpcServer
from gpuloom.runtime.clock import SystemClock
from gpuloom.v1.scheduler_extender_pb2 import ListAllocationsRequest, ListAllocationsResponse
from gpuloom.v1.scheduler_extender_pb2_grpc import (
    SchedulerExtenderServiceStub,
    add_SchedulerExtenderServiceServicer_to_server,
)
from services.scheduler_extender.core.ledger.attempts import Attempt
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.server import MAX_PAGE, SERVICE, SchedulerExtenderServer, callers_of
from tests.mesh.rpc.builders import a_channel, an_environment, issue, open_decisions
from tests.mesh.waiting import PATIENCE_S, running, until
from tests.unit.scheduler_extender.builders import (
    a_gpu,
    a_holder,
    a_pod,
    a_ref,
    an_allocation,
    an_observed_pod,
    given,
    some_facts,
)
from tests.unit.scheduler_extender.inquiry_setup import InquiryDesk


@asynccontextmanager
async def calling(
    folder: Path, ledger: Ledger, decisions: DecisionLog, caller: str = "cli"
) -> AsyncIterator[RpcChannel]:
    """The service, and a channel to it with this caller's certificate."""
    issue(folder, "scheduler_extender", caller)
    server = RpcServer(an_environment(tls_files(folder, "scheduler_extender")), "127.0.0.1", 0)
    desk = InquiryDesk()
    servicer = SchedulerExtenderServer(ledger, desk.feed, decisions, desk.inquiries)
    server.add(servicer, add_SchedulerExtenderServiceServicer_to_server, SERVICE, callers_of(SERVICE))
    environment = an_environment(tls_files(folder, caller))
    async with server, a_channel(environment, server) as channel:
        yield channel


async def test_a_watcher_gets_the_full_list_and_then_each_new_decision(tmp_path: Path) -> None:
    decisions = DecisionLog(SystemClock())
    decisions.record(a_decision(0))
    decisions.record(a_decision(1))

    async with (
        calling(tmp_path, Ledger(0.0), decisions) as channel,
        open_decisions(channel) as messages,
    ):
        full = await anext(messages)
        decisions.record(a_decision(2))
        decisions.record(a_decision(3))
        deltas = [await anext(messages), await anext(messages)]

    assert [decision_from_proto(item) for item in full.full.decisions] == [a_decision(0), a_decision(1)]
    assert [decision_from_proto(item.delta) for item in deltas] == [a_decision(2), a_decision(3)]
    assert [full.version.number, *(item.version.number for item in deltas)] == [2, 3, 4]


async def test_every_watcher_hears_every_decision(tmp_path: Path) -> None:
    decisions = DecisionLog(SystemClock())

    async with calling(tmp_path, Ledger(0.0), decisions) as channel:
        followers = [DecisionFollower(channel, SystemClock()) for _ in range(3)]
        async with running(followers[0].run), running(followers[1].run), running(followers[2].run):
            for number in range(50):
                decisions.record(a_decision(number))
            await until(lambda: all(len(follower.decisions) == 50 for follower in followers))

    expected = [a_decision(number) for number in range(50)]
    assert [list(follower.decisions) for follower in followers] == [expected] * 3


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 1000])
async def test_the_pages_together_are_the_whole_ledger(tmp_path: Path, page_size: int) -> None:
    ledger = a_full_ledger()

    async with calling(tmp_path, ledger, DecisionLog(SystemClock())) as channel:
        pages = await read_pages(channel, page_size)

    entries = [entry for page in pages for entry in page]
    assert entries == list(ledger.entries())
    assert all(len(page) == page_size for page in pages[:-1])
    assert 1 <= len(pages[-1]) <= page_size


async def test_an_entry_that_goes_while_pages_are_read_costs_no_other_one(tmp_path: Path) -> None:
    ledger = a_full_ledger()
    before = list(ledger.entries())

    async with calling(tmp_path, ledger, DecisionLog(SystemClock())) as channel:
        first = await ask_page(channel, page_size=3)
        # The entry that the token names goes with its node.
        ledger.forget_node("a")
        second = await ask_page(channel, page_size=1000, token=first.next_page_token)

    assert [entry_from_proto(entry) for entry in second.entries] == [
        entry for entry in before[3:] if entry.node_name != "a"
    ]


async def test_the_client_reads_the_whole_ledger(tmp_path: Path) -> None:
    ledger = a_full_ledger()

    async with calling(tmp_path, ledger, DecisionLog(SystemClock())) as channel:
        assert await list_allocations(channel) == list(ledger.entries())


async def test_an_empty_ledger_is_one_empty_page(tmp_path: Path) -> None:
    async with calling(tmp_path, Ledger(0.0), DecisionLog(SystemClock())) as channel:
        answer = await ask_page(channel)

    assert (len(answer.entries), answer.next_page_token) == (0, "")


async def test_a_page_may_not_be_too_large(tmp_path: Path) -> None:
    async with calling(tmp_path, a_full_ledger(), DecisionLog(SystemClock())) as channel:
        largest = await ask_page(channel, page_size=MAX_PAGE)

        with pytest.raises(InvalidRequestError, match=f"page_size is at most {MAX_PAGE}, not {MAX_PAGE + 1}"):
            await ask_page(channel, page_size=MAX_PAGE + 1)

    assert largest.next_page_token == ""


@pytest.mark.parametrize(
    "token", ["7", "a/uid-a-1", "a/uid-a-1/x", "a/uid-a-1/-1", "a/b/c/0", "/", "//", "a/b/" + "9" * 5000]
)
async def test_a_foreign_token_is_refused(tmp_path: Path, token: str) -> None:
    async with calling(tmp_path, a_full_ledger(), DecisionLog(SystemClock())) as channel:
        with pytest.raises(InvalidRequestError, match="page_token is not one that this call gave"):
            await ask_page(channel, token=token)


@pytest.mark.parametrize("caller", ["discovery", "kube_scheduler", "node_agent"])
async def test_only_the_cli_may_look(tmp_path: Path, caller: str) -> None:
    async with calling(tmp_path, a_full_ledger(), DecisionLog(SystemClock()), caller) as channel:
        with pytest.raises(NotAllowedError, match=f"^{caller} may not call ListAllocations$"):
            await ask_page(channel)
        async with open_decisions(channel) as messages:
            with pytest.raises(NotAllowedError, match=f"^{caller} may not call WatchDecisions$"):
                await anext(messages)


def a_decision(number: int) -> Decision:
    time = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
    pod = PodRef("team-a", f"p{number}", f"uid-{number}")
    devices = (given(f"GPU-{number}"),)
    return Decision(time, pod, Verdict.BOUND, "n1", devices)


def a_full_ledger() -> Ledger:
    """On each of three nodes: a bind in flight, two pods, and three holders, two of which have no name."""
    ledger = Ledger(settle_s=60.0)
    for name in ("b", "a", "c"):
        ledger.observe_node(name, f"uid-{name}")
        ledger.begin(an_attempt(name, 0))
        for number in (1, 2):
            ref = a_ref(f"{name}-{number}")
            allocation = an_allocation(ref, given(f"GPU-{name}-{number}"), node_uid=f"uid-{name}")
            ledger.observe_pod(an_observed_pod(a_pod(ref, node=name, allocation=allocation)), now_s=0.0)
        holders = [
            a_holder(PodRef("", "", ""), f"GPU-{name}-3"),
            a_holder(PodRef("", "", ""), f"GPU-{name}-4"),
            a_holder(a_ref(f"{name}-gone"), f"GPU-{name}-5"),
        ]
        gpus = (a_gpu(f"GPU-{name}-{index}", index) for index in range(6))
        ledger.observe_facts(f"uid-{name}", some_facts(name, *gpus, holders=holders), now_s=0.0)
    return ledger


def an_attempt(node_name: str, number: int) -> Attempt:
    ref = a_ref(f"{node_name}-{number}")
    devices = given(f"GPU-{node_name}-{number}")
    return Attempt(ref, node_name, an_allocation(ref, devices, node_uid=f"uid-{node_name}"))


async def ask_page(channel: RpcChannel, page_size: int = 0, token: str = "") -> ListAllocationsResponse:
    request = ListAllocationsRequest(page_size=page_size, page_token=token)
    return await channel.stub(SchedulerExtenderServiceStub).ListAllocations(request, timeout=PATIENCE_S)


async def read_pages(channel: RpcChannel, page_size: int) -> list[list[LedgerEntry]]:
    pages, token = [], ""
    while True:
        answer = await ask_page(channel, page_size, token)
        pages.append([entry_from_proto(entry) for entry in answer.entries])
        token = answer.next_page_token
        if not token:
            return pages
