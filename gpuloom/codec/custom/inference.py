"""AIInferenceAutoscalerPolicy."""

import re
from collections.abc import Callable

from gpuloom.codec.custom.objects import conditions, conditions_to_json, opened
from gpuloom.codec.custom.reading import (
    MAX_LABEL,
    MAX_NAME,
    MAX_QUERY,
    Fields,
    Json,
    each,
    flag,
    moment,
    name,
    number,
    one_of,
    part,
    text,
    time_text,
    whole,
)
from gpuloom.errors import InvalidRequestError
from gpuloom.model.policies import (
    AdaptiveSettings,
    CustomMetric,
    InferenceMetrics,
    InferenceMode,
    InferencePolicy,
    InferencePolicySpec,
    InferencePolicyStatus,
    InferenceServer,
    LatencyMetric,
    MetricReading,
    ScaleTarget,
    ScalingBehavior,
    ScalingLimit,
    ScalingUnit,
    TargetMetric,
)

_KIND = re.compile(r"[A-Z][A-Za-z0-9]*")
_LATENCY_MS = whole(1, 3_600_000)


def inference_policy(obj: object) -> InferencePolicy:
    meta, spec, status = opened(obj)
    return InferencePolicy(meta, _spec(spec), _status(status))


def inference_policy_status_to_json(status: InferencePolicyStatus) -> Json:
    return {
        "currentReplicas": status.current_replicas,
        "desiredReplicas": status.desired_replicas,
        "lastScaleTime": time_text(status.last_scale),
        "currentMetrics": [
            {"name": one.name, "target": one.target, "value": one.value, "ratio": one.ratio}
            for one in status.current_metrics
        ],
        "conditions": conditions_to_json(status.conditions),
    }


def _spec(fields: Fields) -> InferencePolicySpec:
    return InferencePolicySpec(
        target=fields.need("targetRef", part(_target)),
        max_replicas=fields.need("maxReplicas", whole(1, 10_000)),
        metrics=fields.need("metrics", part(_metrics)),
        min_replicas=fields.get_or("minReplicas", whole(0, 10_000), 1),
        cooldown_s=fields.get_or("cooldownPeriod", whole(0, 86_400), 300),
        mode=fields.get_or("mode", one_of(InferenceMode), InferenceMode.RATIO),
        scale_up=fields.get_or("scaleUp", part(_behavior), ScalingBehavior()),
        scale_down=fields.get_or("scaleDown", part(_behavior), ScalingBehavior()),
        adaptive=fields.get_or("adaptive", part(_adaptive), AdaptiveSettings()),
    )


def _target(fields: Fields) -> ScaleTarget:
    return ScaleTarget(
        kind=fields.need("kind", text(63, shortest=1, pattern=_KIND)),
        name=fields.need("name", name()),
        api_version=fields.get_or("apiVersion", name(MAX_NAME), "apps/v1"),
    )


def _metrics(fields: Fields) -> InferenceMetrics:
    percentage = part(_target_metric("targetPercentage", 100))
    return InferenceMetrics(
        server=fields.get_or("server", one_of(InferenceServer), InferenceServer.AUTO),
        latency=fields.get("latency", part(_latency)),
        gpu_utilization=fields.get("gpuUtilization", percentage),
        gpu_memory=fields.get("gpuMemory", percentage),
        queue_depth=fields.get("requestQueueDepth", part(_target_metric("targetDepth", 1_000_000))),
        custom=fields.get_or("custom", each(part(_custom), 16), ()),
    )


def _latency(fields: Fields) -> LatencyMetric:
    return LatencyMetric(
        enabled=fields.get_or("enabled", flag, default=True),
        p99_ms=fields.get("targetP99Ms", _LATENCY_MS),
        p95_ms=fields.get("targetP95Ms", _LATENCY_MS),
        query=fields.get("prometheusQuery", name(MAX_QUERY)),
    )


def _target_metric(key: str, most: int) -> Callable[[Fields], TargetMetric]:
    def read(fields: Fields) -> TargetMetric:
        return TargetMetric(
            enabled=fields.get_or("enabled", flag, default=True),
            target=fields.get(key, whole(1, most)),
            query=fields.get("prometheusQuery", name(MAX_QUERY)),
        )

    return read


def _custom(fields: Fields) -> CustomMetric:
    target = fields.need("target", number())
    if target <= 0.0:
        raise InvalidRequestError(f"{fields.where}.target must be above 0")
    return CustomMetric(
        name=fields.need("name", name(MAX_LABEL)),
        query=fields.need("prometheusQuery", name(MAX_QUERY)),
        target=target,
    )


def _adaptive(fields: Fields) -> AdaptiveSettings:
    return AdaptiveSettings(
        requests_per_replica=fields.get("requestsPerReplica", whole(1, 100_000)),
        cold_start_s=fields.get("coldStartSeconds", whole(0, 86_400)),
        arrival_rate_query=fields.get("arrivalRateQuery", name(MAX_QUERY)),
        in_flight_query=fields.get("inFlightQuery", name(MAX_QUERY)),
        service_time_query=fields.get("serviceTimeQuery", name(MAX_QUERY)),
        activation_query=fields.get("activationQuery", name(MAX_QUERY)),
    )


def _behavior(fields: Fields) -> ScalingBehavior:
    return ScalingBehavior(
        stabilization_s=fields.get_or("stabilizationWindowSeconds", whole(0, 3600), 0),
        limits=fields.get_or("policies", each(part(_limit), 8), ()),
    )


def _limit(fields: Fields) -> ScalingLimit:
    return ScalingLimit(
        unit=fields.need("type", one_of(ScalingUnit)),
        value=fields.need("value", whole(1, 10_000)),
        period_s=fields.need("periodSeconds", whole(1, 1800)),
    )


def _status(fields: Fields) -> InferencePolicyStatus:
    return InferencePolicyStatus(
        current_replicas=fields.get("currentReplicas", whole(0)),
        desired_replicas=fields.get("desiredReplicas", whole(0)),
        last_scale=fields.get("lastScaleTime", moment),
        current_metrics=fields.get_or("currentMetrics", each(part(_reading), 32), ()),
        conditions=conditions(fields),
    )


def _reading(fields: Fields) -> MetricReading:
    return MetricReading(
        name=fields.need("name", name(MAX_LABEL)),
        target=fields.need("target", number()),
        value=fields.get("value", number()),
        ratio=fields.get("ratio", number()),
    )
