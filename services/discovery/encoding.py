"""A node's facts as the bytes of the stream, made once and shared by all readers.

It relies on two rules of protobuf's encoding: messages that are written one after the other are one message,
and a field that is itself a message and comes twice is merged. So a node's usage, which changes all the time,
is written after the rest of its facts, which stay as they are.
"""

from collections.abc import Iterable

from gpuloom.codec.device import usage_to_proto
from gpuloom.codec.facts import node_facts_to_proto
from gpuloom.model.snapshot import NodeFacts
from gpuloom.v1 import discovery_pb2 as pb
from gpuloom.v1.types_pb2 import Heartbeat, NodeState, StreamVersion

_NODES = pb.ClusterDelta.NODES_FIELD_NUMBER  # and ClusterPart's: an entry fits both
_HEARTBEAT = pb.WatchClusterResponse(heartbeat=Heartbeat()).SerializeToString()
_MORE = pb.ClusterPart(more=True).SerializeToString()
_LENGTH_DELIMITED = 2


class EncodedNode:
    """The newest facts of a node; encoded when somebody asks first, and kept for the others."""

    __slots__ = ("_bare", "_usage", "facts")

    def __init__(self, facts: NodeFacts) -> None:
        self.facts = facts
        self._bare: bytes | None = None
        self._usage: bytes | None = None

    def change_usage(self, facts: NodeFacts) -> None:
        """The same facts with other usage."""
        self.facts = facts
        self._usage = None

    def entry(self, with_usage: bool) -> bytes:
        """This node in a full state or a delta."""
        if self._bare is None:
            self._bare = node_facts_to_proto(self.facts, with_usage=False).SerializeToString()
        if not with_usage:
            return _field(_NODES, self._bare)
        if self._usage is None:
            usage = NodeState(usage=map(usage_to_proto, self.facts.state.usage))
            self._usage = pb.NodeFacts(state=usage).SerializeToString()
        return _field(_NODES, self._bare + self._usage)


def full_message(version: StreamVersion, entries: Iterable[bytes], more: bool) -> bytes:
    body = b"".join(entries) + (_MORE if more else b"")
    return _at(version) + _field(pb.WatchClusterResponse.FULL_FIELD_NUMBER, body)


def delta_message(
    version: StreamVersion, entries: Iterable[bytes], removed_node_uids: Iterable[str]
) -> bytes:
    removed = pb.ClusterDelta(removed_node_uids=removed_node_uids).SerializeToString()
    body = b"".join(entries) + removed
    return _at(version) + _field(pb.WatchClusterResponse.DELTA_FIELD_NUMBER, body)


def heartbeat_message(version: StreamVersion) -> bytes:
    return _at(version) + _HEARTBEAT


def _at(version: StreamVersion) -> bytes:
    return pb.WatchClusterResponse(version=version).SerializeToString()


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
