"""Which node to give back: idle or little used, everything on it fits elsewhere, and it would not be bought
again right after. Pure.

One node a round at most, and so many an hour. A node whose use is not known is not idle.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpuloom.model.claims import ClaimState, GpuNodeClaim
from services.autoscaler.core.buying.pending import PendingPod, units_of
from services.autoscaler.core.buying.plan import Effort, make_plan
from services.autoscaler.core.buying.simulation import SimulatedNode, Simulation
from services.autoscaler.core.scaling.policies import remaining_s
from services.autoscaler.core.scaling.scale_up import (
    Situation,
    known_claims,
    problem_of,
    reason_to_buy_for_use,
    warm_nano_usd_per_hour,
)

MIN_SAMPLES = 3
LEAST_TOLD = 0.8
"""Of a window, and of the looks within it, so much must have told a use: what is busy may fall silent."""


@dataclass(frozen=True, slots=True)
class DownSettings:
    """`window_s`: how long a node must have been idle; `minimum_age_s` counts from ready GPUs."""

    window_s: float = 600.0
    minimum_age_s: float = 600.0
    nodes_per_hour: int = 10


@dataclass(frozen=True, slots=True)
class Resident:
    """A pod on a node. `stays`: why it must not be moved; empty if it may. Daemons are not residents."""

    pod: PendingPod | None
    name: str
    uses_gpu: bool
    stays: str = ""


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """One node of ours. `mean_use` is over the window, None if too few samples tell."""

    claim: GpuNodeClaim
    node: SimulatedNode
    residents: Sequence[Resident] = ()
    mean_use: float | None = None
    quiet_since: datetime | None = None
    """Since when no GPU pod was on it; None: one is, or it is not known."""
    opted_out: bool = False


@dataclass(frozen=True, slots=True)
class ScaleDown:
    claim: GpuNodeClaim | None = None
    reason: str = ""
    held: str = ""
    underused: int = 0


def decide_scale_down(
    seen: Situation,
    loads: Sequence[NodeLoad],
    ended: Iterable[datetime],
    settings: DownSettings,
    last_scale_down: datetime | None = None,
) -> ScaleDown:
    candidates = [
        (load, reason) for load in sorted(loads, key=_order) if (reason := _why_go(load, seen, settings))
    ]
    if not candidates:
        return ScaleDown()
    held = _held(seen, ended, settings, last_scale_down)
    if held:
        return ScaleDown(held=held, underused=len(candidates))
    kept = ""
    for load, reason in candidates:
        kept = _why_keep(load, seen)
        if not kept:
            return ScaleDown(load.claim, reason, underused=len(candidates))
    return ScaleDown(held=kept, underused=len(candidates))


def _order(load: NodeLoad) -> tuple[int, float, str]:
    """Empty ones first, then the dearest."""
    price = load.claim.status.price_nano_usd_per_hour or 0
    return (len([one for one in load.residents if one.uses_gpu]), -float(price), load.claim.meta.name)


def _why_go(load: NodeLoad, seen: Situation, settings: DownSettings) -> str:
    status, window = load.claim.status, timedelta(seconds=settings.window_s)
    ready = status.gpu_ready
    if status.state is not ClaimState.GPU_READY or ready is None or load.opted_out:
        return ""
    # F3: a node is young from when its GPUs were ready, however long it took to boot.
    if seen.now - ready < timedelta(seconds=max(settings.minimum_age_s, settings.window_s)):
        return ""
    threshold = seen.policy.policy.spec.scale_down_threshold
    if load.mean_use is None or load.mean_use >= threshold:
        return ""
    if not any(one.uses_gpu for one in load.residents):
        since = load.quiet_since
        if since is None or seen.now - since < window:
            return ""
        return f"no GPU pod for {(seen.now - since).total_seconds() / 60:.0f} min"
    return f"GPU use below {threshold:.0%} for {settings.window_s / 60:.0f} min"


def _held(seen: Situation, ended: Iterable[datetime], settings: DownSettings, last: datetime | None) -> str:
    if seen.frozen_reason:
        return seen.frozen_reason
    spec = seen.policy.policy.spec
    if not spec.enabled:
        return "the policy is not enabled"
    wait_s = remaining_s(last, spec.scale_down_cooldown_s, seen.now)
    if wait_s > 0:
        return f"cooldown for {wait_s:.0f} s more"
    lately = sum(seen.now - one <= timedelta(hours=1) for one in ended)
    if lately >= settings.nodes_per_hour:
        return f"{lately} nodes were drained within an hour, which is the most"
    if any(one.status.state is not ClaimState.GPU_READY for one in known_claims(seen)):
        return "nodes are on their way"
    return ""


def _why_keep(load: NodeLoad, seen: Situation) -> str:
    name = load.claim.meta.name
    if load.claim not in known_claims(seen):
        return f"{name}: {seen.table.unread[load.claim.spec.pool_name]}"
    floor = _below_floor(load.claim, seen)
    if floor:
        return f"{name}: {floor}"
    staying = [one for one in load.residents if one.stays]
    if staying:
        return f"{name}: {staying[0].name} {staying[0].stays}"
    others = [node for node in seen.nodes if node.name != load.node.name]
    movers = [one.pod for one in load.residents if one.pod is not None]
    units, _ = units_of(movers)
    simulation = Simulation(others)
    for unit in units:
        if simulation.place(unit) is None:
            return f"{name}: {unit.name} would fit nowhere else"
    if _would_buy_again(seen, simulation):
        return f"{name}: pods that wait would need it again"
    again = bought_again(load, seen)
    return f"{name}: without it {again}, and a node would be bought again" if again else ""


def _below_floor(claim: GpuNodeClaim, seen: Situation) -> str:
    spec = seen.policy.policy.spec
    of_pool = [one for one in seen.claims if one.spec.pool_name == claim.spec.pool_name]
    pool = next((one for one in spec.pools if one.name == claim.spec.pool_name), None)
    if pool is not None and len(of_pool) <= pool.min_size:
        return f"pool {pool.name} has its minimum of {pool.min_size}"
    group = next((one for one in seen.groups if one.pool == claim.spec.pool_name), None)
    if group is not None and len(of_pool) <= group.min_size:
        return f"group {group.name} has its minimum of {group.min_size}"
    if len(seen.claims) <= spec.min_nodes:
        return f"the policy has its minimum of {spec.min_nodes}"
    gpus = sum(one.spec.gpu_count for one in seen.claims) - claim.spec.gpu_count
    if gpus < seen.pressure.floor_gpus and warm_nano_usd_per_hour(seen) <= seen.limits.warm_nano_usd_per_hour:
        return seen.pressure.floor_reason
    return ""


def _would_buy_again(seen: Situation, after: Simulation) -> bool:
    """F10: every pod that waits counts, however short it has waited."""
    units, _ = units_of(seen.pending)
    problem = replace(problem_of(seen, units), nodes=after.nodes)
    return bool(make_plan(problem, Effort(restarts=1)).nodes)


def bought_again(load: NodeLoad, seen: Situation, replaced_by_gpus: int = 0) -> str:
    """F10: why use or a trigger would add a node at once, were this one gone, or another in its place.

    What runs on it goes on elsewhere, so the GPUs that stay are busier.
    """
    gpus, busy = load.claim.spec.gpu_count, seen.busy_gpus
    if not any(one.uses_gpu for one in load.residents):
        busy -= gpus * (load.mean_use or 0.0)
    stay = seen.told_gpus - gpus + replaced_by_gpus
    pressure = replace(seen.pressure, utilization=max(0.0, busy) / stay if stay > 0 else None)
    gone = "" if replaced_by_gpus else load.claim.meta.name
    claims = [one for one in seen.claims if one.meta.name != gone]
    return reason_to_buy_for_use(replace(seen, claims=claims, pressure=pressure))


@dataclass(slots=True)
class UseRecord:
    """Looks at a node within a window, None where it told no use, and since when it has had no GPU pod."""

    looks: deque[tuple[datetime, float | None]] = field(default_factory=deque)
    quiet_since: datetime | None = None


class UseBook:
    """What was measured lately, by node UID. Starts empty: after a restart a window has to pass again."""

    def __init__(self, window_s: float) -> None:
        self._window = timedelta(seconds=window_s)
        self._records: dict[str, UseRecord] = {}

    def observe(self, now: datetime, nodes: Mapping[str, tuple[float | None, bool]]) -> None:
        """By node UID: the highest use of its GPUs now, None if not told, and whether a GPU pod is there."""
        for uid in self._records.keys() - nodes.keys():
            del self._records[uid]
        for uid, (use, has_pods) in nodes.items():
            record = self._records.setdefault(uid, UseRecord())
            record.looks.append((now, use))
            while now - record.looks[0][0] > self._window:
                record.looks.popleft()
            record.quiet_since = None if has_pods else record.quiet_since or now

    def mean_use(self, uid: str) -> float | None:
        """Mean use in the window; None while too few samples cover it: missing samples are not idle."""
        record = self._records.get(uid)
        if record is None or record.looks[-1][1] is None:
            return None
        told = [(at, use) for at, use in record.looks if use is not None]
        covered = told[-1][0] - told[0][0]
        if covered < self._window * LEAST_TOLD or len(told) < max(
            MIN_SAMPLES, LEAST_TOLD * len(record.looks)
        ):
            return None
        return sum(use for _, use in told) / len(told)

    def quiet_since(self, uid: str) -> datetime | None:
        record = self._records.get(uid)
        return None if record is None else record.quiet_since
