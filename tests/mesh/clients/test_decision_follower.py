import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuloom.clients.extender import DecisionFollower, list_allocations
from gpuloom.codec.ledger import decision_to_proto, entry_to_proto
from gpuloom.model.ledger import Decision, EntryState, LedgerEntry, Verdict
from gpuloom.model.node import PodRef
from gpuloom.rpc.channel import RpcChannel
from gpuloom.runtime.clock import SystemClock
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1.types_pb2 import Heartbeat, StreamVersion
from tests.mesh.rpc.builders import Extender, an_insecure_mesh
from tests.mesh.waiting import running, until


class Script:
    """Answers each call with the next script: what it ends with is an error, or silence."""

    def __init__(self, *scripts: Iterable[pb.WatchDecisionsResponse]) -> None:
        self._scripts = iter(scripts)
        self.calls = 0

    async def __call__(
        self, _request: pb.WatchDecisionsRequest, _context: Any
    ) -> AsyncIterator[pb.WatchDecisionsResponse]:
        self.calls += 1
        for message in next(self._scripts):
            yield message
        await asyncio.Event().wait()


@asynccontextmanager
async def a_follower(script: Script, keep: int = 200) -> AsyncIterator[DecisionFollower]:
    async with an_insecure_mesh(Extender(on_watch=script)) as (_, channel):
        follower = DecisionFollower(channel, SystemClock(), keep)
        async with running(follower.run) as task:
            yield follower
            assert not task.done()


async def test_decisions_come_as_they_are_made() -> None:
    script = Script([full("e1", 2, 0, 1), beat("e1", 2), delta("e1", 3, 2)])

    async with a_follower(script) as follower:
        await until(lambda: len(follower.decisions) == 3)

        assert shown(follower) == [0, 1, 2]


async def test_what_was_heard_before_the_stream_was_lost_is_kept_once() -> None:
    script = Script([full("e1", 3, 0, 1, 2), gap()], [full("e1", 5, 1, 2, 3, 4)])

    async with a_follower(script) as follower:
        await until(lambda: len(follower.decisions) == 5)

        assert shown(follower) == [0, 1, 2, 3, 4]


async def test_a_restarted_extender_begins_anew_and_nothing_is_lost() -> None:
    script = Script([full("e1", 2, 0, 1), gap()], [full("e2", 0), delta("e2", 1, 2)])

    async with a_follower(script) as follower:
        await until(lambda: len(follower.decisions) == 3)

        assert shown(follower) == [0, 1, 2]


async def test_a_follower_that_keeps_few_keeps_the_newest() -> None:
    first, second = full("e1", 9, *range(9)), full("e1", 10, *range(10))
    script = Script([first, gap()], [second])

    async with a_follower(script, keep=3) as follower:
        await until(lambda: script.calls == 2 and shown(follower)[-1] == 9)

        assert shown(follower) == [7, 8, 9]


async def test_the_ledger_is_read_part_by_part() -> None:
    entries = [
        LedgerEntry(PodRef("a", f"p{i}", f"u{i}"), "n1", "uid-n1", EntryState.OBSERVED, None)
        for i in range(5)
    ]

    async def page(request: pb.ListAllocationsRequest, _context: Any) -> pb.ListAllocationsResponse:
        start = int(request.page_token or 0)
        more = str(start + 2) if start + 2 < len(entries) else ""
        return pb.ListAllocationsResponse(
            entries=map(entry_to_proto, entries[start : start + 2]), next_page_token=more
        )

    async with an_insecure_mesh(Extender(on_list=page)) as (_, channel):
        assert isinstance(channel, RpcChannel)
        assert await list_allocations(channel) == entries


def a_decision(number: int) -> Decision:
    time = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
    return Decision(time, PodRef("team-a", f"p{number}", f"uid-{number}"), Verdict.REFUSED, reason="no room")


def shown(follower: DecisionFollower) -> list[int]:
    return [int(decision.pod.uid.removeprefix("uid-")) for decision in follower.decisions]


def full(epoch: str, number: int, *decisions: int) -> pb.WatchDecisionsResponse:
    listed = pb.DecisionList(decisions=[decision_to_proto(a_decision(i)) for i in decisions])
    return pb.WatchDecisionsResponse(version=StreamVersion(epoch=epoch, number=number), full=listed)


def delta(epoch: str, number: int, decision: int) -> pb.WatchDecisionsResponse:
    version = StreamVersion(epoch=epoch, number=number, after=number - 1)
    return pb.WatchDecisionsResponse(version=version, delta=decision_to_proto(a_decision(decision)))


def beat(epoch: str, number: int) -> pb.WatchDecisionsResponse:
    version = StreamVersion(epoch=epoch, number=number, after=number)
    return pb.WatchDecisionsResponse(version=version, heartbeat=Heartbeat())


def gap() -> pb.WatchDecisionsResponse:
    version = StreamVersion(epoch="e1", number=99, after=98)
    return pb.WatchDecisionsResponse(version=version, heartbeat=Heartbeat())
