"""Which tier the next node should have: soft targets counted in nodes, with a floor. Pure.

Targets are what the mix should come to, not what every purchase has to be: a tier that can't be had now is
passed over, and comes again by itself once it can, because its share is then the furthest behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuloom.model.policies import AutoscalingPolicySpec, CapacityType, NodePool

RATE_LIMIT = 0.10
"""Interruptions for each spot node in a day; above it the spot share is lowered."""
_STEEPNESS = 2.5
ORDER = (CapacityType.SPOT, CapacityType.ON_DEMAND, CapacityType.RESERVED)


@dataclass(frozen=True, slots=True)
class TierTargets:
    """Shares add up to 1. `on_demand_floor`: so many nodes at least are not on spot, once there are any."""

    shares: Mapping[CapacityType, float]
    on_demand_floor: int = 0

    def ranked(self, counts: Mapping[CapacityType, int]) -> tuple[CapacityType, ...]:
        """Tiers by how far they are behind, the one that is due first."""
        total = sum(counts.values()) + 1
        firm = sum(count for tier, count in counts.items() if tier is not CapacityType.SPOT)
        wanted = [tier for tier in ORDER if self.shares.get(tier, 0.0) > 0]

        def behind(tier: CapacityType) -> float:
            return self.shares.get(tier, 0.0) * total - counts.get(tier, 0)

        ranked = sorted(wanted, key=lambda tier: (-round(behind(tier), 9), ORDER.index(tier)))
        if total > 1 and firm < self.on_demand_floor and CapacityType.ON_DEMAND in ranked:
            ranked.remove(CapacityType.ON_DEMAND)
            ranked.insert(0, CapacityType.ON_DEMAND)
        # Whatever has no share is still better than a pod that waits.
        return tuple(ranked) + tuple(tier for tier in ORDER if tier not in ranked and _may(tier, self))


def targets_of(
    spec: AutoscalingPolicySpec, pool: NodePool | None, interruption_rate: float, floor: int = 0
) -> TierTargets:
    """The pool's spot share, else the policy's, lowered while spot nodes are taken back too often."""
    if not spec.spot:
        return TierTargets(_split(spec, 0.0), floor)
    given = spec.spot_share if pool is None or pool.spot_share is None else pool.spot_share
    return TierTargets(_split(spec, lowered_share(given, interruption_rate)), floor)


def lowered_share(share: float, interruption_rate: float) -> float:
    """In proportion to how far the rate is above its limit, never all of it: spot must be able to recover."""
    if interruption_rate <= RATE_LIMIT:
        return share
    return max(share * 0.2, share * (1.0 - _STEEPNESS * (interruption_rate - RATE_LIMIT)))


def _split(spec: AutoscalingPolicySpec, spot: float) -> dict[CapacityType, float]:
    """On-demand and reserved divide what spot leaves, in proportion; without tiers on-demand has it all."""
    rest, firm = 1.0 - spot, spec.on_demand_share + spec.reserved_share
    if not spec.multi_tier:
        return {CapacityType.SPOT: spot, CapacityType.ON_DEMAND: rest, CapacityType.RESERVED: 0.0}
    reserved = rest * spec.reserved_share / firm if firm > 0 else 0.0
    return {
        CapacityType.SPOT: spot,
        CapacityType.ON_DEMAND: rest - reserved,
        CapacityType.RESERVED: reserved,
    }


def _may(tier: CapacityType, targets: TierTargets) -> bool:
    """Spot is a wish of the policy: without a share it is not used at all."""
    return tier is not CapacityType.SPOT or targets.shares.get(tier, 0.0) > 0
