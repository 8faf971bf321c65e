"""What the nodes cost a month, of 720 hours unless told otherwise, and what their tiers save. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuloom.model.claims import GpuNodeClaim
from gpuloom.model.money import NANO_PER_USD
from gpuloom.model.policies import CapacityType

HOURS_A_MONTH = 720


@dataclass(frozen=True, slots=True)
class Bill:
    """USD a month. `saved` is against the on-demand price of the same machines."""

    by_tier: Mapping[CapacityType, float] = field(default_factory=dict)
    saved: float = 0.0
    spot_percentage: float = 0.0


def monthly_bill(
    claims: Iterable[GpuNodeClaim],
    on_demand_nano: Mapping[str, int],
    hours: int = HOURS_A_MONTH,
) -> Bill:
    """`on_demand_nano`: price of an hour by machine type. A machine without a price counts nothing."""
    by_tier: defaultdict[CapacityType, int] = defaultdict(int)
    spot = spot_as_on_demand = saved = 0
    for claim in claims:
        price = claim.status.price_nano_usd_per_hour
        if price is None:
            continue
        offering = claim.spec.offering
        full = max(price, on_demand_nano.get(offering.instance_type, price))
        by_tier[offering.capacity_type] += price
        saved += full - price
        if offering.capacity_type is CapacityType.SPOT:
            spot += price
            spot_as_on_demand += full
    percentage = 100.0 * (1 - spot / spot_as_on_demand) if spot_as_on_demand else 0.0
    return Bill(
        {tier: nano * hours / NANO_PER_USD for tier, nano in by_tier.items()},
        saved * hours / NANO_PER_USD,
        percentage,
    )
