"""What a GPU costs an hour, as the cost engine tells. Where no price is known, that is said: none is zero."""

import logging

from gpuloom.clients.cost import list_prices
from gpuloom.errors import GpuloomError
from gpuloom.model.money import nano_usd
from gpuloom.model.snapshot import NodeFacts
from gpuloom.rpc.channel import RpcChannel
from gpuloom.runtime.clock import Clock

ON_DEMAND = "on-demand"
REFRESH_S = 600.0
RETRY_S = 5.0

_log = logging.getLogger(__name__)


class GpuPrices:
    """The cost engine's, by region, instance type and capacity type; else the operator's one; or none."""

    def __init__(self, usd_per_gpu_hour: float | None) -> None:
        self._otherwise = None if usd_per_gpu_hour is None else nano_usd(str(usd_per_gpu_hour))
        self._listed: dict[tuple[str, str, str], int] = {}

    def nano_usd_per_gpu_hour(self, facts: NodeFacts) -> int | None:
        place, cards = facts.place, len(facts.state.gpus)
        if not cards:
            return None
        for region in (place.region, ""):
            for capacity_type in (place.capacity_type or ON_DEMAND, ON_DEMAND):
                found = self._listed.get((region, place.instance_type, capacity_type))
                if found is not None:
                    return found // cards
        return self._otherwise

    async def follow(self, channel: RpcChannel, clock: Clock) -> None:
        """Ask again and again. What was known stays while the cost engine is away."""
        while True:
            try:
                prices = (await list_prices(channel)).prices
            except GpuloomError as error:
                _log.info("prices not read", extra={"reason": str(error)})
                await clock.sleep(RETRY_S)
                continue
            listed: dict[tuple[str, str, str], int] = {}
            for price in sorted(prices, key=lambda each: -each.nano_usd_per_hour):
                # Zones of one region may differ: the lowest promises no more than is saved anywhere.
                for region in (price.region, ""):
                    listed[region, price.instance_type, price.capacity_type] = price.nano_usd_per_hour
            self._listed = listed
            # A cost engine that has only just started has none yet.
            await clock.sleep(REFRESH_S if listed else RETRY_S)
