"""The ledger as a stream: every node first, then what changed.

Decides what a reader is told and when. Every change of a node has a number; a reader is the number up to
which it was told, and gets the newest state of what changed since when its connection is ready for more. So a
slow reader gets fewer and newer changes, and costs no memory. It never decides what the ledger says.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager

from gpuloom.codec.node_ledger import node_ledger_to_proto
from gpuloom.errors import NotReadyError
from gpuloom.rpc.changelog import ChangeLog
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1.types_pb2 import Heartbeat, StreamVersion
from services.scheduler_extender.core.views.views import Views

NODES_A_MESSAGE = 64
GATHER_S = 0.05
"""After a change the next ones are left to gather for so long."""
_NODES_IN_A_ROW = 8
"""Encoded before others on the event loop get their turn."""


class LedgerFeed:
    def __init__(self, views: Views, unready_reason: Callable[[], str], clock: Clock) -> None:
        self._views = views
        self._unready_reason = unready_reason
        self._clock = clock
        self._epoch = secrets.token_hex(8)
        self._log = ChangeLog()
        self._encoded: dict[str, pb.NodeLedger] = {}
        """Of nodes that somebody has read since they changed: readers share them."""
        self._readers: set[asyncio.Event] = set()
        views.on_change(self._note)

    async def messages(self, heartbeat_s: float) -> AsyncGenerator[pb.WatchLedgerResponse, None]:
        """The full state, then deltas and heartbeats. Raise NotReadyError where or when we don't serve."""
        self._refuse_unready()
        with self._reader() as arrived:
            names = self._views.node_names()
            number = self._log.number
            async for message in self._full(names, number):
                yield message
            while True:
                self._refuse_unready()
                arrived.clear()
                behind = self._log.since(number)
                async for message in self._deltas(behind, number):
                    number = message.version.number
                    yield message
                if not behind and not await self._news(arrived, heartbeat_s):
                    heartbeat = Heartbeat()
                    yield self._message(number, number, pb.WatchLedgerResponse(heartbeat=heartbeat))

    def _note(self, node_name: str, present: bool) -> None:
        self._encoded.pop(node_name, None)
        number = self._log.number + 1
        if present:
            self._log.change(node_name, number)
        else:
            self._log.remove(node_name, number)
        for arrived in self._readers:
            arrived.set()

    @contextmanager
    def _reader(self) -> Iterator[asyncio.Event]:
        arrived = asyncio.Event()
        self._readers.add(arrived)
        try:
            yield arrived
        finally:
            self._readers.discard(arrived)

    async def _full(self, names: list[str], number: int) -> AsyncIterator[pb.WatchLedgerResponse]:
        """A node that changes meanwhile is sent as it is then, and the delta that follows repeats it."""
        for start in range(0, max(1, len(names)), NODES_A_MESSAGE):
            end = start + NODES_A_MESSAGE
            nodes, _ = await self._read(names[start:end])
            part = pb.LedgerPart(nodes=nodes, more=end < len(names))
            yield self._message(number, 0, pb.WatchLedgerResponse(full=part))

    async def _deltas(
        self, behind: list[tuple[str, int]], number: int
    ) -> AsyncIterator[pb.WatchLedgerResponse]:
        """In the order of the changes, so that each message leads to the number of its last one."""
        for start in range(0, len(behind), NODES_A_MESSAGE):
            piece = behind[start : start + NODES_A_MESSAGE]
            nodes, gone = await self._read(name for name, _ in piece)
            delta = pb.LedgerDelta(nodes=nodes, removed_node_names=gone)
            yield self._message(piece[-1][1], number, pb.WatchLedgerResponse(delta=delta))
            number = piece[-1][1]

    async def _read(self, names: Iterable[str]) -> tuple[list[pb.NodeLedger], list[str]]:
        """The nodes as they are now, and the names of those that are gone."""
        nodes, gone = list[pb.NodeLedger](), list[str]()
        for place, name in enumerate(names, 1):
            node = self._node(name)
            if node is None:
                gone.append(name)
            else:
                nodes.append(node)
            if place % _NODES_IN_A_ROW == 0:
                await self._clock.sleep(0)
        return nodes, gone

    def _node(self, name: str) -> pb.NodeLedger | None:
        known = self._encoded.get(name)
        if known is None:
            ledger = self._views.node_ledger(name)
            if ledger is None:
                return None
            known = self._encoded[name] = node_ledger_to_proto(ledger)
        return known

    async def _news(self, arrived: asyncio.Event, heartbeat_s: float) -> bool:
        """False if nothing came for so long that the reader must hear that we are alive."""
        try:
            async with deadline(self._clock, heartbeat_s):
                await arrived.wait()
        except TimeoutError:
            return False
        await self._clock.sleep(GATHER_S)
        return True

    def _message(self, number: int, after: int, message: pb.WatchLedgerResponse) -> pb.WatchLedgerResponse:
        message.version.MergeFrom(StreamVersion(epoch=self._epoch, number=number, after=after))
        message.facts_stale = self._views.stale
        return message

    def _refuse_unready(self) -> None:
        reason = self._unready_reason()
        if reason:
            raise NotReadyError(f"GPULoom is not ready: {reason}")
