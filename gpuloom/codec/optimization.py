"""The optimizer's answers: proto <-> model."""

import math
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from gpuloom.codec.device import bounded, pod_from_proto, pod_to_proto, shortened
from gpuloom.errors import InvalidRequestError
from gpuloom.model.optimization import (
    AppliedRecommendation,
    Classification,
    ClassSource,
    NodeHints,
    PodAdvice,
    PodWaste,
    Prediction,
    ProfileSummary,
    Quantity,
    Recommendation,
    WasteParts,
    WasteReport,
    WorkloadClass,
)
from gpuloom.v1 import optimizer_pb2 as pb

MAX_HINTED_NODES = 20_000

_CLASS = {
    pb.WORKLOAD_CLASS_TRAINING: WorkloadClass.TRAINING,
    pb.WORKLOAD_CLASS_INFERENCE: WorkloadClass.INFERENCE,
    pb.WORKLOAD_CLASS_INTERACTIVE: WorkloadClass.INTERACTIVE,
    pb.WORKLOAD_CLASS_BATCH: WorkloadClass.BATCH,
    pb.WORKLOAD_CLASS_IDLE: WorkloadClass.IDLE,
}
_CLASS_TO_PROTO = {model: proto for proto, model in _CLASS.items()}
_SOURCE = {
    pb.CLASS_SOURCE_LABEL: ClassSource.LABEL,
    pb.CLASS_SOURCE_MODEL: ClassSource.MODEL,
    pb.CLASS_SOURCE_RULES: ClassSource.RULES,
}
_SOURCE_TO_PROTO = {model: proto for proto, model in _SOURCE.items()}


def classification_to_proto(found: Classification) -> pb.Classification:
    return pb.Classification(
        workload_class=_class_to_proto(found.workload_class),
        confidence=found.confidence,
        source=_SOURCE_TO_PROTO.get(found.source, pb.CLASS_SOURCE_UNSPECIFIED),
        probabilities=[
            pb.ClassProbability(workload_class=_class_to_proto(each), probability=probability)
            for each, probability in found.probabilities
        ],
        reason=found.reason,
    )


def classification_from_proto(message: pb.Classification) -> Classification:
    return Classification(
        workload_class=_class(message.workload_class),
        confidence=_ratio(message.confidence),
        source=_SOURCE.get(message.source, ClassSource.NONE),
        reason=shortened(message.reason),
        probabilities=tuple(
            (_class(each.workload_class), _ratio(each.probability)) for each in message.probabilities
        ),
    )


def prediction_to_proto(found: Prediction) -> pb.Prediction:
    return pb.Prediction(
        memory_mib=_quantity_to_proto(found.memory_mib),
        utilization=_quantity_to_proto(found.utilization),
        duration_s=_quantity_to_proto(found.duration_s),
        runs=found.runs,
        basis=found.basis,
        smallest_fit=found.smallest_fit,
        reason=found.reason,
    )


def prediction_from_proto(message: pb.Prediction) -> Prediction:
    return Prediction(
        memory_mib=_quantity(message.memory_mib) if message.HasField("memory_mib") else None,
        utilization=_quantity(message.utilization) if message.HasField("utilization") else None,
        duration_s=_quantity(message.duration_s) if message.HasField("duration_s") else None,
        runs=message.runs,
        basis=bounded(message.basis, "basis"),
        smallest_fit=bounded(message.smallest_fit, "request"),
        reason=shortened(message.reason),
    )


def hints_to_proto(found: NodeHints) -> pb.HintResponse:
    return pb.HintResponse(
        nodes=[pb.NodeHint(node_name=name, points=points) for name, points in found.points],
        confidence=found.confidence,
        reason=found.reason,
    )


def hints_from_proto(message: pb.HintResponse) -> NodeHints:
    if len(message.nodes) > MAX_HINTED_NODES:
        raise InvalidRequestError("a hint for more nodes than a cluster has")
    for node in message.nodes:
        if not (math.isfinite(node.points) and -1.0 <= node.points <= 1.0):
            raise InvalidRequestError("a hint that is not from -1 to 1")
    return NodeHints(
        points=tuple((bounded(node.node_name, "node name"), node.points) for node in message.nodes),
        confidence=_ratio(message.confidence),
        reason=shortened(message.reason),
    )


def report_to_proto(report: WasteReport) -> pb.WasteResponse:
    return pb.WasteResponse(
        pods=[waste_to_proto(pod) for pod in report.pods],
        observed_pods=report.observed_pods,
        problem=report.problem,
    )


def report_from_proto(message: pb.WasteResponse) -> WasteReport:
    pods = tuple(waste_from_proto(pod) for pod in message.pods)
    return WasteReport(pods, message.observed_pods, shortened(message.problem))


def waste_to_proto(waste: PodWaste) -> pb.PodWaste:
    return pb.PodWaste(
        pod=pod_to_proto(waste.pod),
        owner=waste.owner,
        score=waste.score,
        idle=waste.parts.idle,
        oversized=waste.parts.oversized,
        wrong_kind=waste.parts.wrong_kind,
        sharable=waste.parts.sharable,
        utilization=waste.utilization_ratio,
        now=waste.now,
        recommended=waste.recommended,
        saving_nano_usd=waste.saving_nano_usd,
        confidence=waste.confidence,
        reason=waste.reason,
        since=None if waste.since is None else _timestamp(waste.since),
        workload_class=_class_to_proto(waste.workload_class),
    )


def waste_from_proto(message: pb.PodWaste) -> PodWaste:
    parts = (message.idle, message.oversized, message.wrong_kind, message.sharable)
    if not all(math.isfinite(part) and part >= 0 for part in parts):
        raise InvalidRequestError("a waste score that is no number")
    return PodWaste(
        pod=pod_from_proto(message.pod),
        owner=bounded(message.owner, "owner"),
        parts=WasteParts(*parts),
        now=bounded(message.now, "request"),
        workload_class=_class(message.workload_class),
        utilization_ratio=_ratio(message.utilization) if message.HasField("utilization") else None,
        recommended=bounded(message.recommended, "request"),
        saving_nano_usd=message.saving_nano_usd if message.HasField("saving_nano_usd") else None,
        confidence=_ratio(message.confidence),
        reason=shortened(message.reason),
        since=_moment(message.since) if message.HasField("since") else None,
    )


def recommendation_to_proto(found: Recommendation) -> pb.RecommendResponse:
    return pb.RecommendResponse(
        waste=waste_to_proto(found.waste),
        target=found.target,
        is_patch=found.is_patch,
        yaml=found.yaml,
        hours_per_month=found.hours_per_month,
        applied=[
            pb.AppliedRecommendation(
                applied_at=_timestamp(each.applied_at),
                before=each.before,
                after=each.after,
                expected_nano_usd=each.expected_nano_usd,
                actual_nano_usd=each.actual_nano_usd,
            )
            for each in found.applied
        ],
    )


def recommendation_from_proto(message: pb.RecommendResponse) -> Recommendation:
    return Recommendation(
        waste=waste_from_proto(message.waste),
        target=bounded(message.target, "target"),
        is_patch=message.is_patch,
        yaml=message.yaml,
        hours_per_month=message.hours_per_month,
        applied=tuple(
            AppliedRecommendation(
                applied_at=_moment(each.applied_at),
                before=bounded(each.before, "request"),
                after=bounded(each.after, "request"),
                expected_nano_usd=each.expected_nano_usd if each.HasField("expected_nano_usd") else None,
                actual_nano_usd=each.actual_nano_usd if each.HasField("actual_nano_usd") else None,
            )
            for each in message.applied
        ),
    )


def advice_to_proto(advice: PodAdvice) -> pb.AdviseResponse:
    return pb.AdviseResponse(
        utilization=advice.utilization_ratio,
        mig_profile=advice.mig_profile,
        plugin_resource=advice.plugin_resource,
        milli=advice.milli,
        memory_mib=advice.memory_mib,
        confidence=advice.confidence,
        runs=advice.runs,
        basis=advice.basis,
        reason=advice.reason,
    )


def advice_from_proto(message: pb.AdviseResponse) -> PodAdvice:
    return PodAdvice(
        utilization_ratio=_ratio(message.utilization) if message.HasField("utilization") else None,
        mig_profile=bounded(message.mig_profile, "MIG profile"),
        plugin_resource=bounded(message.plugin_resource, "resource"),
        milli=message.milli,
        memory_mib=message.memory_mib,
        confidence=_ratio(message.confidence),
        runs=message.runs,
        basis=bounded(message.basis, "basis"),
        reason=shortened(message.reason),
    )


def profile_to_proto(profile: ProfileSummary) -> pb.WorkloadProfile:
    return pb.WorkloadProfile(
        signature=profile.signature,
        namespace=profile.namespace,
        owner_kind=profile.owner_kind,
        name_stem=profile.name_stem,
        image=profile.image,
        request=profile.request,
        runs=profile.runs,
        running=profile.running,
        utilization_median=profile.utilization_median,
        memory_mib_high=profile.memory_mib_high,
        duration_s_median=profile.duration_s_median,
        power_w_median=profile.power_w_median,
        workload_class=_class_to_proto(profile.workload_class),
    )


def profile_from_proto(message: pb.WorkloadProfile) -> ProfileSummary:
    def known(name: str) -> float | None:
        return float(getattr(message, name)) if message.HasField(name) else None  # type: ignore[arg-type]

    return ProfileSummary(
        signature=bounded(message.signature, "signature"),
        namespace=bounded(message.namespace, "namespace"),
        owner_kind=bounded(message.owner_kind, "kind"),
        name_stem=bounded(message.name_stem, "name"),
        image=shortened(message.image),
        request=bounded(message.request, "request"),
        runs=message.runs,
        running=message.running,
        utilization_median=known("utilization_median"),
        memory_mib_high=known("memory_mib_high"),
        duration_s_median=known("duration_s_median"),
        power_w_median=known("power_w_median"),
        workload_class=_class(message.workload_class),
    )


def _class(number: int) -> WorkloadClass:
    return _CLASS.get(pb.WorkloadClass.ValueType(number), WorkloadClass.UNKNOWN)


def _class_to_proto(found: WorkloadClass) -> pb.WorkloadClass.ValueType:
    return _CLASS_TO_PROTO.get(found, pb.WORKLOAD_CLASS_UNSPECIFIED)


def _quantity_to_proto(found: Quantity | None) -> pb.PredictedQuantity | None:
    return None if found is None else pb.PredictedQuantity(median=found.median, high=found.high)


def _quantity(message: pb.PredictedQuantity) -> Quantity:
    if not (math.isfinite(message.median) and math.isfinite(message.high)):
        raise InvalidRequestError("a prediction that is no number")
    return Quantity(message.median, message.high)


def _ratio(value: float) -> float:
    if not (math.isfinite(value) and 0.0 <= value <= 1.0):
        raise InvalidRequestError("a ratio that is not from 0 to 1")
    return value


def _timestamp(moment: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def _moment(message: Timestamp) -> datetime:
    try:
        return message.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequestError("a time that is none") from None
