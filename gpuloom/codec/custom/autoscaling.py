"""AutoscalingPolicy."""

import re

from gpuloom.codec.custom.objects import conditions, conditions_to_json, opened
from gpuloom.codec.custom.reading import (
    MAX_LABEL,
    MAX_MESSAGE,
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
    share,
    text,
    text_map,
    time_text,
    whole,
)
from gpuloom.model.policies import (
    AutoscalingPolicy,
    AutoscalingPolicySpec,
    AutoscalingPolicyStatus,
    CapacityType,
    CloudProvider,
    NodeMetric,
    NodePool,
    Prediction,
    PredictionSettings,
    ScaleDirection,
    ScalingAction,
)

_POOL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PRIORITY = 1_000_000
_TIERS = {
    "spot": CapacityType.SPOT,
    "onDemand": CapacityType.ON_DEMAND,
    "reserved": CapacityType.RESERVED,
}

seconds_of_a_day = whole(0, 86_400)
nodes = whole(0, 10_000)
minutes_ahead = whole(1, 1440)


def autoscaling_policy(obj: object) -> AutoscalingPolicy:
    meta, spec, status = opened(obj)
    return AutoscalingPolicy(meta, _spec(spec), _status(status))


def autoscaling_policy_status_to_json(status: AutoscalingPolicyStatus) -> Json:
    return {
        "currentNodes": status.current_nodes,
        "desiredNodes": status.desired_nodes,
        "nodesByCapacityType": {key: status.nodes_by_tier.get(tier) for key, tier in _TIERS.items()},
        "utilization": status.utilization,
        "pendingPods": status.pending_pods,
        "lastScaleUpTime": time_text(status.last_scale_up),
        "lastScaleDownTime": time_text(status.last_scale_down),
        "lastAction": _action_to_json(status.last_action),
        "prediction": _prediction_to_json(status.prediction),
        "message": status.message,
        "conditions": conditions_to_json(status.conditions),
    }


def _spec(fields: Fields) -> AutoscalingPolicySpec:
    default = AutoscalingPolicySpec(CloudProvider.SIMULATED)
    return AutoscalingPolicySpec(
        provider=fields.need("provider", one_of(CloudProvider)),
        enabled=fields.get_or("enabled", flag, default.enabled),
        scale_up_threshold=fields.get_or("scaleUpThreshold", share, default.scale_up_threshold),
        scale_down_threshold=fields.get_or("scaleDownThreshold", share, default.scale_down_threshold),
        scale_up_cooldown_s=fields.get_or(
            "scaleUpCooldownSeconds", seconds_of_a_day, default.scale_up_cooldown_s
        ),
        scale_down_cooldown_s=fields.get_or(
            "scaleDownCooldownSeconds", seconds_of_a_day, default.scale_down_cooldown_s
        ),
        pending_pod_timeout_s=fields.get_or(
            "pendingPodTimeoutSeconds", seconds_of_a_day, default.pending_pod_timeout_s
        ),
        min_nodes=fields.get_or("minNodes", nodes, default.min_nodes),
        max_nodes=fields.get_or("maxNodes", nodes, default.max_nodes),
        spot_share=fields.get_or("spotInstancePercentage", share, default.spot_share),
        on_demand_share=fields.get_or("onDemandPercentage", share, default.on_demand_share),
        reserved_share=fields.get_or("reservedPercentage", share, default.reserved_share),
        spot=fields.get_or("enableSpotInstances", flag, default.spot),
        multi_tier=fields.get_or("enableMultiTierScaling", flag, default.multi_tier),
        predictive=fields.get_or("enablePredictiveScaling", flag, default.predictive),
        prediction=fields.get_or("predictive", part(_settings), default.prediction),
        graceful_eviction=fields.get_or("gracefulEviction", flag, default.graceful_eviction),
        diversify=fields.get_or("diversify", flag, default.diversify),
        dry_run=fields.get_or("dryRun", flag, default.dry_run),
        custom_metrics=fields.get_or("customMetrics", each(part(_metric), 16), ()),
        pools=fields.get_or("nodePools", each(part(_pool), 50), ()),
    )


def _settings(fields: Fields) -> PredictionSettings:
    default = PredictionSettings()
    return PredictionSettings(
        lookback_days=fields.get_or("lookbackDays", whole(1, 365), default.lookback_days),
        horizon_minutes=fields.get_or("horizonMinutes", minutes_ahead, default.horizon_minutes),
        confidence_threshold=fields.get_or("confidenceThreshold", share, default.confidence_threshold),
        prewarm_threshold=fields.get_or("preWarmThreshold", share, default.prewarm_threshold),
    )


def _metric(fields: Fields) -> NodeMetric:
    return NodeMetric(
        name=fields.need("name", name(MAX_LABEL)),
        query=fields.need("prometheusQuery", name(MAX_QUERY)),
        threshold=fields.need("threshold", number()),
    )


def _pool(fields: Fields) -> NodePool:
    return NodePool(
        name=fields.need("name", text(MAX_LABEL, shortest=1, pattern=_POOL)),
        min_size=fields.get_or("minSize", nodes, 0),
        max_size=fields.get("maxSize", nodes),
        gpu_type=fields.get("gpuType", name(MAX_LABEL)),
        instance_types=fields.get_or("instanceTypes", each(name(MAX_LABEL), 50), ()),
        capacity_type=fields.get("capacityType", one_of(CapacityType)),
        spot_share=fields.get("spotPercentage", share),
        priority=fields.get_or("priority", whole(-_PRIORITY, _PRIORITY), 0),
        labels=fields.get_or("labels", text_map(32), {}),
        zones=fields.get_or("availabilityZones", each(name(MAX_LABEL), 32), ()),
    )


def _status(fields: Fields) -> AutoscalingPolicyStatus:
    return AutoscalingPolicyStatus(
        current_nodes=fields.get("currentNodes", whole(0)),
        desired_nodes=fields.get("desiredNodes", whole(0)),
        nodes_by_tier=fields.get_or("nodesByCapacityType", part(_tiers), {}),
        utilization=fields.get("utilization", share),
        pending_pods=fields.get("pendingPods", whole(0)),
        last_scale_up=fields.get("lastScaleUpTime", moment),
        last_scale_down=fields.get("lastScaleDownTime", moment),
        last_action=fields.get("lastAction", part(_action)),
        prediction=fields.get("prediction", part(_prediction)),
        message=fields.get("message", text(MAX_MESSAGE)),
        conditions=conditions(fields),
    )


def _tiers(fields: Fields) -> dict[CapacityType, int]:
    counts = {tier: fields.get(key, whole(0)) for key, tier in _TIERS.items()}
    return {tier: count for tier, count in counts.items() if count is not None}


def _action(fields: Fields) -> ScalingAction:
    return ScalingAction(
        type=fields.need("type", one_of(ScaleDirection)),
        time=fields.need("time", moment),
        pool=fields.get("pool", text(MAX_LABEL)),
        count=fields.get("count", whole(0)),
        reason=fields.get("reason", text(1024)),
    )


def _action_to_json(action: ScalingAction | None) -> Json | None:
    if action is None:
        return None
    return {
        "type": action.type,
        "time": time_text(action.time),
        "pool": action.pool,
        "count": action.count,
        "reason": action.reason,
    }


def _prediction(fields: Fields) -> Prediction:
    return Prediction(
        utilization=fields.need("utilization", share),
        confidence=fields.need("confidence", share),
        horizon_minutes=fields.need("horizonMinutes", minutes_ahead),
    )


def _prediction_to_json(prediction: Prediction | None) -> Json | None:
    if prediction is None:
        return None
    return {
        "utilization": prediction.utilization,
        "confidence": prediction.confidence,
        "horizonMinutes": prediction.horizon_minutes,
    }
