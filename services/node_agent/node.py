"""The node's present state and the feed of its changes."""

from gpuloom.codec.node import node_delta_to_proto
from gpuloom.model.node import NodeState
from gpuloom.rpc.streams import VersionedFeed
from gpuloom.runtime.clock import Clock
from gpuloom.v1.node_agent_pb2 import NodeStateDelta


class Node:
    """State and feed move together, without an await between: a reader never sees one without the other."""

    def __init__(self, state: NodeState, clock: Clock) -> None:
        self.state = state
        self.feed: VersionedFeed[NodeStateDelta] = VersionedFeed(clock)
        self.looked_at_s: float | None = None

    def move_to(self, state: NodeState) -> None:
        delta = node_delta_to_proto(self.state, state)
        self.state = state
        if delta is not None:
            self.feed.publish(delta)
