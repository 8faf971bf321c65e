"""Budgets: their periods, what counts against them, what is to be told, and what new pods are stopped by."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase

from gpuloom.model.budget import (
    AlertSeverity,
    BudgetAction,
    BudgetAlert,
    BudgetPeriod,
    BudgetScope,
    BudgetState,
    CostBudget,
)
from gpuloom.model.cost import PodMatcher
from gpuloom.model.money import usd
from services.cost_engine.core.grouping import CostFact
from services.cost_engine.core.intervals import DAY_NS, HOUR_NS, NANOSECONDS_PER_SECOND, PodIdentity
from services.cost_engine.core.teams import TeamRule, team_amounts

BAND_DEVIATIONS = 1.28
"""Of ten forecasts about eight lie within so many standard deviations."""
MIN_STRETCHES = 3
"""Fewer say nothing about how spending varies."""


@dataclass(frozen=True, slots=True)
class Period:
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Spent:
    """In a stretch of time: an hour, or a whole day."""

    start_ns: int
    length_ns: int
    amount: int

    @property
    def hours(self) -> float:
        return self.length_ns / HOUR_NS


@dataclass(frozen=True, slots=True)
class Forecast:
    expected: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Crossing:
    """An alert of a budget whose threshold was reached in a period."""

    budget_uid: str
    budget: str
    period_start_ns: int
    alert: BudgetAlert
    spend: int
    limit: int

    @property
    def text(self) -> str:
        return (
            f"budget {self.budget}: {usd(self.spend):.2f} USD of {usd(self.limit):.2f} USD are spent, "
            f"at or above {self.alert.threshold_percent} %"
        )


@dataclass(frozen=True, slots=True)
class BudgetStanding:
    """`reached_ns`: when the limit was first found reached in this period; None: it is not."""

    budget: CostBudget
    period: Period
    spend: int
    forecast: Forecast
    state: BudgetState
    reached_ns: int | None = None
    crossed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    budget: str
    action: BudgetAction
    reason: str
    matchers: tuple[PodMatcher, ...]


def period_at(kind: BudgetPeriod, now_ns: int) -> Period:
    """The day, the week from Monday or the month, UTC, in which this time is."""
    now = datetime.fromtimestamp(now_ns // NANOSECONDS_PER_SECOND, UTC)
    day = now.replace(hour=0, minute=0, second=0)
    if kind is BudgetPeriod.DAY:
        first, last = day, day + timedelta(days=1)
    elif kind is BudgetPeriod.WEEK:
        first = day - timedelta(days=day.weekday())
        last = first + timedelta(days=7)
    else:
        first = day.replace(day=1)
        last = (first + timedelta(days=32)).replace(day=1)
    return Period(_ns(first), _ns(last))


def label_names(budgets: Iterable[CostBudget], rules: Sequence[TeamRule]) -> frozenset[str]:
    """The labels by which these tell pods apart."""
    scopes = [budget.spec.scope for budget in budgets]
    asked = {name for scope in scopes for name in scope.labels}
    if any(scope.teams for scope in scopes):
        asked |= {name for rule in rules for name in rule.labels}
    return frozenset(asked)


def spent_of(
    facts: Iterable[CostFact], scope: BudgetScope, rules: Sequence[TeamRule], today_ns: int
) -> list[Spent]:
    """What counts against the scope, in order: days before today, and hours. A scope without any limit is
    the whole bill."""
    found: dict[int, int] = {}
    for fact in facts:
        amount = _counted(fact, scope, rules)
        if amount:
            found[fact.bucket_ns] = found.get(fact.bucket_ns, 0) + amount
    return [
        Spent(start_ns, DAY_NS if start_ns < today_ns else HOUR_NS, found[start_ns])
        for start_ns in sorted(found)
    ]


def forecast(stretches: Sequence[Spent], period: Period, now_ns: int) -> Forecast:
    """What was spent, and the mean of the time so far for that to come, with a band by how hours vary."""
    spent = sum(stretch.amount for stretch in stretches)
    first_ns = stretches[0].start_ns if stretches else now_ns
    passed = max(0.0, (now_ns - max(first_ns, period.start_ns)) / HOUR_NS)
    left = max(0.0, (period.end_ns - now_ns) / HOUR_NS)
    if passed == 0:
        return Forecast(spent, spent, spent)
    mean = spent / passed
    # The hour that lasts is not complete, and would look like a quiet one.
    whole = [stretch for stretch in stretches if stretch.start_ns + stretch.length_ns <= now_ns]
    deviation = _deviation(whole) if len(whole) >= MIN_STRETCHES else mean
    band = BAND_DEVIATIONS * deviation * math.sqrt(left)
    rest = mean * left
    return Forecast(spent + round(rest), spent + round(max(0.0, rest - band)), spent + round(rest + band))


def crossings(budget: CostBudget, period: Period, spend: int) -> list[Crossing]:
    """Every alert whose threshold is reached, the lowest first."""
    limit = budget.spec.limit_nano_usd
    reached = [alert for alert in budget.spec.alerts if spend * 100 >= limit * alert.threshold_percent]
    if spend >= limit and not any(alert.threshold_percent == 100 for alert in budget.spec.alerts):
        # Grace counts from when the limit was reached, whether or not somebody wants to hear of it.
        reached.append(BudgetAlert(_free_name(budget), 100, AlertSeverity.CRITICAL))
    return [
        Crossing(budget.meta.uid, budget.meta.name, period.start_ns, alert, spend, limit)
        for alert in sorted(reached, key=lambda alert: (alert.threshold_percent, alert.name))
    ]


def is_outdated(budget: CostBudget, spend: int, noted: tuple[str, int, int]) -> bool:
    """Whether a crossing that was noted is none of the budget as it is now: the next one is news again.

    `noted`: the alert, its threshold and the limit, then. A limit that is lowered, or raised to less than
    what is spent, leaves it as it is.
    """
    name, percent, limit = noted
    now = next((alert.threshold_percent for alert in budget.spec.alerts if alert.name == name), percent)
    present = budget.spec.limit_nano_usd
    return now != percent or (limit != present and spend * 100 < present * now)


def _free_name(budget: CostBudget) -> str:
    """Of the alert at the limit that nobody asked for: an alert that is named like it must not hide it."""
    names = {alert.name for alert in budget.spec.alerts}
    return next(name for name in ("limit", *(f"limit-{number}" for number in range(17))) if name not in names)


def state_of(budget: CostBudget, spend: int, *, unpriced: bool) -> BudgetState:
    if spend >= budget.spec.limit_nano_usd:
        return BudgetState.EXCEEDED
    if unpriced:
        return BudgetState.UNKNOWN
    lowest = min((alert.threshold_percent for alert in budget.spec.alerts), default=100)
    warned = spend * 100 >= budget.spec.limit_nano_usd * lowest
    return BudgetState.WARNING if warned else BudgetState.OK


def verdict_of(standing: BudgetStanding, rules: Sequence[TeamRule], now_ns: int) -> Verdict | None:
    """None: new pods are not stopped."""
    spec, action = standing.budget.spec, standing.budget.spec.enforcement.action
    if action is BudgetAction.ALERT or standing.reached_ns is None:
        return None
    grace_ns = spec.enforcement.grace_period_minutes * 60 * NANOSECONDS_PER_SECOND
    if now_ns < standing.reached_ns + grace_ns or not spec.enabled:
        return None
    name = standing.budget.meta.name
    # Without what is spent by now, which changes all the time: the same cause has the same text.
    reason = (
        f"budget {name} is used up: its {usd(spec.limit_nano_usd):.2f} USD of this {spec.period} are spent"
    )
    return Verdict(name, action, reason, tuple(_matchers(spec.scope, rules)))


def enforcement_problem(budget: CostBudget, rules: Sequence[TeamRule]) -> str | None:
    """Why its action can't stop all pods that count against it, as far as rules tell."""
    scope, action = budget.spec.scope, budget.spec.enforcement.action
    if action is BudgetAction.ALERT or not scope.teams:
        return None
    pooled = any(rule.pools and set(rule.teams) & set(scope.teams) for rule in rules)
    unknown = "name node pools, and where a pod will run is not known before"
    if any(True for _ in _matchers(scope, rules)):
        return f"{action} stops no pods by those team rules that {unknown}" if pooled else None
    why = f"the rules of its teams {unknown}" if pooled else "no team rule gives its teams pods of this scope"
    return f"{action} stops no pods: {why}"


def _matchers(scope: BudgetScope, rules: Sequence[TeamRule]) -> Iterable[PodMatcher]:
    if not scope.teams:
        yield PodMatcher(scope.namespaces, tuple(sorted(scope.labels.items())))
        return
    before: list[TeamRule] = []
    for rule in rules:
        # On which pool a pod will run is not known yet.
        if rule.pools:
            continue
        if not set(rule.teams) & set(scope.teams):
            before.append(rule)
        elif all(fnmatchcase(value, rule.labels.get(key, "*")) for key, value in scope.labels.items()):
            labels = tuple(sorted({**rule.labels, **scope.labels}.items()))
            # The first rule that matches decides: what one before it names another team for is not meant.
            unless = tuple(
                PodMatcher(other.namespaces, tuple(sorted(other.labels.items())))
                for other in before
                if other.may_meet(rule)
            )
            for namespaces in _both(scope.namespaces, rule.namespaces):
                yield PodMatcher(namespaces, labels, unless)


def _both(first: tuple[str, ...], second: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    """Namespaces that are in both; the first are names, the second patterns."""
    if not first or not second:
        yield first or second
        return
    rule = TeamRule({"any": 1}, namespaces=second)
    both = tuple(name for name in first if _matches(rule, name))
    if both:
        yield both


def _matches(rule: TeamRule, namespace: str) -> bool:
    return rule.matches(PodIdentity("", namespace, ""), "")


def _counted(fact: CostFact, scope: BudgetScope, rules: Sequence[TeamRule]) -> int:
    if not (scope.namespaces or scope.teams or scope.labels):
        return fact.amounts.cost
    if fact.pod is None:
        parts = team_amounts(rules, None, fact.pool, fact.amounts.cost) if scope.teams else {}
        # Idle GPUs count against a team that a rule makes pay for them, if nothing else is asked for.
        only_teams = not scope.namespaces and not scope.labels
        return sum(parts.get(team, 0) for team in scope.teams) if only_teams else 0
    if scope.namespaces and fact.pod.namespace not in scope.namespaces:
        return 0
    if any(fact.pod.labels.get(key) != value for key, value in scope.labels.items()):
        return 0
    if not scope.teams:
        return fact.amounts.cost
    parts = team_amounts(rules, fact.pod, fact.pool, fact.amounts.cost)
    return sum(parts.get(team, 0) for team in scope.teams)


def _deviation(stretches: Sequence[Spent]) -> float:
    """Of an hour. A day is the sum of its hours, so it says less of each."""
    mean = sum(stretch.amount for stretch in stretches) / sum(stretch.hours for stretch in stretches)
    squares = ((stretch.amount - mean * stretch.hours) ** 2 / stretch.hours for stretch in stretches)
    return math.sqrt(sum(squares) / (len(stretches) - 1))


def _ns(moment: datetime) -> int:
    return int(moment.timestamp()) * NANOSECONDS_PER_SECOND
