"""A node's state, its changes and what discovery thinks of it: proto <-> model."""

from dataclasses import dataclass, replace
from typing import TypeVar

from gpuloom.codec.device import (
    bounded,
    gpu_from_proto,
    gpu_to_proto,
    holder_to_proto,
    holders_from_proto,
    presence_from_proto,
    presence_to_proto,
    required,
    shortened,
    topology_from_proto,
    topology_to_proto,
    usage_from_proto,
    usage_to_proto,
)
from gpuloom.codec.spot import spot_from_proto, spot_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.model.gpu import Gpu, GpuUsage
from gpuloom.model.node import UNTOLD_PRESENCE, Delivery, NodeMode, NodeState
from gpuloom.model.topology import MAX_GPUS_PER_NODE
from gpuloom.v1 import node_agent_pb2
from gpuloom.v1 import types_pb2 as pb

T = TypeVar("T")

_MODE = {pb.NODE_MODE_NVIDIA: NodeMode.NVIDIA, pb.NODE_MODE_GPULOOM: NodeMode.GPULOOM}
_MODE_TO_PROTO = {model: proto for proto, model in _MODE.items()}

_DELIVERY = {
    pb.DELIVERY_NONE: Delivery.NONE,
    pb.DELIVERY_DEVICE_PLUGIN: Delivery.DEVICE_PLUGIN,
    pb.DELIVERY_NRI: Delivery.NRI,
    pb.DELIVERY_ENV: Delivery.ENV,
}
_DELIVERY_TO_PROTO = {model: proto for proto, model in _DELIVERY.items()}


def node_state_from_proto(message: pb.NodeState) -> NodeState:
    return _checked(
        NodeState(
            node_name=required(message.node_name, "node name"),
            node_uid=bounded(message.node_uid, "node UID"),
            mode=_MODE.get(message.mode, NodeMode.UNKNOWN),
            delivery=_DELIVERY.get(message.delivery, Delivery.UNKNOWN),
            gpus=tuple(gpu_from_proto(gpu) for gpu in message.gpus),
            topology=topology_from_proto(message.topology) if message.HasField("topology") else None,
            holders=holders_from_proto(message.holders),
            holders_unknown_reason=shortened(message.holders_unknown_reason),
            usage=tuple(usage_from_proto(usage) for usage in message.usage),
            spot=spot_from_proto(message.spot) if message.HasField("spot") else None,
            driver_problem=shortened(message.driver_problem),
            presence=presence_from_proto(message.presence)
            if message.HasField("presence")
            else UNTOLD_PRESENCE,
        )
    )


def node_state_to_proto(state: NodeState) -> pb.NodeState:
    return pb.NodeState(
        node_name=state.node_name,
        node_uid=state.node_uid,
        mode=_mode_to_proto(state.mode),
        delivery=_delivery_to_proto(state.delivery),
        gpus=[gpu_to_proto(gpu) for gpu in state.gpus],
        topology=None if state.topology is None else topology_to_proto(state.topology),
        holders=[holder_to_proto(holder) for holder in state.holders],
        holders_unknown_reason=state.holders_unknown_reason,
        usage=[usage_to_proto(usage) for usage in state.usage],
        spot=None if state.spot is None else spot_to_proto(state.spot),
        driver_problem=state.driver_problem,
        presence=presence_to_proto(state.presence),
    )


def node_delta_to_proto(old: NodeState, new: NodeState) -> node_agent_pb2.NodeStateDelta | None:
    """What a reader of `old` needs to have `new`; None if nothing changed.

    A delta can't take a reading away: a GPU that has one keeps one, all unknown if need be.
    """
    delta = node_agent_pb2.NodeStateDelta()
    delta.gpus.extend(gpu_to_proto(gpu) for gpu in _changed(_gpus(old), _gpus(new)))
    delta.usage.extend(usage_to_proto(usage) for usage in _changed(_usage(old), _usage(new)))
    delta.removed_gpu_uuids.extend(sorted(_gpus(old).keys() - _gpus(new).keys()))
    if (old.holders, old.holders_unknown_reason) != (new.holders, new.holders_unknown_reason):
        delta.holders.holders.extend(holder_to_proto(holder) for holder in new.holders)
        delta.holders.unknown_reason = new.holders_unknown_reason
        delta.holders.SetInParent()
    if old.presence != new.presence:
        delta.presence.CopyFrom(presence_to_proto(new.presence))
        delta.presence.SetInParent()
    if _identity(old) != _identity(new):
        delta.identity.CopyFrom(
            node_agent_pb2.NodeIdentity(
                node_uid=new.node_uid,
                mode=_mode_to_proto(new.mode),
                delivery=_delivery_to_proto(new.delivery),
                topology=None if new.topology is None else topology_to_proto(new.topology),
                spot=None if new.spot is None else spot_to_proto(new.spot),
                driver_problem=new.driver_problem,
            )
        )
    return delta if delta.ListFields() else None


def apply_node_delta(state: NodeState, delta: node_agent_pb2.NodeStateDelta) -> NodeState:
    gpus = _gpus(state) | {gpu.uuid: gpu for gpu in map(gpu_from_proto, delta.gpus)}
    usage = _usage(state) | {reading.gpu_uuid: reading for reading in map(usage_from_proto, delta.usage)}
    for uuid in delta.removed_gpu_uuids:
        gpus.pop(uuid, None)
        usage.pop(uuid, None)
    state = replace(
        state,
        gpus=tuple(sorted(gpus.values(), key=_by_index)),
        usage=tuple(usage[uuid] for uuid in sorted(usage)),
    )
    if delta.HasField("holders"):
        state = replace(
            state,
            holders=holders_from_proto(delta.holders.holders),
            holders_unknown_reason=shortened(delta.holders.unknown_reason),
        )
    if delta.HasField("presence"):
        state = replace(state, presence=presence_from_proto(delta.presence))
    if delta.HasField("identity"):
        identity = delta.identity
        state = replace(
            state,
            node_uid=bounded(identity.node_uid, "node UID"),
            mode=_MODE.get(identity.mode, NodeMode.UNKNOWN),
            delivery=_DELIVERY.get(identity.delivery, Delivery.UNKNOWN),
            topology=topology_from_proto(identity.topology) if identity.HasField("topology") else None,
            spot=spot_from_proto(identity.spot) if identity.HasField("spot") else None,
            driver_problem=shortened(identity.driver_problem),
        )
    return _checked(state)


@dataclass(frozen=True, slots=True)
class _Identity:
    """The part of a state that changes only when the node itself does."""

    node_uid: str
    mode: NodeMode
    delivery: Delivery
    topology: object
    spot: object
    driver_problem: str


def _identity(state: NodeState) -> _Identity:
    return _Identity(
        state.node_uid, state.mode, state.delivery, state.topology, state.spot, state.driver_problem
    )


def _checked(state: NodeState) -> NodeState:
    if len(state.gpus) > MAX_GPUS_PER_NODE:
        raise InvalidRequestError(f"a node has at most {MAX_GPUS_PER_NODE} GPUs")
    if len({gpu.uuid for gpu in state.gpus}) != len(state.gpus):
        raise InvalidRequestError(f"node {state.node_name} names a GPU UUID twice")
    if len({gpu.index for gpu in state.gpus}) != len(state.gpus):
        raise InvalidRequestError(f"node {state.node_name} names a GPU index twice")
    if len(_usage(state)) != len(state.usage) or not _usage(state).keys() <= _gpus(state).keys():
        raise InvalidRequestError(f"node {state.node_name} has readings that are not one per GPU")
    return state


def _gpus(state: NodeState) -> dict[str, Gpu]:
    return {gpu.uuid: gpu for gpu in state.gpus}


def _usage(state: NodeState) -> dict[str, GpuUsage]:
    return {usage.gpu_uuid: usage for usage in state.usage}


def _changed(old: dict[str, T], new: dict[str, T]) -> list[T]:
    return [value for key, value in new.items() if old.get(key) != value]


def _by_index(gpu: Gpu) -> int:
    return gpu.index


def _mode_to_proto(mode: NodeMode) -> pb.NodeMode.ValueType:
    return _MODE_TO_PROTO.get(mode, pb.NODE_MODE_UNSPECIFIED)


def _delivery_to_proto(delivery: Delivery) -> pb.Delivery.ValueType:
    return _DELIVERY_TO_PROTO.get(delivery, pb.DELIVERY_UNSPECIFIED)
