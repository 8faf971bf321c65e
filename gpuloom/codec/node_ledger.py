"""What the ledger says of a node: proto <-> model."""

from gpuloom.codec.device import (
    MAX_HELD_DEVICES_PER_NODE,
    MAX_PODS_PER_NODE,
    allocated_from_proto,
    allocated_to_proto,
    bounded,
    pod_from_proto,
    pod_to_proto,
    required,
    shortened,
)
from gpuloom.codec.hold import hold_from_proto, hold_to_proto
from gpuloom.codec.ledger import state_from_proto, state_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.model.ledger import Claim, HostAccount, NodeLedger
from gpuloom.model.node import NodeMode
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1 import types_pb2

_MODE = {types_pb2.NODE_MODE_NVIDIA: NodeMode.NVIDIA, types_pb2.NODE_MODE_GPULOOM: NodeMode.GPULOOM}
_MODE_TO_PROTO = {model: proto for proto, model in _MODE.items()}


def node_ledger_from_proto(message: pb.NodeLedger) -> NodeLedger:
    if max(len(message.claims), len(message.vanished), len(message.holds)) > MAX_PODS_PER_NODE:
        raise InvalidRequestError(f"a node has at most {MAX_PODS_PER_NODE} owners and holds")
    return NodeLedger(
        node_name=required(message.node_name, "node name"),
        node_uid=required(message.node_uid, "node UID"),
        claims=tuple(map(_claim_from_proto, message.claims)),
        vanished=tuple(map(pod_from_proto, message.vanished)),
        account=_account_from_proto(message.account) if message.HasField("account") else None,
        closed_reason=shortened(message.closed_reason),
        holds=tuple(map(hold_from_proto, message.holds)),
    )


def node_ledger_to_proto(ledger: NodeLedger) -> pb.NodeLedger:
    return pb.NodeLedger(
        node_name=ledger.node_name,
        node_uid=ledger.node_uid,
        claims=map(_claim_to_proto, ledger.claims),
        vanished=map(pod_to_proto, ledger.vanished),
        account=None if ledger.account is None else _account_to_proto(ledger.account),
        closed_reason=ledger.closed_reason,
        holds=map(hold_to_proto, ledger.holds),
    )


def _claim_from_proto(message: pb.DeviceClaim) -> Claim:
    if len(message.devices) + len(message.unlisted) > MAX_HELD_DEVICES_PER_NODE:
        raise InvalidRequestError(f"an owner has at most {MAX_HELD_DEVICES_PER_NODE} devices")
    if message.devices_unknown and message.devices:
        raise InvalidRequestError("devices of an owner are known, and are not")
    return Claim(
        pod=pod_from_proto(message.pod),
        state=state_from_proto(message.state),
        devices=None if message.devices_unknown else tuple(map(allocated_from_proto, message.devices)),
        wanted=message.wanted if message.HasField("wanted") else None,
        advisory=message.advisory,
        confirmed=message.confirmed,
        problem=shortened(message.problem),
        mode=_MODE.get(message.mode, NodeMode.UNKNOWN),
        unlisted=tuple(bounded(kind, "MIG profile") for kind in message.unlisted),
        unreserved=message.unreserved,
    )


def _claim_to_proto(claim: Claim) -> pb.DeviceClaim:
    return pb.DeviceClaim(
        pod=pod_to_proto(claim.pod),
        state=state_to_proto(claim.state),
        devices=map(allocated_to_proto, claim.devices or ()),
        devices_unknown=claim.devices is None,
        wanted=claim.wanted,
        advisory=claim.advisory,
        confirmed=claim.confirmed,
        problem=claim.problem,
        mode=_MODE_TO_PROTO.get(claim.mode, types_pb2.NODE_MODE_UNSPECIFIED),
        unlisted=claim.unlisted,
        unreserved=claim.unreserved,
    )


def _account_from_proto(message: pb.HostAccount) -> HostAccount:
    return HostAccount(
        message.cpu_total_milli,
        message.cpu_used_milli,
        message.memory_total_bytes,
        message.memory_used_bytes,
        message.pods_total,
        message.pods_used,
    )


def _account_to_proto(account: HostAccount) -> pb.HostAccount:
    return pb.HostAccount(
        cpu_total_milli=account.cpu_total_milli,
        cpu_used_milli=account.cpu_used_milli,
        memory_total_bytes=account.memory_total_bytes,
        memory_used_bytes=account.memory_used_bytes,
        pods_total=account.pods_total,
        pods_used=account.pods_used,
    )
