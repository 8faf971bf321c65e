"""Several policies as one: who owns which pool, what each may still add, and when it may act again. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpuloom.model.claims import GpuNodeClaim
from gpuloom.model.objects import ConditionStatus
from gpuloom.model.policies import AutoscalingPolicy
from services.autoscaler.core.buying.mix import Mix
from services.autoscaler.core.buying.offerings import key_of
from services.autoscaler.core.buying.plan import Limits
from services.autoscaler.core.buying.tiers import targets_of
from services.autoscaler.core.lifecycle import claims as life

DEFAULT_POLICY = "default"
"""What the chart renders of its values; a pool of a policy that somebody applies wins over its pool."""


@dataclass(frozen=True, slots=True)
class Effective:
    """A policy with the pools that are its own; `lost`: pools that another policy has, with its name."""

    policy: AutoscalingPolicy
    lost: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.policy.meta.name


def effective_policies(policies: Iterable[AutoscalingPolicy]) -> list[Effective]:
    """Each pool belongs to one policy: of the enabled ones to one that was applied before `default`, else by
    name."""
    ordered = sorted(policies, key=lambda one: (one.meta.name == DEFAULT_POLICY, one.meta.name))
    owner: dict[str, str] = {}
    for policy in ordered:
        for pool in policy.spec.pools if policy.spec.enabled else ():
            owner.setdefault(pool.name, policy.meta.name)
    found: list[Effective] = []
    for policy in ordered:
        kept, lost = [], {}
        for pool in policy.spec.pools:
            if owner.get(pool.name, policy.meta.name) == policy.meta.name:
                kept.append(pool)
            else:
                lost[pool.name] = owner[pool.name]
        spec = replace(policy.spec, pools=tuple(kept))
        found.append(Effective(replace(policy, spec=spec), lost))
    return found


def claims_of(policy: Effective, claims: Iterable[GpuNodeClaim]) -> list[GpuNodeClaim]:
    """Live ones of its pools, also those that an earlier owner of the pool asked for."""
    pools = {pool.name for pool in policy.policy.spec.pools}
    return [one for one in claims if one.spec.pool_name in pools and life.is_live(one)]


def mix_of(policy: Effective, live: Sequence[GpuNodeClaim], interruption_rate: float, floor: int) -> Mix:
    """What the tiers should come to, and the nodes there are. `floor`: of nodes that are not on spot."""
    spec = policy.policy.spec
    # A pool of one tier has nothing to divide; its nodes count in the policy's shares.
    own = [pool for pool in spec.pools if pool.spot_share is not None and pool.capacity_type is None]
    return Mix(
        targets_of(spec, None, interruption_rate, floor),
        {pool.name: targets_of(spec, pool, interruption_rate) for pool in own},
        Counter((one.spec.pool_name, key_of(one)) for one in live),
        spec.diversify,
    )


def limits_of(policy: Effective, live: Sequence[GpuNodeClaim], draining: int = 0) -> Limits:
    """What may still be added. Nodes that are being drained still cost, and count."""
    spec = policy.policy.spec
    by_pool = Counter(one.spec.pool_name for one in live)
    room = {
        pool.name: max(0, pool.max_size - by_pool[pool.name])
        for pool in spec.pools
        if pool.max_size is not None
    }
    return Limits(max(0, spec.max_nodes - len(live) - draining), room)


def missing_by_floor(policy: Effective, live: Sequence[GpuNodeClaim]) -> dict[str, int]:
    """How many nodes each pool lacks to its minimum; under "" what the policy lacks beyond, in any pool."""
    by_pool = Counter(one.spec.pool_name for one in live)
    spec = policy.policy.spec
    missing = {
        pool.name: pool.min_size - by_pool[pool.name]
        for pool in spec.pools
        if pool.min_size > by_pool[pool.name]
    }
    short = spec.min_nodes - len(live) - sum(missing.values())
    if short > 0 and spec.pools:
        missing[""] = short
    return missing


def cooldown_start(last_up: datetime | None, claims: Iterable[GpuNodeClaim]) -> datetime | None:
    """When the cooldown of additions began; None once a launch failed since: the next best is asked at once.

    Its offering is backed off by then, so no cloud is asked for the same again.
    """
    if last_up is None:
        return None
    # Times on claims are whole seconds.
    since = last_up.replace(microsecond=0)
    for claim in claims:
        told, asked = life.condition_of(claim, life.CONDITION_LAUNCHED), claim.status.requested
        if told is not None and told.status is ConditionStatus.FALSE and asked is not None and asked >= since:
            return None
    return last_up


def remaining_s(last: datetime | None, cooldown_s: int, now: datetime) -> float:
    """How long a policy may not act again; 0 if it may."""
    if last is None:
        return 0.0
    return max(0.0, cooldown_s - (now - last).total_seconds())
