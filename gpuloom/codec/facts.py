"""What discovery knows of a node: proto <-> model."""

from collections.abc import Mapping
from dataclasses import replace

from gpuloom.codec.device import (
    allocated_from_proto,
    allocated_to_proto,
    bounded,
    pod_from_proto,
    pod_to_proto,
    required,
    shortened,
)
from gpuloom.codec.node import node_state_from_proto, node_state_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.model.snapshot import ClosedGpu, NodeFacts, NodePlace, PodAllocation, Taint
from gpuloom.model.topology import MAX_GPUS_PER_NODE
from gpuloom.v1 import discovery_pb2 as pb

MAX_UNTRUSTED_REASONS = 32
MAX_DETAILS = 256
MAX_TAINTS = 256
MAX_LABELS = 128
MAX_LABEL_NAME_LENGTH = 317
"""A DNS name, a slash and 63 characters, as Kubernetes allows."""
MAX_LABEL_VALUE_LENGTH = 63
MAX_ADDRESS_LENGTH = 300
MAX_PROVIDER_ID_LENGTH = 1024
MAX_ALLOCATIONS_PER_NODE = 4096
MAX_DEVICES_PER_POD = 1024


def node_facts_from_proto(message: pb.NodeFacts) -> NodeFacts:
    _bound(len(message.untrusted_reasons), MAX_UNTRUSTED_REASONS, "untrusted reasons")
    _bound(len(message.closed_gpus), MAX_GPUS_PER_NODE, "closed GPUs")
    _bound(len(message.allocations), MAX_ALLOCATIONS_PER_NODE, "allocations")
    _bound(len(message.details), MAX_DETAILS, "details")
    return NodeFacts(
        state=node_state_from_proto(message.state),
        untrusted_reasons=tuple(map(shortened, message.untrusted_reasons)),
        closed_gpus=tuple(
            ClosedGpu(required(gpu.gpu_uuid, "UUID of a closed GPU"), shortened(gpu.reason))
            for gpu in message.closed_gpus
        ),
        place=_place_from_proto(message.place),
        allocations=tuple(_allocation_from_proto(entry) for entry in message.allocations),
        details=tuple(map(shortened, message.details)),
        agent_address=_fitting(message.agent_address, MAX_ADDRESS_LENGTH, "address of its agent"),
    )


def node_facts_to_proto(facts: NodeFacts, *, with_usage: bool = True) -> pb.NodeFacts:
    state = facts.state if with_usage else replace(facts.state, usage=())
    return pb.NodeFacts(
        state=node_state_to_proto(state),
        untrusted_reasons=facts.untrusted_reasons,
        closed_gpus=[pb.ClosedGpu(gpu_uuid=gpu.gpu_uuid, reason=gpu.reason) for gpu in facts.closed_gpus],
        place=_place_to_proto(facts.place),
        allocations=[_allocation_to_proto(allocation) for allocation in facts.allocations],
        details=facts.details,
        agent_address=facts.agent_address,
    )


def _place_from_proto(message: pb.NodePlace) -> NodePlace:
    _bound(len(message.taints), MAX_TAINTS, "taints")
    return NodePlace(
        region=bounded(message.region, "region"),
        zone=bounded(message.zone, "zone"),
        rack=bounded(message.rack, "rack"),
        nvlink_domain=bounded(message.nvlink_domain, "NVLink domain"),
        capacity_type=bounded(message.capacity_type, "capacity type"),
        instance_type=bounded(message.instance_type, "instance type"),
        unschedulable=message.unschedulable,
        taints=tuple(
            Taint(shortened(taint.key), shortened(taint.value), shortened(taint.effect))
            for taint in message.taints
        ),
        cpu_milli=message.cpu_milli,
        memory_bytes=message.memory_bytes,
        provider_id=_fitting(message.provider_id, MAX_PROVIDER_ID_LENGTH, "provider id"),
        labels=_labels_from_proto(message.labels),
    )


def _labels_from_proto(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    _bound(len(labels), MAX_LABELS, "labels")
    return tuple(
        (
            _fitting(name, MAX_LABEL_NAME_LENGTH, "name of a label"),
            _fitting(labels[name], MAX_LABEL_VALUE_LENGTH, "value of a label"),
        )
        for name in sorted(labels)
    )


def _place_to_proto(place: NodePlace) -> pb.NodePlace:
    return pb.NodePlace(
        region=place.region,
        zone=place.zone,
        rack=place.rack,
        nvlink_domain=place.nvlink_domain,
        capacity_type=place.capacity_type,
        instance_type=place.instance_type,
        unschedulable=place.unschedulable,
        taints=[pb.Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in place.taints],
        cpu_milli=place.cpu_milli,
        memory_bytes=place.memory_bytes,
        provider_id=place.provider_id,
        labels=dict(place.labels),
    )


def _allocation_from_proto(message: pb.PodAllocation) -> PodAllocation:
    _bound(len(message.devices), MAX_DEVICES_PER_POD, "devices of one pod")
    return PodAllocation(
        pod=pod_from_proto(message.pod),
        container=bounded(message.container, "container name"),
        devices=tuple(allocated_from_proto(device) for device in message.devices),
        advisory=message.advisory,
    )


def _allocation_to_proto(allocation: PodAllocation) -> pb.PodAllocation:
    return pb.PodAllocation(
        pod=pod_to_proto(allocation.pod),
        container=allocation.container,
        devices=[allocated_to_proto(device) for device in allocation.devices],
        advisory=allocation.advisory,
    )


def _fitting(text: str, limit: int, what: str) -> str:
    if len(text) > limit:
        raise InvalidRequestError(f"the {what} has at most {limit} characters, not {len(text)}")
    return text


def _bound(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise InvalidRequestError(f"a node has at most {limit} {what}, not {count}")
