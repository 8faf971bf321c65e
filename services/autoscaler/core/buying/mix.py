"""Which offerings are asked first for the next node: by the tier that is due, then by pool priority. Pure.

Tiers come first, because a pool that has one tier only would otherwise take every node, whatever the shares
say. Within a tier the pool of the highest priority is used, and among equals the price decides. Everything is
soft: what is last is still asked if nothing before it takes a pod.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuloom.model.policies import CapacityType
from services.autoscaler.core.buying.offerings import Offering, OfferingKey
from services.autoscaler.core.buying.pending import TIER_ORDER, Worth
from services.autoscaler.core.buying.tiers import TierTargets

OFFERING_CAP = 0.5
"""Of the spot nodes of a policy, that one type in one zone should hold at most: they go together."""
SPREAD_PRICE = 1.5
"""What an alternative may cost, as a multiple, for being elsewhere."""

Place = tuple[str, OfferingKey]


@dataclass(frozen=True, slots=True)
class Mix:
    """`own`: targets of pools that have a spot share of their own; the other pools have `shared` together.

    `counts`: the nodes there are, by pool and offering.
    """

    shared: TierTargets = field(default_factory=lambda: TierTargets({CapacityType.ON_DEMAND: 1.0}))
    own: Mapping[str, TierTargets] = field(default_factory=dict)
    counts: Mapping[Place, int] = field(default_factory=dict)
    diversify: bool = False

    def choices(
        self, offerings: Sequence[Offering], more: Iterable[Offering], worth: Worth = Worth.FLEXIBLE
    ) -> list[list[Offering]]:
        """Groups of offerings in the order in which to ask them. `more`: nodes that a plan has so far."""
        counts = self._with(more)
        ranks = {pool: self._ranks(pool, counts, worth) for pool in {one.pool for one in offerings}}
        groups: defaultdict[tuple[int, int], list[Offering]] = defaultdict(list)
        for one in offerings:
            rank = ranks[one.pool].get(one.key.capacity_type)
            if rank is not None:
                groups[rank, -one.priority].append(one)
        return [groups[key] for key in sorted(groups)]

    def cheapest(self, offerings: Sequence[Offering], more: Sequence[Offering]) -> Offering | None:
        """For a node that nobody asked for yet: the lowest price for a GPU, spread as spot should be."""
        for group in self.choices(offerings, more):
            best = min(group, key=_price_of_gpu)
            return self.elsewhere(best, group, more) or best
        return None

    def elsewhere(
        self, chosen: Offering, offerings: Sequence[Offering], more: Iterable[Offering]
    ) -> Offering | None:
        """The same GPUs on spot elsewhere, if the chosen offering has its part of the nodes already."""
        counts = self._with(more)
        if not self._is_full(chosen, counts):
            return None
        others = [
            one
            for one in offerings
            if one.pool == chosen.pool
            and one.key.capacity_type is chosen.key.capacity_type
            and one.instance.gpu == chosen.instance.gpu
            and one.instance.gpu_count == chosen.instance.gpu_count
            and one.compared_nano_usd <= chosen.compared_nano_usd * SPREAD_PRICE
            and not self._is_full(one, counts)
        ]
        return min(others, key=_price_of_gpu, default=None)

    def _with(self, more: Iterable[Offering]) -> Counter[Place]:
        counts = Counter(self.counts)
        counts.update((one.pool, one.key) for one in more)
        return counts

    def _ranks(self, pool: str, counts: Mapping[Place, int], worth: Worth) -> dict[CapacityType, int]:
        targets = self.own.get(pool, self.shared)
        nodes: Counter[CapacityType] = Counter()
        for (name, key), count in counts.items():
            if name == pool if pool in self.own else name not in self.own:
                nodes[key.capacity_type] += count
        allowed = targets.ranked(nodes)
        ordered = [tier for tier in TIER_ORDER.get(worth, allowed) if tier in allowed]
        return {tier: rank for rank, tier in enumerate(ordered)}

    def _is_full(self, offering: Offering, counts: Mapping[Place, int]) -> bool:
        if not self.diversify or offering.key.capacity_type is not CapacityType.SPOT:
            return False
        spot = sum(count for (_, key), count in counts.items() if key.capacity_type is CapacityType.SPOT)
        mine = sum(count for (_, key), count in counts.items() if key == offering.key)
        return mine + 1 > max(1, math.ceil(OFFERING_CAP * (spot + 1)))


def _price_of_gpu(offering: Offering) -> tuple[float, OfferingKey]:
    return offering.compared_nano_usd / offering.instance.gpu_count, offering.key
