"""What recent pods asked for, learned pod by pod, and the prices that placement makes of it.

Every replica learns from its own informer, so a new leader knows what the old one knew; what is saved is for
those that start. New prices are made in a thread, seldom, from values: nothing waits for them.
"""

import asyncio

from gpuloom.model.request import PodRequest
from gpuloom.placement.demand import Demand, pods_until_repricing
from gpuloom.placement.fleet.fleet import Fleet
from gpuloom.placement.potential import prices_for


class Learning:
    def __init__(self, fleet: Fleet) -> None:
        self.demand = Demand()
        self._fleet = fleet
        self._since_pricing = 0
        self._due = asyncio.Event()

    def adopt(self, demand: Demand) -> None:
        """Begin with what was known before; of pods learned meanwhile nothing is kept."""
        self.demand = demand
        self._due.set()

    def learn(self, request: PodRequest) -> None:
        """Of every GPU pod once, when it comes."""
        self.demand = self.demand.with_pod(request)
        self._since_pricing += 1
        if self._since_pricing >= pods_until_repricing(int(self.demand.pods)):
            self._due.set()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            self._since_pricing = 0
            prices = await asyncio.to_thread(prices_for, self.demand, self._fleet.supply())
            self._fleet.set_prices(prices)
