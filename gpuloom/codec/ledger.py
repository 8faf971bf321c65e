"""Ledger entries and decisions: proto <-> model."""

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
        time=_time(message.time),
        pod=pod_from_proto(message.pod),
        verdict=verdict,
        node_name=bounded(message.node_name, "node name"),
        devices=tuple(allocated_from_proto(device) for device in message.devices),
        reason=shortened(message.reason),
        scores=tuple(map(_score_from_proto, message.scores)),
    )


def decision_to_proto(decision: Decision) -> pb.Decision:
    return pb.Decision(
        time=_timestamp(decision.time),
        pod=pod_to_proto(decision.pod),
        verdict=_VERDICT_TO_PROTO[decision.verdict],
        node_name=decision.node_name,
        devices=[allocated_to_proto(device) for device in decision.devices],
        reason=decision.reason,
        scores=map(_score_to_proto, decision.scores),
    )


def entry_from_proto(message: pb.LedgerEntry) -> LedgerEntry:
    state = _STATE.get(message.state)
    if state is None:
        raise InvalidRequestError("a ledger entry without a state")
    return LedgerEntry(
        pod=pod_from_proto(message.pod),
        node_name=bounded(message.node_name, "node name"),
        node_uid=bounded(message.node_uid, "node UID"),
        state=state,
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


def _score_from_proto(message: pb.NodeScore) -> NodeScore:
    return NodeScore(
        bounded(message.node_name, "node name"),
        message.total,
        message.topology,
        message.resource,
        message.balance,
    )


def _score_to_proto(score: NodeScore) -> pb.NodeScore:
    return pb.NodeScore(
        node_name=score.node_name,
        total=score.total,
        topology=score.topology,
        resource=score.resource,
        balance=score.balance,
    )


def _time(stamp: Timestamp) -> datetime:
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except ValueError:
        raise InvalidRequestError("a time that no calendar has") from None


def _timestamp(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment.astimezone(UTC).replace(tzinfo=None))
    return stamp
