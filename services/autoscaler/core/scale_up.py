"""Whether to add nodes now, which, and why: pods that wait, minimum sizes, use, PromQL triggers. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gpuloom.model.claims import GpuNodeClaim
from gpuloom.model.policies import NodePool
from services.autoscaler.core.filling import MachineForm
from services.autoscaler.core.offerings import Offering
from services.autoscaler.core.pending import PendingPod, Unit, due_pods, units_of
from services.autoscaler.core.plan import Effort, Limits, Plan, PlannedNode, Problem, make_plan
from services.autoscaler.core.policies import (
    Effective,
    limits_of,
    missing_by_floor,
    remaining_s,
    tier_counts,
)
from services.autoscaler.core.simulation import SimulatedNode
from services.autoscaler.core.table import Table
from services.autoscaler.core.tiers import targets_of

PREWARM_NANO_USD_PER_HOUR = 100_000_000_000
"""The most that one round of pre-warming buys: 100 USD an hour."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """Why nodes may be wanted though every pod has a place.

    `utilization` None: not known, which is no reason to add anything. `triggers`: PromQL metrics above their
    threshold, by name, with what to tell. `floor_gpus`: GPUs that a forecast wants to be there.
    """

    utilization: float | None = None
    triggers: Mapping[str, str] = field(default_factory=dict)
    floor_gpus: int = 0
    floor_reason: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything one policy's decision is made on. `upcoming_gpus` are of claims that are not ready yet."""

    policy: Effective
    claims: Sequence[GpuNodeClaim]
    pending: Sequence[PendingPod]
    nodes: Sequence[SimulatedNode]
    table: Table
    now: datetime
    last_scale_up: datetime | None = None
    interruption_rate: float = 0.0
    pressure: Pressure = field(default_factory=Pressure)
    form: MachineForm = field(default_factory=MachineForm)
    draining: int = 0
    frozen_reason: str = ""
    effort: Effort = field(default_factory=Effort)


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """`nodes` are to be bought now. `held`: why nothing is, though something is wanted."""

    plan: Plan = field(default_factory=Plan)
    nodes: tuple[PlannedNode, ...] = ()
    reason: str = ""
    held: str = ""


def decide_scale_up(seen: Situation) -> ScaleUp:
    spec = seen.policy.policy.spec
    due = due_pods(seen.pending, spec.pending_pod_timeout_s, seen.now)
    units, left_out = units_of(due)
    plan = make_plan(problem_of(seen, units), seen.effort)
    plan = Plan(plan.nodes, plan.kept, (*plan.unplaced, *left_out))
    nodes, reason = plan.nodes, _pods_reason(plan)
    if not nodes:
        nodes, reason = _without_pods(seen)
    if not nodes:
        return ScaleUp(plan, held=_why_not(plan))
    wait_s = remaining_s(seen.last_scale_up, spec.scale_up_cooldown_s, seen.now)
    held = seen.frozen_reason or (f"cooldown for {wait_s:.0f} s more" if wait_s > 0 else "")
    if not held and not spec.enabled:
        held = "the policy is not enabled"
    if held:
        return ScaleUp(plan, (), reason, held)
    return ScaleUp(plan, nodes, reason)


def problem_of(seen: Situation, units: Sequence[Unit]) -> Problem:
    spec = seen.policy.policy.spec
    return Problem(
        units=units,
        nodes=seen.nodes,
        offerings=seen.table.offerings,
        form=seen.form,
        limits=limits_of(seen.policy, seen.claims, seen.draining),
        tiers=targets_of(spec, _only_pool(seen), seen.interruption_rate),
        tier_counts=tier_counts(seen.claims),
    )


def _only_pool(seen: Situation) -> NodePool | None:
    pools = seen.policy.policy.spec.pools
    return pools[0] if len(pools) == 1 else None


def _pods_reason(plan: Plan) -> str:
    count = sum(len(node.pods) for node in plan.nodes)
    names = sorted(str(pod.ref) for node in plan.nodes for pod in node.pods)
    shown = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
    return f"{count} pods wait for GPUs: {shown}"


def _without_pods(seen: Situation) -> tuple[tuple[PlannedNode, ...], str]:
    """One node at a time for use and triggers, so that the next look sees what it changed."""
    spec, pressure = seen.policy.policy.spec, seen.pressure
    limits = limits_of(seen.policy, seen.claims, seen.draining)
    missing = missing_by_floor(seen.policy, seen.claims)
    if missing:
        nodes = [
            PlannedNode(offering, ())
            for pool, count in sorted(missing.items())
            for offering in [_cheapest([one for one in seen.table.offerings if one.pool == pool])] * count
            if offering is not None
        ]
        return tuple(nodes[: limits.nodes]), "the minimum size is not reached"
    upcoming = any(one.status.gpu_ready is None for one in seen.claims)
    reason = _pressure_reason(pressure, spec.scale_up_threshold)
    # What is on its way may be all that is needed.
    if reason and not upcoming:
        best = _cheapest([one for one in seen.table.offerings if limits.by_pool.get(one.pool, 1) > 0])
        if best is not None and limits.nodes > 0:
            return (PlannedNode(best, ()),), reason
    return _for_forecast(seen, limits)


def _for_forecast(seen: Situation, limits: Limits) -> tuple[tuple[PlannedNode, ...], str]:
    have = sum(one.spec.gpu_count for one in seen.claims)
    best = _cheapest([one for one in seen.table.offerings if limits.by_pool.get(one.pool, 1) > 0])
    if seen.pressure.floor_gpus <= have or best is None:
        return (), ""
    count = -(-(seen.pressure.floor_gpus - have) // best.instance.gpu_count)
    # What nobody has asked for yet may cost so much and no more.
    most = PREWARM_NANO_USD_PER_HOUR // max(1, best.nano_usd_per_hour)
    return (PlannedNode(best, ()),) * min(count, limits.nodes, most), seen.pressure.floor_reason


def _pressure_reason(pressure: Pressure, threshold: float) -> str:
    if pressure.utilization is not None and pressure.utilization > threshold:
        return f"GPU utilization is {pressure.utilization:.0%}, above {threshold:.0%}"
    return next(iter(sorted(pressure.triggers.values())), "")


def _cheapest(offerings: Sequence[Offering]) -> Offering | None:
    """Of the highest priority, the lowest price for a GPU."""
    return min(
        offerings,
        key=lambda one: (-one.priority, one.compared_nano_usd / one.instance.gpu_count, one.key),
        default=None,
    )


def _why_not(plan: Plan) -> str:
    if not plan.unplaced:
        return ""
    pod, reason = plan.unplaced[0]
    return f"{len(plan.unplaced)} pods wait and no node would help, {pod.ref} among them: {reason}"
