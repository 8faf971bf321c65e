"""A mirror of the extender's ledger that survives restarts and fail-overs, and the views made of it.

With discovery's facts of the same nodes it makes the very views that the extender makes, by the same
function, so that a planner can try thousands of placements without a call. It never judges, and reserves
nothing: what it shows may be taken by the time somebody acts on it.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType

from gpuloom.clients.following import keep_following
from gpuloom.codec.node_ledger import node_ledger_from_proto
from gpuloom.model.ledger import NodeLedger
from gpuloom.model.snapshot import NodeFacts
from gpuloom.model.version import StreamVersion
from gpuloom.placement.devices import NodeView
from gpuloom.placement.occupancy.node_view import STALE, closed_view, node_view
from gpuloom.rpc.channel import RpcChannel, open_stream
from gpuloom.rpc.streams import StreamCursor, StreamGapError
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.v1.scheduler_extender_pb2 import WatchLedgerRequest, WatchLedgerResponse
from gpuloom.v1.scheduler_extender_pb2_grpc import SchedulerExtenderServiceStub

SILENCE_S = 15.0
"""A stream silent for so long is opened anew; heartbeats come every few seconds."""

_NODES_IN_A_ROW = 16
"""Decoded before others on the event loop get their turn."""

Messages = AsyncIterator[WatchLedgerResponse]
LedgerHandler = Callable[[str, NodeLedger | None], None]


class LedgerMirror:
    """All nodes by name, as the leader's ledger last said. Handlers hear (node name, its ledger or None)."""

    def __init__(self, channel: RpcChannel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock
        self._nodes: dict[str, NodeLedger] = {}
        self._handlers: list[LedgerHandler] = []
        self._version = StreamVersion("", 0)
        self._heard_s = -math.inf
        self._facts_stale = True
        self._synced = asyncio.Event()

    @property
    def nodes(self) -> Mapping[str, NodeLedger]:
        """A live, read-only look; copy it to keep it."""
        return MappingProxyType(self._nodes)

    @property
    def synced(self) -> bool:
        """A full state has been read. It may be old by now: ask `age_s`."""
        return self._synced.is_set()

    @property
    def version(self) -> StreamVersion:
        return self._version

    @property
    def facts_stale(self) -> bool:
        """Whether the extender gives nothing out anywhere, because its device facts are too old."""
        return self._facts_stale

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def age_s(self) -> float:
        """Seconds since a leader last vouched for what is here; infinite before one did."""
        return self._clock.monotonic() - self._heard_s

    def on_change(self, handler: LedgerHandler) -> None:
        self._handlers.append(handler)

    def view(self, node_name: str, facts: NodeFacts | None) -> NodeView | None:
        """The node as the extender sees it; None if its ledger has no such node.

        `facts` are discovery's of the node's UID. Facts of another machine count as none.
        """
        ledger = self._nodes.get(node_name)
        if ledger is None:
            return None
        if facts is not None and self._facts_stale:
            return closed_view(ledger, STALE)
        same = facts is not None and facts.state.node_uid == ledger.node_uid
        return node_view(ledger, facts if same else None)

    async def run(self) -> None:
        """Follow until cancelled."""
        await keep_following("scheduler_extender", self._follow, Backoff(0.2, 3.0), self._clock)

    async def _follow(self, backoff: Backoff) -> None:
        cursor = StreamCursor()
        stub = self._channel.stub(SchedulerExtenderServiceStub)
        async with open_stream(stub.WatchLedger(WatchLedgerRequest())) as messages:
            await self._read_full(messages, cursor)
            backoff.reset()
            while (message := await self._next(messages, cursor)) is not None:
                kind = message.WhichOneof("update")
                if kind == "delta":
                    await self._apply(message)
                elif kind != "heartbeat":
                    raise StreamGapError("a message that is no update")
                self._move_to(message)

    async def _read_full(self, messages: Messages, cursor: StreamCursor) -> None:
        """What was known stays as it is until the last part is here."""
        full = dict[str, NodeLedger]()
        while (message := await self._next(messages, cursor)) is not None:
            if message.WhichOneof("update") != "full":
                raise StreamGapError("the full state is not complete")
            for place, node in enumerate(message.full.nodes, 1):
                full[node.node_name] = node_ledger_from_proto(node)
                if place % _NODES_IN_A_ROW == 0:
                    await self._clock.sleep(0)
            if not message.full.more:
                self._replace_all(full)
                self._move_to(message)
                self._synced.set()
                return
        raise StreamGapError("the stream ended within the full state")

    async def _next(self, messages: Messages, cursor: StreamCursor) -> WatchLedgerResponse | None:
        async with deadline(self._clock, SILENCE_S):
            message = await anext(messages, None)
        if message is not None:
            version, is_full = message.version, message.WhichOneof("update") == "full"
            cursor.accept(version.epoch, version.number, version.after, is_full)
        return message

    def _move_to(self, message: WatchLedgerResponse) -> None:
        self._version = StreamVersion(message.version.epoch, message.version.number)
        self._facts_stale = message.facts_stale
        self._heard_s = self._clock.monotonic()

    def _replace_all(self, full: Mapping[str, NodeLedger]) -> None:
        for name in [name for name in self._nodes if name not in full]:
            self._set(name, None)
        for name, ledger in full.items():
            self._set(name, ledger)

    async def _apply(self, message: WatchLedgerResponse) -> None:
        for name in message.delta.removed_node_names:
            self._set(name, None)
        for place, node in enumerate(message.delta.nodes, 1):
            self._set(node.node_name, node_ledger_from_proto(node))
            if place % _NODES_IN_A_ROW == 0:
                await self._clock.sleep(0)

    def _set(self, name: str, ledger: NodeLedger | None) -> None:
        if self._nodes.get(name) == ledger:
            return
        if ledger is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = ledger
        for handler in self._handlers:
            handler(name, ledger)
