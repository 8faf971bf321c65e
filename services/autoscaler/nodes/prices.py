"""Prices from the cost engine, as offerings name them."""

from collections.abc import Mapping

from gpuloom.clients.cost import list_prices
from gpuloom.model.policies import CapacityType, CloudProvider
from gpuloom.rpc.channel import RpcChannel
from services.autoscaler.core.offerings import OfferingKey

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
