"""The published state of the cluster, and its readers.

Decides what a reader is told and when. Every change of a node has a number; a reader is the number up to
which it was told, and gets the newest facts of what changed since when its connection is ready for more. So
a reader that is slow gets fewer and newer changes, and costs neither memory nor anybody else's time. What
changed in usage alone is collected and told every few seconds, little by little.

It never decides what the facts are, and keeps none but the newest.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gpuloom.model.snapshot import NodeFacts
from gpuloom.rpc.changelog import ChangeLog
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.v1.types_pb2 import StreamVersion
from services.discovery.core.cluster import Changes
from services.discovery.encoding import EncodedNode, delta_message, full_message, heartbeat_message
from services.discovery.metrics import DiscoveryMetrics

MAX_MESSAGE_NODES = 64
MAX_MESSAGE_BYTES = 1024 * 1024

_NODES_IN_A_ROW = 8
"""Encoded before others on the event loop get their turn: a millisecond or two at first."""


class ClusterFeed:
    def __init__(self, clock: Clock, usage_interval_s: float, metrics: DiscoveryMetrics) -> None:
        self.epoch = secrets.token_hex(8)
        self.number = 0
        """Counts the changes of nodes, for all readers alike."""
        self.with_usage = ChangeLog()
        self.without_usage = ChangeLog()
        self._clock = clock
        self._usage_interval_s = usage_interval_s
        self._metrics = metrics
        self._nodes: dict[str, EncodedNode] = {}
        self._newer_usage: dict[str, NodeFacts] = {}
        self._usage_due: deque[str] = deque()
        """UIDs of nodes whose newer usage is to be told now; each at most once, so no more than nodes."""
        self._usage_told_s = -usage_interval_s
        self._readers: set[ClusterReader] = set()

    def publish(self, changes: Changes) -> None:
        """Take over what changed: first what is gone, then what is there, which may have been gone before."""
        for uid in changes.removed_node_uids:
            self._remove(uid)
        for facts in changes.facts:
            self._change(facts, usage_only=facts.state.node_uid in changes.usage_only)
        self._tell_usage()
        for reader in self._readers:
            reader.wake()

    def facts(self) -> Iterator[NodeFacts]:
        """The state that the version stands for."""
        return (node.facts for node in self._nodes.values())

    def facts_of(self, uid: str) -> NodeFacts | None:
        node = self._nodes.get(uid)
        return None if node is None else node.facts

    def encoded(self, uid: str) -> EncodedNode | None:
        return self._nodes.get(uid)

    def node_uids(self) -> list[str]:
        return list(self._nodes)

    def open(self, with_usage: bool, heartbeat_s: float) -> "ClusterReader":
        """A reader from the present version on. Use it as a context manager."""
        reader = ClusterReader(self, with_usage, heartbeat_s, self._clock, self._metrics)
        self._readers.add(reader)
        return reader

    def close(self, reader: "ClusterReader") -> None:
        self._readers.discard(reader)

    def _remove(self, uid: str) -> None:
        if self._nodes.pop(uid, None) is not None:
            self._newer_usage.pop(uid, None)
            self.number += 1
            self.with_usage.remove(uid, self.number)
            self.without_usage.remove(uid, self.number)

    def _change(self, facts: NodeFacts, usage_only: bool) -> None:
        uid = facts.state.node_uid
        known = self._nodes.get(uid)
        self._newer_usage.pop(uid, None)
        if known is not None and usage_only:
            if known.facts.state.usage != facts.state.usage:
                self._newer_usage[uid] = facts
            return
        self._nodes[uid] = EncodedNode(facts)
        self.number += 1
        self.with_usage.change(uid, self.number)
        self.without_usage.change(uid, self.number)

    def _tell_usage(self) -> None:
        """One message of it at a time, so that no change has to wait behind the usage of all nodes."""
        now_s = self._clock.monotonic()
        if not self._usage_due and now_s - self._usage_told_s >= self._usage_interval_s and self._newer_usage:
            self._usage_due.extend(self._newer_usage)
            self._usage_told_s = now_s
        told = 0
        while self._usage_due and told < MAX_MESSAGE_NODES:
            uid = self._usage_due.popleft()
            facts = self._newer_usage.pop(uid, None)
            if facts is not None:
                self._nodes[uid].change_usage(facts)
                self.number += 1
                self.with_usage.change(uid, self.number)
                told += 1


class ClusterReader:
    """One reader's place in the feed."""

    def __init__(
        self, feed: ClusterFeed, with_usage: bool, heartbeat_s: float, clock: Clock, metrics: DiscoveryMetrics
    ) -> None:
        self._feed = feed
        self._with_usage = with_usage
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._metrics = metrics
        self._log = feed.with_usage if with_usage else feed.without_usage
        self._number = self._log.number
        self._changes_seen = self._log.changes
        self._arrived = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._feed.close(self)

    def wake(self) -> None:
        """A reader without usage sleeps on while only usage changes."""
        if self._log.number > self._number:
            self._arrived.set()

    async def messages(self) -> AsyncIterator[bytes]:
        """The full state, then deltas and heartbeats without end; encoded.

        Raise ReaderTooSlowError if this reader slept through more than can be told.
        """
        async for message in self._full():
            yield message
        while True:
            self._arrived.clear()
            behind = self._log.since(self._number)
            if behind:
                async for message in self._deltas(behind):
                    yield message
            elif not await self._news():
                yield heartbeat_message(self._version(self._number, self._number))

    async def _full(self) -> AsyncIterator[bytes]:
        """All parts say the version at which the reader opened; what changes meanwhile follows as a delta.

        A node that has changed since is sent as it is now: nothing older is kept, and the delta repeats it.
        """
        uids = self._feed.node_uids()
        version, start = self._version(self._number, 0), 0
        while True:
            piece = await self._piece(uids, start)
            start = piece.end
            yield full_message(version, piece.entries, more=start < len(uids))
            if start >= len(uids):
                return

    async def _deltas(self, behind: list[tuple[str, int]]) -> AsyncIterator[bytes]:
        """In the order of the changes, so that each message leads to the number of its last one."""
        self._metrics.coalesced_changes.inc(self._log.changes - self._changes_seen - len(behind))
        self._changes_seen = self._log.changes
        uids, start = [uid for uid, _ in behind], 0
        while start < len(uids):
            piece = await self._piece(uids, start)
            start = piece.end
            number = behind[start - 1][1]
            version = self._version(number, self._number)
            self._number = number
            self._metrics.deltas.inc()
            yield delta_message(version, piece.entries, piece.gone)

    async def _piece(self, uids: list[str], start: int) -> "_Piece":
        """As many nodes as one message takes, at least one if there is any."""
        entries, gone, size, end = list[bytes](), list[str](), 0, start
        while end < len(uids) and end - start < MAX_MESSAGE_NODES and size < MAX_MESSAGE_BYTES:
            node = self._feed.encoded(uids[end])
            if node is None:
                gone.append(uids[end])
            else:
                entries.append(node.entry(self._with_usage))
                size += len(entries[-1])
            end += 1
            if (end - start) % _NODES_IN_A_ROW == 0:
                await self._clock.sleep(0)
        return _Piece(entries, gone, end)

    def _version(self, number: int, after: int) -> StreamVersion:
        return StreamVersion(epoch=self._feed.epoch, number=number, after=after)

    async def _news(self) -> bool:
        """False if nothing came for so long that the reader must hear that we are alive."""
        try:
            async with deadline(self._clock, self._heartbeat_s):
                await self._arrived.wait()
        except TimeoutError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Piece:
    entries: list[bytes]
    gone: list[str]
    end: int
