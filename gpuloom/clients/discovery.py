"""A mirror of discovery's read model that survives restarts of either side and a change of replicas.

Decides when a stream continues and when it is read anew. What one replica said may be older than what another
said before; the mirror then goes back with it, and handlers hear the differences. It never judges the facts.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from random import Random

from gpuloom.clients.following import keep_following
from gpuloom.clients.replicas import Replicas
from gpuloom.codec.facts import node_facts_from_proto
from gpuloom.model.snapshot import ClusterSnapshot, NodeFacts
from gpuloom.model.version import StreamVersion
from gpuloom.rpc.channel import RpcChannel, open_stream
from gpuloom.rpc.streams import StreamCursor, StreamGapError
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.v1.discovery_pb2 import ClusterDelta, WatchClusterRequest, WatchClusterResponse
from gpuloom.v1.discovery_pb2 import NodeFacts as NodeFactsMessage
from gpuloom.v1.discovery_pb2_grpc import DiscoveryServiceStub

FactsHandler = Callable[[str, NodeFacts | None], None]
Messages = AsyncIterator[WatchClusterResponse]

_NODES_IN_A_ROW = 4
"""Decoded, or told to handlers, before others on the event loop get their turn: about a millisecond."""


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    with_usage: bool = False
    silence_s: float = 15.0
    """A stream silent for so long is opened anew; heartbeats come every few seconds."""
    first_backoff_s: float = 0.2
    backoff_cap_s: float = 3.0
    jitter: Random = field(default_factory=Random)


class ClusterMirror:
    """All nodes as discovery last said. Handlers hear (node UID, facts or None) for every difference.

    Everything happens on the event loop, and a node changes at once; a large change comes node by node, with
    other work in between, and the version moves when it is complete.
    """

    def __init__(
        self, source: RpcChannel | Replicas, clock: Clock, options: MirrorOptions | None = None
    ) -> None:
        """With replicas, each new stream goes to the next one; a channel leads to one place."""
        self._source = source
        self._clock = clock
        self._options = options or MirrorOptions()
        self._handlers: list[FactsHandler] = []
        self._nodes: dict[str, NodeFacts] = {}
        self._version = StreamVersion("", 0)
        self._heard_s = -math.inf
        self._synced = asyncio.Event()

    @property
    def synced(self) -> bool:
        """A full state has been read. It may be old by now: ask `age_s`."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def age_s(self) -> float:
        """Seconds since discovery last vouched for what is here; infinite before it did."""
        return self._clock.monotonic() - self._heard_s

    def snapshot(self) -> ClusterSnapshot:
        return ClusterSnapshot(self._version, dict(self._nodes))

    def facts_of(self, uid: str) -> NodeFacts | None:
        return self._nodes.get(uid)

    def on_change(self, handler: FactsHandler) -> None:
        for uid, facts in self._nodes.items():
            handler(uid, facts)
        self._handlers.append(handler)

    async def run(self) -> None:
        """Follow until cancelled. What was read last stays while discovery is away."""
        options = self._options
        backoff = Backoff(options.first_backoff_s, options.backoff_cap_s, options.jitter)
        await keep_following("discovery", self._follow, backoff, self._clock)

    async def _follow(self, backoff: Backoff) -> None:
        request = WatchClusterRequest(without_usage=not self._options.with_usage)
        cursor = StreamCursor()
        async with self._connection() as channel:
            call = channel.stub(DiscoveryServiceStub).WatchCluster(request)
            async with open_stream(call) as messages:
                await self._read_full(messages, cursor)
                backoff.reset()
                while (message := await self._next(messages, cursor)) is not None:
                    kind = message.WhichOneof("update")
                    if kind == "delta":
                        await self._apply(message.delta)
                    elif kind != "heartbeat":
                        raise StreamGapError("a message that is no update")
                    self._move_to(message)

    def _connection(self) -> AbstractAsyncContextManager[RpcChannel]:
        if isinstance(self._source, Replicas):
            return self._source.connect_next()
        return nullcontext(self._source)

    async def _read_full(self, messages: Messages, cursor: StreamCursor) -> None:
        """What was known stays as it is until the last part is here."""
        full = dict[str, NodeFacts]()
        while (message := await self._next(messages, cursor)) is not None:
            if message.WhichOneof("update") != "full":
                raise StreamGapError("the full state is not complete")
            async for facts in self._decoded(message.full.nodes):
                full[facts.state.node_uid] = facts
            if not message.full.more:
                await self._replace_all(full)
                self._move_to(message)
                self._synced.set()
                return
        raise StreamGapError("the stream ended within the full state")

    def _move_to(self, message: WatchClusterResponse) -> None:
        self._version = StreamVersion(message.version.epoch, message.version.number)
        self._heard_s = self._clock.monotonic()

    async def _next(self, messages: Messages, cursor: StreamCursor) -> WatchClusterResponse | None:
        async with deadline(self._clock, self._options.silence_s):
            message = await anext(messages, None)
        if message is not None:
            version, is_full = message.version, message.WhichOneof("update") == "full"
            cursor.accept(version.epoch, version.number, version.after, is_full)
        return message

    async def _decoded(self, nodes: Iterable[NodeFactsMessage]) -> AsyncIterator[NodeFacts]:
        for place, node in enumerate(nodes, 1):
            yield node_facts_from_proto(node)
            if place % _NODES_IN_A_ROW == 0:
                await self._clock.sleep(0)

    async def _replace_all(self, full: dict[str, NodeFacts]) -> None:
        for uid in [uid for uid in self._nodes if uid not in full]:
            self._set(uid, None)
        told = 0
        for uid, facts in full.items():
            told += self._set(uid, facts)
            if told == _NODES_IN_A_ROW:
                told = 0
                await self._clock.sleep(0)

    async def _apply(self, delta: ClusterDelta) -> None:
        for uid in delta.removed_node_uids:
            self._set(uid, None)
        async for facts in self._decoded(delta.nodes):
            self._set(facts.state.node_uid, facts)

    def _set(self, uid: str, facts: NodeFacts | None) -> bool:
        """False if that is what was known."""
        if self._nodes.get(uid) == facts:
            return False
        if facts is None:
            self._nodes.pop(uid, None)
        else:
            self._nodes[uid] = facts
        for handler in self._handlers:
            handler(uid, facts)
        return True
