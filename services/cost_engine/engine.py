"""What the leader does: takes up what was known, follows, and computes.

1. Restore open intervals, list Kubernetes, and settle what ended meanwhile.
2. Follow nodes, pods and usage; keep prices.
3. Every now and then bring costs up to date, then look at budgets.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gpuloom.errors import GpuloomError
from gpuloom.model.money import usd
from gpuloom.runtime.clock import Clock
from services.cost_engine.core.intervals import DAY_NS, NANOSECONDS_PER_SECOND, UNITS_PER_GPU, day_of
from services.cost_engine.core.prices import CAPACITY_TYPES, ON_DEMAND, SPOT, Quality
from services.cost_engine.core.tracking import Tracker
from services.cost_engine.ingest.consumer import now_ns
from services.cost_engine.ingest.facts import FactWriter
from services.cost_engine.metrics import CostMetrics, OpenCostMetrics
from services.cost_engine.prices.refresher import Prices
from services.cost_engine.store.costs import Window
from services.cost_engine.store.store import CostStore

_log = logging.getLogger(__name__)

EXPIRE_S = 3600.0
STUCK_S = 900.0

Loop = Callable[[], Awaitable[None]]


class Engine:
    def __init__(
        self, store: CostStore, prices: Prices, clock: Clock, metrics: tuple[CostMetrics, OpenCostMetrics]
    ) -> None:
        self.loops: list[Loop] = []
        """What else runs while it leads."""
        self.after_compute: list[Loop] = []
        self.tracker: Tracker | None = None
        self._store = store
        self._prices = prices
        self._clock = clock
        self._metrics, self._opencost = metrics
        self._computed_s = clock.monotonic()
        self._started = False

    @property
    def started(self) -> bool:
        return self._started

    def stuck_reason(self) -> str | None:
        """The liveness check of a leader."""
        age_s = self._clock.monotonic() - self._computed_s
        if self._started and age_s > STUCK_S:
            return f"costs were not computed for {age_s:.0f} s"
        return None

    async def lead(self, facts: FactWriter, interval_s: float) -> None:
        self.tracker = facts.tracker
        await self._prices.start()
        await facts.start()
        self._started = True
        self._computed_s = self._clock.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for loop in (facts.run, lambda: self._compute(interval_s), self._expire, *self.loops):
                    group.create_task(_running(loop))
        finally:
            self._started = False

    async def compute_once(self) -> None:
        """Costs, then what follows from them."""
        started_s, now = self._clock.monotonic(), now_ns(self._clock)
        async with self._prices.changing:
            done = await self._store.compute(await self._prices.up_to_date(), now)
        self._computed_s = self._clock.monotonic()
        self._metrics.computed.inc(done)
        self._metrics.compute_duration.observe(self._computed_s - started_s)
        self._metrics.computed_until.set(now / NANOSECONDS_PER_SECOND)
        await self._show(now)
        for step in self.after_compute:
            await step()

    async def _compute(self, interval_s: float) -> None:
        while True:
            try:
                await self.compute_once()
            except GpuloomError as error:
                # What was marked stays marked; a database that is away for a while comes back.
                _log.warning("costs not computed", extra={"reason": str(error)})
            await self._clock.sleep(interval_s)

    async def _expire(self) -> None:
        while True:
            try:
                await self._store.expire(now_ns(self._clock))
            except GpuloomError as error:
                _log.warning("old windows not dropped", extra={"reason": str(error)})
            await self._clock.sleep(EXPIRE_S)

    async def _show(self, now: int) -> None:
        """Prices, nodes and today's cost as metrics."""
        rates = dict.fromkeys(CAPACITY_TYPES, 0)
        qualities = dict.fromkeys((*Quality, "missing"), 0)
        nodes = list(self.tracker.nodes.values()) if self.tracker else []
        for family in (self._opencost.gpu_hourly, self._opencost.gpu_count, self._opencost.total_hourly):
            family.clear()
        self._opencost.is_spot.clear()
        for node in nodes:
            traits, price = node.traits, self._prices.book.at(node.traits, now)
            qualities["missing" if price is None else price.quality] += 1
            labels = (traits.name, traits.name, traits.instance_type, traits.region, node.node_uid)
            self._opencost.gpu_count.labels(*labels).set(traits.gpu_count)
            self._opencost.is_spot.labels(*labels).set(traits.capacity_type == SPOT)
            if price is not None:
                rates[traits.capacity_type or ON_DEMAND] += price.nano_usd_per_hour
                hourly = float(usd(price.nano_usd_per_hour))
                self._opencost.total_hourly.labels(*labels).set(hourly)
                self._opencost.gpu_hourly.labels(*labels).set(hourly / traits.gpu_count)
        for kind, rate in rates.items():
            self._metrics.rate.labels(kind).set(float(usd(rate)))
        for quality, count in qualities.items():
            self._metrics.priced_nodes.labels(quality).set(count)
        self._metrics.unpriced_nodes.set(qualities["missing"])
        self._show_pods()
        today = await self._store.facts(Window(day_of(now), day_of(now) + DAY_NS), frozenset())
        for part in ("used", "idle", "unknown", "unallocated"):
            amount = sum(getattr(fact.amounts, part) for fact in today)
            self._metrics.today.labels(part).set(float(usd(amount)))

    def _show_pods(self) -> None:
        self._opencost.gpu_allocation.clear()
        if self.tracker is None:
            return
        for pod in self.tracker.pods.values():
            node = self.tracker.nodes.get(pod.node_uid)
            name = self.tracker.names.get(pod.pod_uid, ("", ""))
            node_name = node.traits.name if node else ""
            labels = (*name, node_name, "", node_name)
            self._opencost.gpu_allocation.labels(*labels).set(pod.claim.units / UNITS_PER_GPU)


async def _running(loop: Loop) -> None:
    await loop()
