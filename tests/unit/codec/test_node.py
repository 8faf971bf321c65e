from dataclasses import replace

import pytest
from hypothesis import given, settings

from gpuloom.codec.device import MAX_PODS_PER_NODE, MAX_TEXT_LENGTH
from gpuloom.codec.facts import MAX_LABELS, MAX_UNTRUSTED_REASONS, node_facts_from_proto, node_facts_to_proto
from gpuloom.codec.node import (
    apply_node_delta,
    node_delta_to_proto,
    node_state_from_proto,
    node_state_to_proto,
)
from gpuloom.errors import InvalidRequestError
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.model.snapshot import NodeFacts
from gpuloom.v1 import discovery_pb2
from gpuloom.v1 import types_pb2 as pb
from gpuloom.v1.node_agent_pb2 import NodeStateDelta
from tests.effort import examples
from tests.strategies import NODE_FACTS, hostile, node_states


@settings(max_examples=examples(50))
@given(node_states())
def test_a_state_survives_the_wire(state: NodeState) -> None:
    assert (
        node_state_from_proto(pb.NodeState.FromString(node_state_to_proto(state).SerializeToString()))
        == state
    )


@settings(max_examples=examples(50))
@given(NODE_FACTS)
def test_facts_survive_the_wire_with_and_without_usage(facts: NodeFacts) -> None:
    bare = replace(facts, state=replace(facts.state, usage=()))

    assert node_facts_from_proto(node_facts_to_proto(facts)) == facts
    assert node_facts_from_proto(node_facts_to_proto(facts, with_usage=False)) == bare


@given(node_states(), node_states())
def test_a_delta_leads_from_any_state_of_a_node_to_any_other(old: NodeState, new: NodeState) -> None:
    delta = node_delta_to_proto(old, new)

    reached = (
        old if delta is None else apply_node_delta(old, NodeStateDelta.FromString(delta.SerializeToString()))
    )

    assert reached == new


@settings(max_examples=examples(50))
@given(node_states())
def test_there_is_no_delta_when_nothing_changed(state: NodeState) -> None:
    assert node_delta_to_proto(state, replace(state)) is None


@settings(max_examples=examples(50))
@given(hostile(pb.NodeState))
def test_a_hostile_state_is_refused_or_can_be_told_to_others(message: pb.NodeState) -> None:
    try:
        state = node_state_from_proto(message)
    except InvalidRequestError:
        return

    assert node_state_from_proto(node_state_to_proto(state)) == state


@settings(max_examples=examples(50))
@given(node_states(), hostile(NodeStateDelta))
def test_a_hostile_delta_is_refused_or_leads_to_a_state_that_can_be_told(
    state: NodeState, delta: NodeStateDelta
) -> None:
    try:
        reached = apply_node_delta(state, delta)
    except InvalidRequestError:
        return

    assert node_state_from_proto(node_state_to_proto(reached)) == reached


@settings(max_examples=examples(50))
@given(hostile(discovery_pb2.NodeFacts))
def test_hostile_facts_are_refused_or_whole(message: discovery_pb2.NodeFacts) -> None:
    try:
        facts = node_facts_from_proto(message)
    except InvalidRequestError:
        return

    assert node_facts_from_proto(node_facts_to_proto(facts)) == facts


@pytest.mark.parametrize("value", [0, 5, 99, -1])
def test_a_mode_or_delivery_that_is_not_known_grants_nothing(value: int) -> None:
    message = pb.NodeState(node_name="n1")
    message.mode = message.delivery = value  # type: ignore[assignment]

    state = node_state_from_proto(message)

    assert (state.mode, state.delivery) == (NodeMode.UNKNOWN, Delivery.UNKNOWN)


def test_a_long_reason_of_one_node_never_makes_its_facts_unreadable() -> None:
    state = NodeState(
        "n1", "u1", NodeMode.NVIDIA, Delivery.DEVICE_PLUGIN, holders_unknown_reason="why " * 999
    )
    facts = NodeFacts(state, ("who holds the devices is not known: " + state.holders_unknown_reason,))

    read = node_facts_from_proto(node_facts_to_proto(facts))

    assert not read.trusted
    assert len(read.untrusted_reasons[0]) == len(read.state.holders_unknown_reason) == MAX_TEXT_LENGTH


@pytest.mark.parametrize(
    "message",
    [
        pb.NodeState(),
        pb.NodeState(node_name="n" * 254),
        pb.NodeState(node_name="n1", gpus=[pb.Gpu(uuid="GPU-a"), pb.Gpu(uuid="GPU-a", index=1)]),
        pb.NodeState(node_name="n1", gpus=[pb.Gpu(uuid="GPU-a"), pb.Gpu(uuid="GPU-b")]),
        pb.NodeState(node_name="n1", usage=[pb.GpuUsage(gpu_uuid="GPU-a")]),
        pb.NodeState(node_name="n1", gpus=[pb.Gpu(uuid="GPU-a")], usage=[pb.GpuUsage(gpu_uuid="GPU-a")] * 2),
        pb.NodeState(node_name="n1", topology=pb.Topology(gpu_count=3)),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(message: pb.NodeState) -> None:
    with pytest.raises(InvalidRequestError):
        node_state_from_proto(message)


def test_an_agent_that_does_not_say_which_pods_are_there_proves_no_pod_gone() -> None:
    state = node_state_from_proto(pb.NodeState(node_name="n1"))

    assert state.presence.unknown_reason


@pytest.mark.parametrize(
    "presence",
    [pb.PodPresence(pod_uids=["u"] * (MAX_PODS_PER_NODE + 1)), pb.PodPresence(pod_uids=["u", ""])],
)
def test_a_list_of_pods_that_can_not_be_is_refused(presence: pb.PodPresence) -> None:
    with pytest.raises(InvalidRequestError):
        node_state_from_proto(pb.NodeState(node_name="n1", presence=presence))


def test_readings_of_gpus_that_are_not_there_can_not_pile_up() -> None:
    state = NodeState("n1", "u1", NodeMode.NVIDIA, Delivery.DEVICE_PLUGIN)

    with pytest.raises(InvalidRequestError, match="one per GPU"):
        apply_node_delta(state, NodeStateDelta(usage=[pb.GpuUsage(gpu_uuid="GPU-x")]))


@pytest.mark.parametrize(
    "beyond",
    [
        discovery_pb2.NodeFacts(untrusted_reasons=["why"] * (MAX_UNTRUSTED_REASONS + 1)),
        discovery_pb2.NodeFacts(agent_address="x" * 301),
        discovery_pb2.NodeFacts(place=discovery_pb2.NodePlace(provider_id="x" * 1025)),
        discovery_pb2.NodeFacts(place=discovery_pb2.NodePlace(labels={"team": "x" * 64})),
        discovery_pb2.NodeFacts(place=discovery_pb2.NodePlace(labels={"x" * 318: ""})),
        discovery_pb2.NodeFacts(
            place=discovery_pb2.NodePlace(labels={str(number): "" for number in range(MAX_LABELS + 1)})
        ),
    ],
)
def test_more_than_any_node_has_is_refused(beyond: discovery_pb2.NodeFacts) -> None:
    message = discovery_pb2.NodeFacts(state=pb.NodeState(node_name="n1"))
    message.MergeFrom(beyond)

    with pytest.raises(InvalidRequestError, match="at most"):
        node_facts_from_proto(message)
