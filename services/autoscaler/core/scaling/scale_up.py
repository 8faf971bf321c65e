"""Whether to add nodes now, which, and why: pods that wait, minimum sizes, use, PromQL triggers. Pure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gpuloom.model.claims import GpuNodeClaim
from services.autoscaler.core.buying.filling import MachineForm
from services.autoscaler.core.buying.offerings import Offering
from services.autoscaler.core.buying.pending import PendingPod, Unit, due_pods, units_of
from services.autoscaler.core.buying.plan import Effort, Plan, PlannedNode, Problem, make_plan
from services.autoscaler.core.buying.simulation import SimulatedNode
from services.autoscaler.core.buying.table import Table
from services.autoscaler.core.lifecycle.machines import Group
from services.autoscaler.core.scaling.policies import (
    Effective,
    limits_of,
    missing_by_floor,
    mix_of,
    remaining_s,
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the settings allow beside the policy.

    `on_demand_floor`: nodes of a policy that are not on spot, once there are any. `warm_nano_usd_per_hour`:
    the most that nodes may cost which only a forecast wants.
    """

    on_demand_floor: int = 1
    warm_nano_usd_per_hour: int = 100_000_000_000


@dataclass(frozen=True, slots=True)
class Pressure:
    """Why nodes may be wanted though every pod has a place.

    `utilization` None: not known, which is no reason to add anything. `triggers`: PromQL metrics above their
    threshold, by name, with what to tell. `floor_gpus`: GPUs that a forecast wants to be there; `used_gpus`:
    those that pods want now.
    """

    utilization: float | None = None
    triggers: Mapping[str, str] = field(default_factory=dict)
    floor_gpus: int = 0
    floor_reason: str = ""
    used_gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything one policy's decision is made on."""

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
    limits: Bounds = field(default_factory=Bounds)
    groups: Sequence[Group] = ()
    told_gpus: int = 0
    busy_gpus: float = 0.0
    """The use of the `told_gpus` that tell theirs, added up: now, or on average of late if that is more."""


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
        return ScaleUp(plan, held=_why_not(plan) or _why_short(seen))
    wait_s = remaining_s(seen.last_scale_up, spec.scale_up_cooldown_s, seen.now)
    held = seen.frozen_reason or (f"cooldown for {wait_s:.0f} s more" if wait_s > 0 else "")
    if not held and not spec.enabled:
        held = "the policy is not enabled"
    if held:
        return ScaleUp(plan, (), reason, held)
    return ScaleUp(plan, nodes, reason)


def known_claims(seen: Situation) -> list[GpuNodeClaim]:
    """Those whose cloud tells what became of them: others may be neither waited for nor given back."""
    return [one for one in seen.claims if one.spec.pool_name not in seen.table.unread]


def problem_of(seen: Situation, units: Sequence[Unit]) -> Problem:
    return Problem(
        units=units,
        nodes=seen.nodes,
        offerings=seen.table.offerings,
        form=seen.form,
        limits=limits_of(seen.policy, seen.claims, seen.draining),
        mix=mix_of(seen.policy, seen.claims, seen.interruption_rate, seen.limits.on_demand_floor),
    )


def _pods_reason(plan: Plan) -> str:
    count = sum(len(node.pods) for node in plan.nodes)
    names = sorted(str(pod.ref) for node in plan.nodes for pod in node.pods)
    shown = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
    return f"{count} pods wait for GPUs: {shown}"


def warm_nano_usd_per_hour(seen: Situation, more: Sequence[Offering] = ()) -> float:
    """What the GPUs cost that no pod wants now, if pods use the cheapest ones; those that nobody priced count
    as the dearest. `more`: machines that a plan has so far."""
    priced = [(one.instance.gpu_count, one.nano_usd_per_hour) for one in (*seen.table.offerings, *more)]
    priced += [
        (one.spec.gpu_count, one.status.price_nano_usd_per_hour)
        for one in seen.claims
        if one.status.price_nano_usd_per_hour and one.spec.gpu_count
    ]
    dearest = max((price / gpus for gpus, price in priced), default=0.0)
    machines = [(one.instance.gpu_count, one.nano_usd_per_hour / one.instance.gpu_count) for one in more]
    for claim in seen.claims:
        gpus, price = claim.spec.gpu_count, claim.status.price_nano_usd_per_hour
        machines.append((gpus, price / gpus if price and gpus else dearest))
    used, cost = math.ceil(seen.pressure.used_gpus), 0.0
    for gpus, price_of_gpu in sorted(machines, key=lambda one: one[1]):
        cost += max(0, gpus - used) * price_of_gpu
        used = max(0, used - gpus)
    return cost


def _without_pods(seen: Situation) -> tuple[tuple[PlannedNode, ...], str]:
    """One node at a time for use and triggers, so that the next look sees what it changed."""
    found: list[Offering] = []
    for pool, count in sorted(missing_by_floor(seen.policy, seen.claims).items(), reverse=True):
        for _ in range(count):
            found.extend(_next_node(seen, found, pool))
    # A pool that gets no machine now, such as one that is sold out, holds up no other reason.
    if found:
        return _bare(found), "the minimum size is not reached"
    reason = _pressure_reason(seen)
    if reason:
        return _bare(_next_node(seen, [], "")), reason
    return _for_forecast(seen)


def reason_to_buy_for_use(seen: Situation) -> str:
    """Why use or a trigger would add a node now; empty if they would not, or none could be had."""
    reason = _pressure_reason(seen)
    return reason if reason and _next_node(seen, [], "") else ""


def _for_forecast(seen: Situation) -> tuple[tuple[PlannedNode, ...], str]:
    have = sum(one.spec.gpu_count for one in seen.claims)
    found: list[Offering] = []
    while have < seen.pressure.floor_gpus:
        best = _next_node(seen, found, "")
        # All that is warm counts, not what this round adds.
        if not best or warm_nano_usd_per_hour(seen, [*found, *best]) > seen.limits.warm_nano_usd_per_hour:
            break
        have += best[0].instance.gpu_count
        found.extend(best)
    return _bare(found), seen.pressure.floor_reason


def _next_node(seen: Situation, found: Sequence[Offering], pool: str) -> list[Offering]:
    """One more machine of this pool, or of any, within the limits; empty if none can be had."""
    limits = limits_of(seen.policy, seen.claims, seen.draining)
    counts = Counter(one.pool for one in found)
    offerings = [
        one
        for one in seen.table.offerings
        if pool in {"", one.pool} and limits.by_pool.get(one.pool, len(found) + 1) > counts[one.pool]
    ]
    mix = mix_of(seen.policy, seen.claims, seen.interruption_rate, seen.limits.on_demand_floor)
    best = mix.cheapest(offerings, found) if len(found) < limits.nodes else None
    return [] if best is None else [best]


def _bare(offerings: Sequence[Offering]) -> tuple[PlannedNode, ...]:
    return tuple(PlannedNode(one, ()) for one in offerings)


def _pressure_reason(seen: Situation) -> str:
    pressure, threshold = seen.pressure, seen.policy.policy.spec.scale_up_threshold
    # What is on its way may be all that is needed.
    if any(one.status.gpu_ready is None for one in known_claims(seen)):
        return ""
    if pressure.utilization is not None and pressure.utilization > threshold:
        return f"GPU utilization is {pressure.utilization:.0%}, above {threshold:.0%}"
    return next(iter(sorted(pressure.triggers.values())), "")


def _why_not(plan: Plan) -> str:
    if not plan.unplaced:
        return ""
    pod, reason = plan.unplaced[0]
    return f"{len(plan.unplaced)} pods wait and no node would help, {pod.ref} among them: {reason}"


def _why_short(seen: Situation) -> str:
    missing = missing_by_floor(seen.policy, seen.claims)
    if not missing:
        return ""
    where = ", ".join(f"of pool {pool}" if pool else "of the policy" for pool in sorted(missing))
    return f"the minimum {where} is not reached, and no machine for it can be had now"
