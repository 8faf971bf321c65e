"""What was told of prices reaches every hour that it holds for, whenever costs are computed meanwhile."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import UnavailableError
from gpuloom.runtime.clock import FakeClock, SystemClock
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig, database_url
from services.cost_engine.core.intervals import DAY_NS, HOUR_NS, NodeInterval, NodeTraits
from services.cost_engine.core.prices import Price, PriceBook, Source
from services.cost_engine.core.tracking import NodeChange
from services.cost_engine.engine import Engine
from services.cost_engine.ingest.consumer import now_ns
from services.cost_engine.metrics import CostMetrics, OpenCostMetrics
from services.cost_engine.prices.refresher import Prices
from services.cost_engine.store.costs import Window
from services.cost_engine.store.store import CostStore, FactChanges
from tests.mesh.waiting import until


@dataclass
class Cloud:
    name: str
    told: Sequence[Price] = ()
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def fetch(self, now_ns: int) -> Sequence[Price]:
        await self.answers.wait()
        return self.told


class Broken(CostStore):
    """Its book can't be read for a while."""

    broken = False

    async def book(self) -> PriceBook:
        if self.broken:
            raise UnavailableError("the database is away")
        return await super().book()


@pytest.mark.parametrize("broken", [False, True])
async def test_costs_that_are_computed_while_a_cloud_is_slow_have_the_prices_of_the_others(
    tmp_path: Path, broken: bool
) -> None:
    clock, registry = FakeClock(), CollectorRegistry()
    config = StoreConfig(url=database_url(f"sqlite:///{tmp_path}/cost.db"), threads=2, timeout_s=10.0)
    async with Database(config, SystemClock()) as database:
        store, metrics = Broken(database), CostMetrics(registry)
        await store.open()
        start = now_ns(clock) // DAY_NS * DAY_NS
        node = NodeInterval("n1", start, None, NodeTraits("n", 1, instance_type="t"))
        await store.save_facts(FactChanges([NodeChange(node, (start, start))]), start)
        await store.save_prices([Price("", "", "", "t", "on-demand", 5, 0, None, Source.AWS)], start)
        await clock.advance((start - now_ns(clock)) / 1e9 + 3 * 3600)
        fast = Cloud("aws", [Price("", "", "", "t", "on-demand", 9, start + HOUR_NS, None, Source.AWS)])
        slow = Cloud("azure")
        prices = Prices(store, [fast, slow], None, clock, metrics)
        engine = Engine(store, prices, clock, (metrics, OpenCostMetrics(registry)))
        await prices.start()
        await engine.compute_once()

        refreshing = asyncio.create_task(prices.refresh(3600))
        store.broken = broken
        fast.answers.set()
        await until(lambda: broken or prices.book.at(node.traits, start + HOUR_NS).nano_usd_per_hour == 9)  # type: ignore[union-attr]
        if broken:
            await until(lambda: metrics.price_failures.labels("aws")._value.get() == 1)
            with pytest.raises(UnavailableError):
                await engine.compute_once()
            store.broken = False
        await engine.compute_once()
        refreshing.cancel()

        facts = await store.facts(Window(start, start + DAY_NS), frozenset())
        assert sum(fact.amounts.cost for fact in facts) == 5 + 9 + 9
