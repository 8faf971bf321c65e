from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.facts import node_facts_to_proto
from gpuloom.model.snapshot import NodeFacts
from gpuloom.v1 import discovery_pb2 as pb
from gpuloom.v1.types_pb2 import Heartbeat, StreamVersion
from services.discovery.encoding import EncodedNode, delta_message, full_message, heartbeat_message
from tests.strategies import NODE_FACTS
from tests.unit.discovery.builders import a_state

VERSION = StreamVersion(epoch="e", number=300, after=7)
MANY_FACTS = st.lists(NODE_FACTS, max_size=3)


@given(MANY_FACTS, st.booleans(), st.booleans())
def test_a_part_is_what_the_library_would_have_encoded(
    facts: list[NodeFacts], with_usage: bool, more: bool
) -> None:
    entries = [EncodedNode(item).entry(with_usage) for item in facts]

    message = pb.WatchClusterResponse.FromString(full_message(VERSION, entries, more))

    nodes = [node_facts_to_proto(item, with_usage=with_usage) for item in facts]
    part = pb.ClusterPart(nodes=nodes, more=more)
    assert message == pb.WatchClusterResponse(version=VERSION, full=part)


@given(MANY_FACTS, st.booleans(), st.lists(st.text(max_size=3), max_size=2))
def test_a_delta_is_what_the_library_would_have_encoded(
    facts: list[NodeFacts], with_usage: bool, removed: list[str]
) -> None:
    entries = [EncodedNode(item).entry(with_usage) for item in facts]

    message = pb.WatchClusterResponse.FromString(delta_message(VERSION, entries, removed))

    nodes = [node_facts_to_proto(item, with_usage=with_usage) for item in facts]
    delta = pb.ClusterDelta(nodes=nodes, removed_node_uids=removed)
    assert message == pb.WatchClusterResponse(version=VERSION, delta=delta)


@given(NODE_FACTS, NODE_FACTS)
def test_new_usage_replaces_the_old_and_leaves_the_rest(facts: NodeFacts, other: NodeFacts) -> None:
    node = EncodedNode(facts)
    node.entry(with_usage=True)

    changed = replace(facts, state=replace(facts.state, usage=other.state.usage))
    node.change_usage(changed)

    assert node.entry(with_usage=True) == EncodedNode(changed).entry(with_usage=True)
    assert node.entry(with_usage=False) == EncodedNode(facts).entry(with_usage=False)


def test_a_heartbeat_is_one() -> None:
    message = pb.WatchClusterResponse.FromString(heartbeat_message(VERSION))

    assert message == pb.WatchClusterResponse(version=VERSION, heartbeat=Heartbeat())


def test_the_rest_of_a_node_is_not_encoded_again_when_its_usage_changes() -> None:
    node = EncodedNode(NodeFacts(a_state()))
    node.entry(with_usage=True)
    before = node._bare

    node.change_usage(NodeFacts(a_state(utilization=0.5)))
    node.entry(with_usage=True)

    assert node._bare is before
