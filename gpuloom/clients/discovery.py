"""A mirror of discovery's read model that survives restarts of either side."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from random import Random

from gpuloom.clients.following import keep_following
from gpuloom.codec.facts import node_facts_from_proto
from gpuloom.model.snapshot import ClusterSnapshot, NodeFacts
from gpuloom.model.version import StreamVersion
from gpuloom.rpc.channel import RpcChannel, open_stream
from gpuloom.rpc.streams import StreamCursor, StreamGapError
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.v1.discovery_pb2 import ClusterDelta, WatchClusterRequest, WatchClusterResponse
from gpuloom.v1.discovery_pb2_grpc import DiscoveryServiceStub

FactsHandler = Callable[[str, NodeFacts | None], None]


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    with_usage: bool = False
    silence_s: float = 15.0
    """A stream silent for so long is opened anew; heartbeats come every few seconds."""
    first_backoff_s: float = 0.2
    backoff_cap_s: float = 3.0
    jitter: Random = field(default_factory=Random)


class ClusterMirror:
    """All nodes as discovery last said. Handlers hear (node UID, facts or None) for every difference."""

    def __init__(self, channel: RpcChannel, clock: Clock, options: MirrorOptions | None = None) -> None:
        self._channel = channel
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
        call = self._channel.stub(DiscoveryServiceStub).WatchCluster(request)
        cursor = StreamCursor()
        async with open_stream(call) as messages:
            await self._read_full(messages, cursor)
            backoff.reset()
            while (message := await self._next(messages, cursor)) is not None:
                kind = message.WhichOneof("update")
                if kind == "delta":
                    self._apply(message.delta)
                elif kind != "heartbeat":
                    raise StreamGapError("a message that is no update")
                self._move_to(message)

    async def _read_full(self, messages: AsyncIterator[WatchClusterResponse], cursor: StreamCursor) -> None:
        """What was known stays as it is until the last part is here."""
        full = dict[str, NodeFacts]()
        while (message := await self._next(messages, cursor)) is not None:
            if message.WhichOneof("update") != "full":
                raise StreamGapError("the full state is not complete")
            facts = map(node_facts_from_proto, message.full.nodes)
            full |= {item.state.node_uid: item for item in facts}
            if not message.full.more:
                self._replace_all(full)
                self._move_to(message)
                self._synced.set()
                return
        raise StreamGapError("the stream ended within the full state")

    def _move_to(self, message: WatchClusterResponse) -> None:
        self._version = StreamVersion(message.version.epoch, message.version.number)
        self._heard_s = self._clock.monotonic()

    async def _next(
        self, messages: AsyncIterator[WatchClusterResponse], cursor: StreamCursor
    ) -> WatchClusterResponse | None:
        async with deadline(self._clock, self._options.silence_s):
            message = await anext(messages, None)
        if message is not None:
            version, is_full = message.version, message.WhichOneof("update") == "full"
            cursor.accept(version.epoch, version.number, version.after, is_full)
        return message

    def _replace_all(self, full: dict[str, NodeFacts]) -> None:
        for uid in [uid for uid in self._nodes if uid not in full]:
            self._set(uid, None)
        for uid, facts in full.items():
            self._set(uid, facts)

    def _apply(self, delta: ClusterDelta) -> None:
        for uid in delta.removed_node_uids:
            self._set(uid, None)
        for facts in map(node_facts_from_proto, delta.nodes):
            self._set(facts.state.node_uid, facts)

    def _set(self, uid: str, facts: NodeFacts | None) -> None:
        if self._nodes.get(uid) == facts:
            return
        if facts is None:
            self._nodes.pop(uid, None)
        else:
            self._nodes[uid] = facts
        for handler in self._handlers:
            handler(uid, facts)
