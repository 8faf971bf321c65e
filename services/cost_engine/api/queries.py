"""Questions about costs, answered from the store. Every replica can answer them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from gpuloom.errors import InvalidRequestError, NotReadyError
from gpuloom.model import cost as model
from gpuloom.runtime.clock import Clock
from services.cost_engine.api.rules import TeamRules
from services.cost_engine.core.grouping import (
    LABEL_PREFIX,
    Amounts,
    CostFact,
    GroupedRow,
    check_dimensions,
    grouped,
    total,
)
from services.cost_engine.core.intervals import (
    DAY_NS,
    HOUR_NS,
    NANOSECONDS_PER_SECOND,
    UNITS_PER_GPU,
    day_of,
    hour_of,
)
from services.cost_engine.core.prices import PriceBook
from services.cost_engine.core.savings import monthly, savings_of
from services.cost_engine.core.teams import TeamRule
from services.cost_engine.ingest.consumer import now_ns
from services.cost_engine.store.costs import Window
from services.cost_engine.store.store import CostStore

MAX_SPAN_NS = 3 * 366 * DAY_NS
MAX_HOURS_BY_HOUR = 24 * 92
MAX_LINES = 20_000
"""Of an answer, which is held as a whole: about 1 KiB each, several times that as JSON."""
HEAVY_AT_ONCE = 2
MAX_WAITING = 32
SPOOL_NS = DAY_NS
"""So long an agent keeps windows: later none can come."""
EARLIEST, LATEST = datetime(1975, 1, 1, tzinfo=UTC), datetime(2240, 1, 1, tzinfo=UTC)
"""Times outside, and windows that begin long before, do not fit a column."""
_STEPS = {"all": 0, "hour": HOUR_NS, "day": DAY_NS}
_COLUMNS = frozenset({"namespace", "node", "pool", "capacity_type", "instance_type", "quality"})
_ALL = _COLUMNS | {"owner", "mechanism"}
_MANY = frozenset({"owner", "node"})

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Answer:
    window: Window
    lines: tuple[model.CostLine, ...]
    total: model.CostAmounts
    reconciled: bool
    computed_until: datetime | None
    gaps: tuple[model.CostGap, ...]


class Queries:
    def __init__(self, store: CostStore, rules: TeamRules, clock: Clock, hours_per_month: int) -> None:
        self._store = store
        self._rules = rules
        self._clock = clock
        self.hours_per_month = hours_per_month
        self._heavy = asyncio.Semaphore(HEAVY_AT_ONCE)
        self._waiting = 0

    async def costs(self, question: model.CostQuestion) -> Answer:
        """Raise InvalidRequestError for what can't be asked."""
        try:
            check_dimensions((*question.group_by, *question.filters))
        except ValueError as error:
            raise InvalidRequestError(str(error)) from None
        window = self.window(question)
        rows = await self._rows(window, question)
        now = now_ns(self._clock)
        computed = await self._store.computed_until_ns()
        settled = window.end_ns + SPOOL_NS <= now
        marked = await self._store.has_marks(window.start_ns, window.end_ns)
        return Answer(
            window=window,
            lines=tuple(
                model.CostLine(moment(row.bucket_ns), row.group, amounts_of(row.amounts)) for row in rows
            ),
            total=amounts_of(total(rows)),
            reconciled=settled and not marked,
            computed_until=None if computed is None else moment(computed),
            gaps=tuple(
                model.CostGap(gap.node_uid, gap.pod_uid, moment(gap.start_ns), moment(gap.end_ns), gap.reason)
                for gap in await self._store.gaps(window.start_ns, window.end_ns)
            ),
        )

    async def facts(self, window: Window) -> list[CostFact]:
        """With everything that rows can be told apart by. All at once: ask for a step of time."""
        return await self._fold(window, _ALL, list)

    async def savings(self, start: datetime | None, end: datetime | None) -> model.SavingsReport:
        window = self.window(model.CostQuestion(start, end), default_days=30)
        found = await self._fold(window, _ALL, savings_of)
        return model.SavingsReport(
            found.baseline,
            found.actual,
            tuple(
                model.MechanismSaving(one.mechanism, one.nano_usd, one.estimated) for one in found.mechanisms
            ),
            moment(window.start_ns),
            moment(window.end_ns),
        )

    async def summary(self, book: PriceBook) -> model.CostSummary:
        now = now_ns(self._clock)
        rate = priced = unpriced = 0
        for node in await self._store.nodes(now - 1, now):
            price = book.at(node.traits, now)
            if price is None:
                unpriced += 1
            else:
                priced += 1
                rate += price.nano_usd_per_hour
        since = await self._store.epoch_ns(now)
        start = day_of(since)
        today = await self._sum(Window(max(start, day_of(now)), now + HOUR_NS))
        everything = await self._sum(Window(start, now + HOUR_NS))
        return model.CostSummary(
            nano_usd_per_hour=rate,
            nano_usd_per_month=monthly(rate, self.hours_per_month),
            hours_per_month=self.hours_per_month,
            priced_nodes=priced,
            unpriced_nodes=unpriced,
            today=today,
            total=everything,
            since=moment(since),
        )

    async def node_prices(self, book: PriceBook) -> tuple[list[model.NodePrice], tuple[str, ...]]:
        """Of the nodes that are there, and the types of those that have none."""
        now = now_ns(self._clock)
        found, missing = [], set()
        for node in await self._store.nodes(now - 1, now):
            price = book.at(node.traits, now)
            if price is None:
                missing.add(node.traits.instance_type or node.traits.name)
            else:
                found.append(model.NodePrice(node.node_uid, price.nano_usd_per_hour, price.quality))
        return found, tuple(sorted(missing))

    def window(self, question: model.CostQuestion, default_days: int = 1) -> Window:
        """Whole hours; whole days where it is cut into days, or where no hours are kept any more.

        Raise InvalidRequestError for none.
        """
        end = question.end or self._clock.now()
        if not all(EARLIEST <= each <= LATEST for each in (end, question.start or end)):
            raise InvalidRequestError(f"ask for a time from {EARLIEST.year} to {LATEST.year}")
        start = question.start or end - timedelta(days=default_days)
        step_ns = _STEPS[question.step]
        start_ns, end_ns = ns_of(start), ns_of(end)
        if not start_ns < end_ns:
            raise InvalidRequestError("the window must end after it begins")
        if end_ns - start_ns > MAX_SPAN_NS:
            raise InvalidRequestError("ask for at most three years at once")
        if step_ns == HOUR_NS and end_ns - start_ns > MAX_HOURS_BY_HOUR * HOUR_NS:
            raise InvalidRequestError("ask for at most 92 days by hour")
        # Of a day whose hours are dropped its sum is known alone: half of it would look like no cost.
        dropped_ns = hour_of(now_ns(self._clock) - self._store.settings.hourly_retention_ns)
        if step_ns == HOUR_NS and start_ns < dropped_ns:
            days = self._store.settings.hourly_retention_ns // DAY_NS
            raise InvalidRequestError(f"costs by hour are kept for {days} days: ask by day")
        first = DAY_NS if step_ns == DAY_NS or start_ns < dropped_ns else HOUR_NS
        last = DAY_NS if step_ns == DAY_NS or end_ns < dropped_ns else HOUR_NS
        return Window(start_ns - start_ns % first, -(-end_ns // last) * last, step_ns)

    async def _sum(self, window: Window) -> model.CostAmounts:
        return amounts_of(total(grouped(await self._store.facts(window, frozenset()), ())))

    async def _rows(self, window: Window, question: model.CostQuestion) -> list[GroupedRow]:
        asked = {*question.group_by, *question.filters}
        columns = asked & _COLUMNS
        if any(name in ("pod", "workload", "team") or name.startswith(LABEL_PREFIX) for name in asked):
            columns |= {"owner", "namespace"}
        if "team" in asked:
            columns |= {"pool"}
        rules = self._rules.rules

        def rows(facts: Iterable[CostFact]) -> list[GroupedRow]:
            kept = (kept for fact in facts for kept in _filtered(fact, question.filters, rules))
            return grouped(kept, question.group_by, rules, MAX_LINES)

        return await self._fold(window, frozenset(columns), rows)

    async def _fold(
        self, window: Window, columns: frozenset[str], work: Callable[[Iterable[CostFact]], Result]
    ) -> Result:
        """Questions that read every pod or node wait for each other; others are answered beside them."""
        if not columns & _MANY:
            return await self._store.fold(window, columns, work)
        if self._waiting >= MAX_WAITING:
            raise NotReadyError("too many questions by pod, label or node at once: ask again later")
        self._waiting += 1
        try:
            await self._heavy.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._store.fold(window, columns, work)
        finally:
            self._heavy.release()


def _filtered(
    fact: CostFact, filters: Mapping[str, Sequence[str]], rules: Sequence[TeamRule]
) -> list[CostFact]:
    """What is left of it: a team may pay for a part, which is that team's from then on."""
    kept = [fact]
    for name, allowed in filters.items():
        kept = [
            replace(one, amounts=row.amounts, team=row.group[0] if name == "team" else one.team)
            for one in kept
            for row in grouped([one], (name,), rules)
            if row.group[0] in allowed
        ]
    return kept


def amounts_of(amounts: Amounts) -> model.CostAmounts:
    return model.CostAmounts(
        cost=amounts.cost,
        used=amounts.used,
        idle=amounts.idle,
        unknown=amounts.unknown,
        unallocated=amounts.unallocated,
        baseline=amounts.baseline,
        on_demand=amounts.on_demand,
        gpu_seconds=amounts.unit_ms / UNITS_PER_GPU / 1000,
        unpriced_seconds=amounts.unpriced_ns / NANOSECONDS_PER_SECOND,
        energy_mj=amounts.energy_mj,
    )


def moment(time_ns: int) -> datetime:
    return datetime.fromtimestamp(time_ns // NANOSECONDS_PER_SECOND, UTC)


def ns_of(time: datetime) -> int:
    return int(time.timestamp()) * NANOSECONDS_PER_SECOND
