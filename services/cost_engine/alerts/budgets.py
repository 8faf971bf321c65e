"""Looks at every budget when costs are computed: its spend, its forecast, its alerts, its status.

A crossing is written down before anybody is told, and each receiver once it was told: a restart or another
leader tells only those who were not. A process killed between telling and writing tells once more.

Receivers are told together and for a bounded time: one that hangs holds up neither the others nor the bill.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from sqlalchemy.orm import Session

from gpuloom.codec.custom.budget import cost_budget, cost_budget_status_to_json
from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventKind, EventRecorder
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import JsonObject, resource_version_of
from gpuloom.kube.resources import COST_BUDGETS
from gpuloom.model import cost as model
from gpuloom.model.budget import AlertSeverity, CostBudget, CostBudgetStatus
from gpuloom.runtime.clock import Clock, deadline
from services.cost_engine.api.queries import moment
from services.cost_engine.api.rules import TeamRules
from services.cost_engine.core.budgets import (
    BudgetStanding,
    Crossing,
    Spent,
    crossings,
    enforcement_problem,
    forecast,
    is_outdated,
    label_names,
    period_at,
    spent_of,
    state_of,
    verdict_of,
)
from services.cost_engine.core.grouping import CostFact
from services.cost_engine.core.intervals import DAY_NS, HOUR_NS, day_of
from services.cost_engine.ingest.consumer import now_ns
from services.cost_engine.metrics import CostMetrics
from services.cost_engine.ports import AlertChannel
from services.cost_engine.store import alerts as store_alerts
from services.cost_engine.store.store import CostStore

_log = logging.getLogger(__name__)

MAX_BUDGETS = 1000
MAX_SENDS = 32
SEND_S = 60.0
STATUS_TIMEOUT_S = 5.0
REASON = "BudgetReached"


class Channels(Protocol):
    def of(self, crossing: Crossing) -> Sequence[AlertChannel]:
        """Who is to be told of it."""


class BudgetWriter:
    """Kubernetes' side: events about budgets, and their status."""

    def __init__(self, client: KubeClient, recorder: EventRecorder) -> None:
        self._client = client
        self._recorder = recorder

    def tell(self, obj: JsonObject, crossing: Crossing) -> None:
        is_info = crossing.alert.severity is AlertSeverity.INFO
        kind = EventKind.NORMAL if is_info else EventKind.WARNING
        self._recorder.record(obj, kind, REASON, crossing.text)

    async def write_status(self, obj: JsonObject, status: CostBudgetStatus) -> None:
        told = cost_budget_status_to_json(status)
        wanted = {key: value for key, value in told.items() if value is not None}
        if (obj.get("status") or {}) == wanted:
            return
        name = str(obj["metadata"]["name"])
        await self._client.patch_status(
            COST_BUDGETS,
            name,
            None,
            {"status": told},
            resource_version=resource_version_of(obj),
            timeout_s=STATUS_TIMEOUT_S,
        )


class _Spending:
    """What one round reads, each time once."""

    def __init__(self, store: CostStore, names: frozenset[str]) -> None:
        self._store = store
        self._names = names
        self._read: dict[tuple[int, int], list[CostFact]] = {}

    async def between(self, start_ns: int, end_ns: int) -> list[CostFact]:
        span = start_ns, end_ns
        if span not in self._read:
            self._read[span] = await self._store.spending(start_ns, end_ns, self._names)
        return self._read[span]


class Budgets:
    def __init__(
        self,
        store: CostStore,
        observed: Informer,
        rules: TeamRules,
        outside: tuple[BudgetWriter, Channels],
        clock: Clock,
        metrics: CostMetrics,
    ) -> None:
        self._store = store
        self._observed = observed
        self._rules = rules
        self._writer, self._channels = outside
        self._clock = clock
        self._metrics = metrics
        self._standings: dict[str, BudgetStanding] = {}
        self._first_days: dict[str, tuple[Spent, list[Spent]]] = {}
        """By budget: the first day on which anything counted against it, and its hours."""
        self._due: list[tuple[Crossing, AlertChannel]] = []
        self._failing: set[str] = set()
        """Names of channels that did not take the last alert: they are told after the others."""

    def reports(self) -> list[model.BudgetReport]:
        return [_report(standing) for _, standing in sorted(self._standings.items())]

    def verdicts(self) -> list[model.BudgetVerdict]:
        now = now_ns(self._clock)
        found = []
        for _, standing in sorted(self._standings.items()):
            verdict = verdict_of(standing, self._rules.rules, now)
            if verdict is not None:
                found.append(
                    model.BudgetVerdict(verdict.budget, verdict.action, verdict.reason, verdict.matchers)
                )
        return found

    async def look(self) -> None:
        """Once, at all of them. One that fails is tried again the next time, and stands as it did."""
        watched = self._watched()
        spending = _Spending(self._store, label_names((budget for _, budget in watched), self._rules.rules))
        self._due = []
        standings: dict[str, BudgetStanding] = {}
        for obj, budget in watched:
            try:
                standings[budget.meta.name] = await self._look_at(obj, budget, spending)
            except GpuloomError as error:
                _log.warning("budget not looked at", extra={"reason": str(error)})
                last = self._standings.get(budget.meta.name)
                if last is not None and self._still_holds(last, budget):
                    standings[budget.meta.name] = last
        for name in self._standings.keys() - standings.keys():
            for family in (self._metrics.budget_spend, self._metrics.budget_forecast):
                family.remove(name)
            self._first_days.pop(name, None)
        self._standings = standings
        await self._send_due()

    def _watched(self) -> list[tuple[JsonObject, CostBudget]]:
        found = []
        for obj in self._observed.objects()[:MAX_BUDGETS]:
            try:
                budget = cost_budget(obj)
            except InvalidRequestError as error:
                _log.warning("budget not understood", extra={"reason": str(error)})
                continue
            if budget.spec.enabled:
                found.append((obj, budget))
        return found

    def _still_holds(self, last: BudgetStanding, budget: CostBudget) -> bool:
        same = (last.budget.meta.uid, last.budget.spec) == (budget.meta.uid, budget.spec)
        return same and now_ns(self._clock) < last.period.end_ns

    async def _look_at(self, obj: JsonObject, budget: CostBudget, spending: _Spending) -> BudgetStanding:
        now = now_ns(self._clock)
        period = period_at(budget.spec.period, now)
        facts = await spending.between(period.start_ns, min(period.end_ns, now - now % HOUR_NS + HOUR_NS))
        stretches = spent_of(facts, budget.spec.scope, self._rules.rules, day_of(now))
        spend = sum(stretch.amount for stretch in stretches)
        found = crossings(budget, period, spend)
        known = await self._note_crossings(budget, found, (period.start_ns, spend))
        await self._tell(obj, found, known)
        unpriced = any(fact.amounts.unpriced_ns for fact in facts)
        at_limit = [each.crossed_ns for each in known.values() if each.threshold_percent >= 100]
        standing = BudgetStanding(
            budget=budget,
            period=period,
            spend=spend,
            forecast=forecast(await self._begun(budget, stretches, spending), period, now),
            state=state_of(budget, spend, unpriced=unpriced),
            reached_ns=min(at_limit) if at_limit and spend >= budget.spec.limit_nano_usd else None,
            crossed=tuple(sorted(known)),
        )
        self._show(standing)
        status = CostBudgetStatus(
            spend,
            standing.forecast.expected,
            standing.state,
            enforcement_problem(budget, self._rules.rules),
        )
        try:
            await self._writer.write_status(obj, status)
        except GpuloomError as error:
            # Whoever is stopped does not depend on what people are shown.
            fields = {"budget": budget.meta.name, "reason": str(error)}
            _log.warning("status of a budget not written, trying again", extra=fields)
        return standing

    async def _begun(self, budget: CostBudget, stretches: list[Spent], spending: _Spending) -> list[Spent]:
        """With the hours of the first day: what is spent begins at some hour of it."""
        if not stretches or stretches[0].length_ns < DAY_NS:
            return stretches
        first, name = stretches[0], budget.meta.name
        known = self._first_days.get(name)
        if known is None or known[0] != first:
            facts = await spending.between(first.start_ns, first.start_ns + DAY_NS)
            hours = spent_of(facts, budget.spec.scope, self._rules.rules, first.start_ns)
            known = self._first_days[name] = first, hours
        return [*known[1], *stretches[1:]]

    async def _note_crossings(
        self, budget: CostBudget, found: Sequence[Crossing], stand: tuple[int, int]
    ) -> Mapping[str, store_alerts.CrossedAlert]:
        """All that were crossed in the period, by alert, each since when it was first."""
        (start_ns, spend), uid, now = stand, budget.meta.uid, now_ns(self._clock)
        known = await self._store.read(lambda session: store_alerts.crossed_alerts(session, uid, start_ns))
        outdated = [
            each.alert
            for each in known.values()
            if is_outdated(budget, spend, (each.alert, each.threshold_percent, each.limit))
        ]
        if not outdated and all(crossing.alert.name in known for crossing in found):
            return known

        def note(session: Session) -> Mapping[str, store_alerts.CrossedAlert]:
            store_alerts.forget_crossings(session, uid, start_ns, outdated)
            store_alerts.note_crossings(session, found, now)
            return store_alerts.crossed_alerts(session, uid, start_ns)

        return await self._store.write(note)

    async def _tell(
        self, obj: JsonObject, found: Sequence[Crossing], known: Mapping[str, store_alerts.CrossedAlert]
    ) -> None:
        for crossing in found:
            told = known[crossing.alert.name].told
            if "event" not in told:
                self._writer.tell(obj, crossing)
                await self._note(crossing, "event")
            self._due += [
                (crossing, channel) for channel in self._channels.of(crossing) if channel.name not in told
            ]

    async def _send_due(self) -> None:
        slots = asyncio.Semaphore(MAX_SENDS)
        ordered = sorted(self._due, key=lambda each: each[1].name in self._failing)
        try:
            async with deadline(self._clock, SEND_S), asyncio.TaskGroup() as group:
                for crossing, channel in ordered:
                    group.create_task(self._send(crossing, channel, slots))
        except TimeoutError:
            _log.warning("not all alerts were sent in time, trying again")

    async def _send(self, crossing: Crossing, channel: AlertChannel, slots: asyncio.Semaphore) -> None:
        async with slots:
            self._failing.add(channel.name)
            try:
                await channel.send(crossing)
                await self._note(crossing, channel.name)
            except GpuloomError as error:
                self._metrics.alerts.labels("failed").inc()
                fields = {"budget": crossing.budget, "channel": channel.name, "reason": str(error)}
                _log.warning("alert not sent, trying again", extra=fields)
                return
            self._failing.discard(channel.name)
            self._metrics.alerts.labels("sent").inc()

    async def _note(self, crossing: Crossing, channel: str) -> None:
        now = now_ns(self._clock)
        await self._store.write(lambda session: store_alerts.note_delivery(session, crossing, channel, now))

    def _show(self, standing: BudgetStanding) -> None:
        limit, name = standing.budget.spec.limit_nano_usd, standing.budget.meta.name
        self._metrics.budget_spend.labels(name).set(standing.spend / limit)
        self._metrics.budget_forecast.labels(name).set(standing.forecast.expected / limit)


def _report(standing: BudgetStanding) -> model.BudgetReport:
    spec = standing.budget.spec
    return model.BudgetReport(
        name=standing.budget.meta.name,
        period=spec.period,
        period_start=moment(standing.period.start_ns),
        period_end=moment(standing.period.end_ns),
        limit=spec.limit_nano_usd,
        spend=standing.spend,
        forecast=standing.forecast.expected,
        forecast_low=standing.forecast.low,
        forecast_high=standing.forecast.high,
        state=standing.state,
        action=spec.enforcement.action,
        crossed=standing.crossed,
    )
