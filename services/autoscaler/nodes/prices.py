"""Prices from the cost engine, as offerings name them, and whose word on a price counts."""

from collections.abc import Mapping, Sequence

from gpuloom.clients.cost import list_prices
from gpuloom.model.policies import CapacityType, CloudProvider
from gpuloom.rpc.channel import RpcChannel
from services.autoscaler.core.buying.offerings import OfferingKey
from services.autoscaler.core.lifecycle.machines import PricedOffering

_FIRM = CapacityType.ON_DEMAND
_TIERS = {tier.value: tier for tier in CapacityType}


class CostEnginePrices:
    """`regions`: of which region a cloud's prices are asked for; absent: of any."""

    def __init__(self, channel: RpcChannel, regions: Mapping[CloudProvider, str]) -> None:
        self._channel = channel
        self._regions = regions

    async def prices(self, provider: CloudProvider) -> Mapping[OfferingKey, int]:
        """By type, zone and tier. Of several for a whole region the dearest, so that no bill surprises."""
        found: dict[OfferingKey, int] = {}
        region = self._regions.get(provider, "")
        listed = await list_prices(self._channel, provider=provider.value, region=region)
        for one in listed.prices:
            tier = _TIERS.get(one.capacity_type)
            if tier is not None:
                key = OfferingKey(one.instance_type, one.zone, tier)
                found[key] = max(one.nano_usd_per_hour, found.get(key, 0))
        return found


def on_demand_prices(
    told: Mapping[OfferingKey, int],
    offered: Mapping[CloudProvider, Sequence[PricedOffering]],
    given: Mapping[OfferingKey, int],
) -> dict[str, int]:
    """By machine type: a person's word, else the cloud's own, else the cost engine's."""
    by_cloud = {
        one.instance_type: one.nano_usd_per_hour
        for listed in offered.values()
        for one in listed
        if one.capacity_type is _FIRM
    }
    return {**_firm(told), **by_cloud, **_firm(given)}


def _firm(prices: Mapping[OfferingKey, int]) -> dict[str, int]:
    return {key.instance_type: nano for key, nano in prices.items() if key.capacity_type is _FIRM}
