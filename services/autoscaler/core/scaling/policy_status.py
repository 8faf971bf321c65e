"""What a policy's status says: nodes, conditions, the last action and why. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gpuloom.kube.conditions import Condition
from gpuloom.model.claims import GpuNodeClaim
from gpuloom.model.policies import (
    AutoscalingPolicyStatus,
    CapacityType,
    Prediction,
    ScaleDirection,
    ScalingAction,
)
from services.autoscaler.core.buying.table import Table
from services.autoscaler.core.scaling.policies import Effective
from services.autoscaler.core.scaling.scale_down import ScaleDown
from services.autoscaler.core.scaling.scale_up import ScaleUp


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy's round, as it is told to people."""

    policy: Effective
    claims: Sequence[GpuNodeClaim]
    table: Table
    up: ScaleUp
    down: ScaleDown
    provider_problem: str = ""
    frozen_reason: str = ""
    utilization: float | None = None
    pending: int = 0
    prediction: Prediction | None = None
    notes: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass(slots=True)
class Memory:
    """When a policy last acted. Kept in its status too, so that a new leader respects the cooldown."""

    last_up: datetime | None = None
    last_down: datetime | None = None
    last_action: ScalingAction | None = None
    drained: list[datetime] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Taken:
    """An action that was taken, for the history."""

    policy: str
    action: ScalingAction
    claims: tuple[str, ...] = ()
    nano_usd_per_hour: int = 0


def status_of(outcome: Outcome, memory: Memory) -> AutoscalingPolicyStatus:
    ready = [one for one in outcome.claims if one.status.gpu_ready is not None]
    tiers = Counter(one.spec.offering.capacity_type for one in ready)
    return AutoscalingPolicyStatus(
        current_nodes=len(ready),
        desired_nodes=len(outcome.claims),
        nodes_by_tier={tier: tiers[tier] for tier in CapacityType},
        utilization=None if outcome.utilization is None else round(outcome.utilization, 3),
        pending_pods=outcome.pending,
        last_scale_up=memory.last_up,
        last_scale_down=memory.last_down,
        last_action=memory.last_action,
        prediction=outcome.prediction,
        message=message_of(outcome),
    )


def message_of(outcome: Outcome) -> str:
    parts = [
        outcome.provider_problem,
        outcome.frozen_reason,
        outcome.up.held and f"no node is added: {outcome.up.held}",
        outcome.down.held and f"no node is removed: {outcome.down.held}",
        *outcome.notes,
    ]
    told = "; ".join(part for part in dict.fromkeys(parts) if part)
    prefix = "dry run, nothing is bought or drained; " if outcome.dry_run else ""
    return (prefix + (told or "nothing to do"))[:1000]


def conditions_of(outcome: Outcome) -> list[Condition]:
    limited = _limited(outcome)
    problem = outcome.provider_problem or "; ".join(
        f"{pool}: {text}" for pool, text in sorted(outcome.table.problems.items())
    )
    lost = outcome.policy.lost
    taken = "; ".join(f"pool {pool} belongs to policy {other}" for pool, other in sorted(lost.items()))
    ready = not outcome.provider_problem and not outcome.frozen_reason and not taken
    return [
        Condition(
            "ProviderConfigured",
            not problem,
            "Configured" if not problem else "Misconfigured",
            problem or "every pool has its machines",
        ),
        Condition(
            "Frozen",
            bool(outcome.frozen_reason),
            "UntrustedNodes" if outcome.frozen_reason else "Trusted",
            outcome.frozen_reason,
        ),
        Condition("Limited", bool(limited), "AtMaximum" if limited else "WithinLimits", limited),
        Condition(
            "Ready",
            ready,
            "Acting" if ready else "NotActing",
            taken or ("deciding every round" if ready else message_of(outcome)),
        ),
    ]


def an_action(kind: ScaleDirection, counts: Mapping[str, int], reason: str, now: datetime) -> ScalingAction:
    return ScalingAction(
        kind,
        now,
        pool=", ".join(sorted(counts))[:63] or None,
        count=sum(counts.values()),
        reason=reason[:1000],
    )


def _limited(outcome: Outcome) -> str:
    spec = outcome.policy.policy.spec
    if len(outcome.claims) >= spec.max_nodes:
        return f"the policy has its maximum of {spec.max_nodes} nodes"
    for pool in spec.pools:
        count = sum(one.spec.pool_name == pool.name for one in outcome.claims)
        if pool.max_size is not None and count >= pool.max_size > 0:
            return f"pool {pool.name} has its maximum of {pool.max_size} nodes"
    return ""
