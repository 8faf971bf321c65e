"""What a GPU costs an hour, as the cost engine tells. Where no price is known, that is said: none is zero."""

import logging

from gpuloom.clients.cost import list_prices
from gpuloom.errors import GpuloomError
from gpuloom.model.money import nano_usd
from gpuloom.model.snapshot import NodeFacts
from gpuloom.rpc.channel import RpcChannel
from gpuloom.runtime.clock import Clock

ON_DEMAND, SPOT = "on-demand", "spot"
REFRESH_S = 600.0
RETRY_S = 5.0

_log = logging.getLogger(__name__)


class GpuPrices:
    """The cost engine's, of the node itself as it is billed; of one that it does not know yet those of its
    region, instance type and capacity type; else the operator's one; or none.
    """

    def __init__(self, usd_per_gpu_hour: float | None) -> None:
        self._otherwise = None if usd_per_gpu_hour is None else nano_usd(str(usd_per_gpu_hour))
        self._listed: dict[tuple[str, str, str], int] = {}
        self._billed: dict[str, int] = {}
        """By node UID."""

    def nano_usd_per_gpu_hour(self, facts: NodeFacts) -> int | None:
        place, cards = facts.place, len(facts.state.gpus)
        if not cards:
            return None
        billed = self._billed.get(facts.state.node_uid)
        if billed is not None:
            return billed // cards
        # A spot machine costs a part of what it does on demand: that price would promise what nobody saves.
        kinds = (SPOT,) if place.capacity_type == SPOT else (place.capacity_type, ON_DEMAND)
        for region in (place.region, ""):
            for capacity_type in kinds:
                found = self._listed.get((region, place.instance_type, capacity_type))
                if found is not None:
                    return found // cards
        return self._otherwise

    async def follow(self, channel: RpcChannel, clock: Clock) -> None:
        """Ask again and again. What was known stays while the cost engine is away."""
        while True:
            try:
                told = await list_prices(channel)
            except GpuloomError as error:
                _log.info("prices not read", extra={"reason": str(error)})
                await clock.sleep(RETRY_S)
                continue
            listed: dict[tuple[str, str, str], int] = {}
            for price in sorted(told.prices, key=lambda each: -each.nano_usd_per_hour):
                # Zones of one region may differ: the lowest promises no more than is saved anywhere.
                for region in (price.region, ""):
                    listed[region, price.instance_type, price.capacity_type] = price.nano_usd_per_hour
            self._listed = listed
            self._billed = {node.node_uid: node.nano_usd_per_hour for node in told.nodes}
            # A cost engine that has only just started has none yet.
            await clock.sleep(REFRESH_S if listed else RETRY_S)
