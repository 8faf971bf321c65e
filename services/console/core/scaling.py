"""What the autoscaler does as JSON values, and its last hours for a chart. Pure."""

from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpuloom.model.autoscaling import (
    AutoscalerStanding,
    ClaimStanding,
    PolicyPlan,
    PolicyStanding,
    ScalingRecord,
)
from services.console.core.texts import micro_usd, moment, pod_fields

Json = Any

HISTORY_POINTS = 720
MOST_POLICIES = 100


class ScalingHistory:
    """A point for each time that the autoscaler was asked; bounded. It begins with this process."""

    def __init__(self, points: int = HISTORY_POINTS) -> None:
        self._points = points
        self._series: dict[str, deque[Json]] = {}

    def note(self, now: datetime, standing: AutoscalerStanding) -> None:
        names = [policy.name for policy in standing.policies[:MOST_POLICIES]]
        self._series = {name: self._series.get(name, deque(maxlen=self._points)) for name in names}
        for policy in standing.policies[:MOST_POLICIES]:
            self._series[policy.name].append(
                [
                    moment(now),
                    policy.ready_nodes,
                    policy.desired_nodes,
                    policy.pending_pods,
                    _percent(policy.utilization),
                    _percent(policy.predicted_utilization),
                    _percent(policy.prediction_confidence),
                ]
            )

    def items(self) -> Mapping[str, Json]:
        return {name: list(points) for name, points in self._series.items()}


def policy_items(standing: AutoscalerStanding) -> Mapping[str, Json]:
    return {policy.name: _policy(policy) for policy in standing.policies}


def claim_items(standing: AutoscalerStanding) -> Mapping[str, Json]:
    return {claim.name: _claim(claim) for claim in standing.claims}


def plan_items(plans: tuple[PolicyPlan, ...]) -> Mapping[str, Json]:
    return {plan.policy: _plan(plan) for plan in plans}


def action_items(actions: tuple[ScalingRecord, ...]) -> Mapping[str, Json]:
    return {f"{moment(one.time)} {one.policy} {one.type} {one.pool}": _action(one) for one in actions}


def _policy(policy: PolicyStanding) -> Json:
    return {
        "policy": policy.name,
        "provider": policy.provider,
        "enabled": policy.enabled,
        "dry_run": policy.dry_run,
        "ready": policy.ready_nodes,
        "desired": policy.desired_nodes,
        "most": policy.max_nodes,
        "pending": policy.pending_pods,
        "utilization": _percent(policy.utilization),
        "predicted": _percent(policy.predicted_utilization),
        "confidence": _percent(policy.prediction_confidence),
        "message": policy.message,
        "up_wait_s": round(policy.scale_up_wait_s),
        "down_wait_s": round(policy.scale_down_wait_s),
        "pools": [
            {
                "pool": pool.name,
                "nodes": pool.nodes,
                "min": pool.min_nodes,
                "max": pool.max_nodes,
                "priority": pool.priority,
                "problem": pool.problem,
            }
            for pool in policy.pools
        ],
    }


def _claim(claim: ClaimStanding) -> Json:
    price = claim.nano_usd_per_hour
    return {
        "claim": claim.name,
        "pool": claim.pool,
        "instance": claim.instance_type,
        "zone": claim.zone,
        "capacity": claim.capacity_type,
        "state": claim.state,
        "node": claim.node_name,
        "gpus": claim.gpus,
        "per_hour": None if price is None else micro_usd(price),
        "requested": moment(claim.requested),
        "message": claim.message,
    }


def _plan(plan: PolicyPlan) -> Json:
    return {
        "policy": plan.policy,
        "machines": [
            {
                "pool": one.pool,
                "instance": one.instance_type,
                "zone": one.zone,
                "capacity": one.capacity_type,
                "per_hour": micro_usd(one.nano_usd_per_hour),
                "estimated": one.price_estimated,
                "pods": [pod_fields(pod) for pod in one.pods[:20]],
            }
            for one in plan.machines
        ],
        "unplaced": [{**pod_fields(pod), "reason": reason} for pod, reason in plan.unplaced[:50]],
        "rejected": [{"offering": name, "reason": reason} for name, reason in plan.rejected[:50]],
        "up": plan.scale_up_reason,
        "held": plan.scale_up_held,
        "drained": plan.drained_claim,
        "down": plan.scale_down_reason,
    }


def _action(action: ScalingRecord) -> Json:
    return {
        "time": moment(action.time),
        "policy": action.policy,
        "type": action.type,
        "pool": action.pool,
        "count": action.count,
        "reason": action.reason,
        "claims": list(action.claims),
        "per_hour": micro_usd(action.nano_usd_per_hour),
    }


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio * 100, 1)
