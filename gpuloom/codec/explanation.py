"""Explanations and forecasts: proto <-> model."""

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
from gpuloom.codec.ledger import decision_from_proto, decision_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.model.explanation import (
    Change,
    Explanation,
    Forecast,
    Judgement,
    NearMiss,
    Offer,
    PodStanding,
    QuarantineNotice,
    ReasonCount,
)
from gpuloom.v1 import scheduler_extender_pb2 as pb

_STANDING = {
    pb.POD_STANDING_UNMANAGED: PodStanding.UNMANAGED,
    pb.POD_STANDING_BOUND: PodStanding.BOUND,
    pb.POD_STANDING_ENDED: PodStanding.ENDED,
    pb.POD_STANDING_FITS: PodStanding.FITS,
    pb.POD_STANDING_REFUSED: PodStanding.REFUSED,
    pb.POD_STANDING_OTHER_SCHEDULER: PodStanding.OTHER_SCHEDULER,
}
_STANDING_TO_PROTO = {model: proto for proto, model in _STANDING.items()}


def explanation_to_proto(explanation: Explanation) -> pb.ExplainResponse:
    judgement, quarantine = explanation.judgement, explanation.quarantine
    return pb.ExplainResponse(
        pod=pod_to_proto(explanation.pod),
        standing=_STANDING_TO_PROTO[explanation.standing],
        problem=explanation.problem,
        request=explanation.request,
        node_name=explanation.node_name,
        devices=map(allocated_to_proto, explanation.devices),
        judgement=None if judgement is None else _judgement_to_proto(judgement),
        quarantine=None if quarantine is None else _quarantine_to_proto(quarantine),
        decisions=map(decision_to_proto, explanation.decisions),
        note=explanation.note,
        warnings=explanation.warnings,
        keeping=explanation.keeping,
    )


def explanation_from_proto(message: pb.ExplainResponse) -> Explanation:
    standing = _STANDING.get(message.standing)
    if standing is None:
        raise InvalidRequestError("an explanation that does not say how things stand")
    return Explanation(
        pod=pod_from_proto(message.pod),
        standing=standing,
        request=shortened(message.request),
        problem=shortened(message.problem),
        node_name=bounded(message.node_name, "node name"),
        devices=tuple(map(allocated_from_proto, message.devices)),
        judgement=_judgement_from_proto(message.judgement) if message.HasField("judgement") else None,
        quarantine=_quarantine_from_proto(message.quarantine) if message.HasField("quarantine") else None,
        decisions=tuple(map(decision_from_proto, message.decisions)),
        note=shortened(message.note),
        warnings=tuple(map(shortened, message.warnings)),
        keeping=shortened(message.keeping),
    )


def forecast_to_proto(forecast: Forecast) -> pb.WhatIfResponse:
    judgement = forecast.judgement
    return pb.WhatIfResponse(
        replicas=forecast.replicas,
        request=forecast.request,
        problem=forecast.problem,
        placed=map(_offer_to_proto, forecast.placed),
        judgement=None if judgement is None else _judgement_to_proto(judgement),
        note=forecast.note,
    )


def forecast_from_proto(message: pb.WhatIfResponse) -> Forecast:
    return Forecast(
        replicas=message.replicas,
        request=shortened(message.request),
        problem=shortened(message.problem),
        placed=tuple(map(_offer_from_proto, message.placed)),
        judgement=_judgement_from_proto(message.judgement) if message.HasField("judgement") else None,
        note=shortened(message.note),
    )


def _judgement_to_proto(judgement: Judgement) -> pb.Judgement:
    return pb.Judgement(
        node_count=judgement.node_count,
        fitting_count=judgement.fitting_count,
        offers=map(_offer_to_proto, judgement.offers),
        reasons=(
            pb.ReasonCount(reason=item.reason, node_count=item.node_count, resolvable=item.resolvable)
            for item in judgement.reasons
        ),
        near_misses=(pb.NearMiss(node_name=item.node_name, has=item.has) for item in judgement.near_misses),
        changes=(
            pb.Change(change=item.change, node_count=item.node_count, node_name=item.node_name)
            for item in judgement.changes
        ),
    )


def _judgement_from_proto(message: pb.Judgement) -> Judgement:
    return Judgement(
        node_count=message.node_count,
        fitting_count=message.fitting_count,
        offers=tuple(map(_offer_from_proto, message.offers)),
        reasons=tuple(
            ReasonCount(shortened(item.reason), item.node_count, item.resolvable) for item in message.reasons
        ),
        near_misses=tuple(
            NearMiss(bounded(item.node_name, "node name"), shortened(item.has))
            for item in message.near_misses
        ),
        changes=tuple(
            Change(shortened(item.change), item.node_count, bounded(item.node_name, "node name"))
            for item in message.changes
        ),
    )


def _offer_to_proto(offer: Offer) -> pb.Offer:
    return pb.Offer(
        node_name=offer.node_name,
        devices=map(allocated_to_proto, offer.devices),
        total=offer.total,
        topology=offer.topology,
        resource=offer.resource,
        balance=offer.balance,
    )


def _offer_from_proto(message: pb.Offer) -> Offer:
    return Offer(
        bounded(message.node_name, "node name"),
        tuple(map(allocated_from_proto, message.devices)),
        message.total,
        message.topology,
        message.resource,
        message.balance,
    )


def _quarantine_to_proto(notice: QuarantineNotice) -> pb.Quarantine:
    until = Timestamp()
    until.FromDatetime(notice.until.astimezone(UTC).replace(tzinfo=None))
    return pb.Quarantine(until=until, failures=notice.failures, whole_controller=notice.whole_controller)


def _quarantine_from_proto(message: pb.Quarantine) -> QuarantineNotice:
    return QuarantineNotice(_time(message.until), message.failures, message.whole_controller)


def _time(stamp: Timestamp) -> datetime:
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except ValueError:
        raise InvalidRequestError("a time that no calendar has") from None
