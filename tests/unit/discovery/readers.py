"""A reader of discovery's feed without a connection: it reads as much as the test says."""

from gpuloom.codec.facts import node_facts_from_proto, node_facts_to_proto
from gpuloom.model.snapshot import NodeFacts
from gpuloom.rpc.streams import ReaderTooSlowError, StreamCursor
from gpuloom.v1.discovery_pb2 import WatchClusterResponse
from services.discovery.feed import ClusterFeed

HEARTBEAT_S = 5.0


class MemoryReader:
    """Follows by the rules of the stream. What it has is complete once the last part is there."""

    def __init__(self, feed: ClusterFeed, *, with_usage: bool = True) -> None:
        self.nodes: dict[str, NodeFacts] = {}
        self.received: list[str] = []
        """UIDs in the order in which they came in deltas."""
        self._feed = feed
        self._with_usage = with_usage
        self.reopen()

    def reopen(self) -> None:
        self.cursor = StreamCursor()
        self.complete = self._in_parts = False
        self.cut_off = False
        self._reader = self._feed.open(self._with_usage, HEARTBEAT_S)
        self._messages = self._reader.messages()

    def close(self) -> None:
        self._reader.__exit__(None, None, None)

    @property
    def behind(self) -> bool:
        log = self._feed.with_usage if self._with_usage else self._feed.without_usage
        version = self.cursor.version
        return not self.complete or version is None or version.number < log.number

    async def read(self) -> WatchClusterResponse:
        """One message; a reader that is cut off opens the stream again."""
        try:
            message = WatchClusterResponse.FromString(await anext(self._messages))
        except ReaderTooSlowError:
            self.close()
            self.reopen()
            self.cut_off = True
            return await self.read()
        self._apply(message)
        return message

    async def catch_up(self) -> int:
        """Read while there is anything to read; how many messages came."""
        count = 0
        while self.behind:
            await self.read()
            count += 1
        return count

    def _apply(self, message: WatchClusterResponse) -> None:
        kind, version = message.WhichOneof("update"), message.version
        self.cursor.accept(version.epoch, version.number, version.after, is_full=kind == "full")
        if kind == "full":
            if self.complete:
                raise AssertionError("a part after the last one")
            self.nodes = self.nodes if self._in_parts else {}
            self._in_parts = message.full.more
            self.complete = not message.full.more
        for uid in message.delta.removed_node_uids:
            self.nodes.pop(uid, None)
        for node in (*message.full.nodes, *message.delta.nodes):
            facts = node_facts_from_proto(node)
            self.nodes[facts.state.node_uid] = facts
        if kind == "delta":
            self.received += [node.state.node_uid for node in message.delta.nodes]


def as_sent(facts: NodeFacts, with_usage: bool) -> NodeFacts:
    """What any reader of these facts gets; texts are bounded on the way."""
    return node_facts_from_proto(node_facts_to_proto(facts, with_usage=with_usage))


def published(feed: ClusterFeed, *, with_usage: bool) -> dict[str, NodeFacts]:
    return {facts.state.node_uid: as_sent(facts, with_usage) for facts in feed.facts()}
