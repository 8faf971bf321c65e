"""Ledger entries and decisions: proto <-> model."""

import math
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from gpuloom.codec.device import (
    allocated_from_proto,
    allocated_to_proto,
    bounded,
    pod_from_proto,
    pod_to_proto,
    shortened,
)
from gpuloom.errors import InvalidRequestError
from gpuloom.model.ledger import Decision, EntryState, LedgerEntry, NodeScore, Verdict
from gpuloom.v1 import scheduler_extender_pb2 as pb

_VERDICT = {
    pb.VERDICT_BOUND: Verdict.BOUND,
    pb.VERDICT_REFUSED: Verdict.REFUSED,
    pb.VERDICT_BIND_FAILED: Verdict.BIND_FAILED,
}
_VERDICT_TO_PROTO = {model: proto for proto, model in _VERDICT.items()}

_STATE = {
    pb.ENTRY_STATE_IN_FLIGHT: EntryState.IN_FLIGHT,
    pb.ENTRY_STATE_OBSERVED: EntryState.OBSERVED,
    pb.ENTRY_STATE_RELEASING: EntryState.RELEASING,
    pb.ENTRY_STATE_HELD: EntryState.HELD,
}
_STATE_TO_PROTO = {model: proto for proto, model in _STATE.items()}


def decision_from_proto(message: pb.Decision) -> Decision:
    verdict = _VERDICT.get(message.verdict)
    if verdict is None:
        raise InvalidRequestError("a decision without a verdict")
    return Decision(
        time=time_from_proto(message.time),
        pod=pod_from_proto(message.pod),
        verdict=verdict,
        node_name=bounded(message.node_name, "node name"),
        devices=tuple(allocated_from_proto(device) for device in message.devices),
        reason=shortened(message.reason),
        scores=tuple(map(_score_from_proto, message.scores)),
    )


def decision_to_proto(decision: Decision) -> pb.Decision:
    return pb.Decision(
        time=time_to_proto(decision.time),
        pod=pod_to_proto(decision.pod),
        verdict=_VERDICT_TO_PROTO[decision.verdict],
        node_name=decision.node_name,
        devices=[allocated_to_proto(device) for device in decision.devices],
        reason=decision.reason,
        scores=map(_score_to_proto, decision.scores),
    )


def entry_from_proto(message: pb.LedgerEntry) -> LedgerEntry:
    return LedgerEntry(
        pod=pod_from_proto(message.pod),
        node_name=bounded(message.node_name, "node name"),
        node_uid=bounded(message.node_uid, "node UID"),
        state=state_from_proto(message.state),
        devices=tuple(allocated_from_proto(device) for device in message.devices) or None,
        advisory=message.advisory,
    )


def entry_to_proto(entry: LedgerEntry) -> pb.LedgerEntry:
    return pb.LedgerEntry(
        pod=pod_to_proto(entry.pod),
        node_name=entry.node_name,
        node_uid=entry.node_uid,
        state=_STATE_TO_PROTO[entry.state],
        devices=[allocated_to_proto(device) for device in entry.devices or ()],
        advisory=entry.advisory,
    )


def state_from_proto(value: pb.EntryState.ValueType) -> EntryState:
    state = _STATE.get(value)
    if state is None:
        raise InvalidRequestError("a ledger entry without a state")
    return state


def state_to_proto(state: EntryState) -> pb.EntryState.ValueType:
    return _STATE_TO_PROTO[state]


def _score_from_proto(message: pb.NodeScore) -> NodeScore:
    parts = (message.total, message.topology, message.resource, message.balance, message.hint)
    if not all(map(math.isfinite, parts)):
        raise InvalidRequestError("a score that is no number")
    return NodeScore(
        bounded(message.node_name, "node name"),
        message.total,
        message.topology,
        message.resource,
        message.balance,
        message.hint,
    )


def _score_to_proto(score: NodeScore) -> pb.NodeScore:
    return pb.NodeScore(
        node_name=score.node_name,
        total=score.total,
        topology=score.topology,
        resource=score.resource,
        balance=score.balance,
        hint=score.hint,
    )


def time_from_proto(stamp: Timestamp) -> datetime:
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except ValueError:
        raise InvalidRequestError("a time that no calendar has") from None


def time_to_proto(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment.astimezone(UTC).replace(tzinfo=None))
    return stamp
