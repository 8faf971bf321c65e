"""What the cost engine answers: sums in nano-USD, exact."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase

IDLE_GROUP = "__idle__"
"""What no pod held."""
UNALLOCATED_GROUP = "__unallocated__"
"""What no label or rule names an owner for."""


@dataclass(frozen=True, slots=True)
class CostAmounts:
    """`cost` is used + idle + unknown + unallocated. `unpriced_seconds` are missing in it."""

    cost: int = 0
    used: int = 0
    idle: int = 0
    unknown: int = 0
    unallocated: int = 0
    baseline: int = 0
    on_demand: int = 0
    gpu_seconds: float = 0.0
    unpriced_seconds: float = 0.0
    energy_mj: int = 0

    @property
    def allocated(self) -> int:
        return self.cost - self.unallocated


@dataclass(frozen=True, slots=True)
class CostLine:
    start: datetime
    group: tuple[str, ...]
    amounts: CostAmounts


@dataclass(frozen=True, slots=True)
class CostGap:
    node_uid: str
    pod_uid: str
    start: datetime
    end: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class CostAnswer:
    lines: tuple[CostLine, ...]
    total: CostAmounts
    start: datetime
    end: datetime
    reconciled: bool
    gaps: tuple[CostGap, ...] = ()


@dataclass(frozen=True, slots=True)
class CostQuestion:
    """`step`: all, hour or day. Of `filters` all must hold, and any value of each."""

    start: datetime | None = None
    end: datetime | None = None
    step: str = "all"
    group_by: tuple[str, ...] = ()
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CostSummary:
    nano_usd_per_hour: int
    nano_usd_per_month: int
    hours_per_month: int
    priced_nodes: int
    unpriced_nodes: int
    today: CostAmounts
    total: CostAmounts
    since: datetime


@dataclass(frozen=True, slots=True)
class MechanismSaving:
    mechanism: str
    nano_usd: int
    estimated: bool


@dataclass(frozen=True, slots=True)
class SavingsReport:
    baseline: int
    actual: int
    mechanisms: tuple[MechanismSaving, ...]
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class PriceEntry:
    provider: str
    region: str
    zone: str
    instance_type: str
    capacity_type: str
    nano_usd_per_hour: int
    source: str
    fetched_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NodePrice:
    """What a whole node costs an hour now, as it is billed."""

    node_uid: str
    nano_usd_per_hour: int
    quality: str


@dataclass(frozen=True, slots=True)
class PriceList:
    """`missing`: instance types of the cluster that have no price at all. `nodes`: those that have one."""

    prices: tuple[PriceEntry, ...]
    missing: tuple[str, ...] = ()
    nodes: tuple[NodePrice, ...] = ()


@dataclass(frozen=True, slots=True)
class BudgetReport:
    name: str
    period: str
    period_start: datetime
    period_end: datetime
    limit: int
    spend: int
    forecast: int
    forecast_low: int
    forecast_high: int
    state: str
    action: str
    crossed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodMatcher:
    """Any of the namespaces (none: all) and all of the labels, as patterns of a shell.

    Pods that one of `unless` matches are not meant.
    """

    namespaces: tuple[str, ...]
    labels: tuple[tuple[str, str], ...] = ()
    unless: tuple["PodMatcher", ...] = ()

    def matches(self, namespace: str, labels: Mapping[str, str]) -> bool:
        if self.namespaces and not any(fnmatchcase(namespace, pattern) for pattern in self.namespaces):
            return False
        if not all(fnmatchcase(labels.get(key, ""), pattern) for key, pattern in self.labels):
            return False
        return not any(each.matches(namespace, labels) for each in self.unless)


@dataclass(frozen=True, slots=True)
class BudgetVerdict:
    """A budget that stops new pods."""

    budget: str
    action: str
    reason: str
    matchers: tuple[PodMatcher, ...]

    def stops(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return any(matcher.matches(namespace, labels) for matcher in self.matchers)
