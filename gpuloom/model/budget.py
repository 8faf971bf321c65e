"""CostBudget: what GPUs may cost, and what happens when they cost more."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuloom.model.objects import ObjectMeta


class BudgetPeriod(StrEnum):
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class AlertSeverity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class ChannelType(StrEnum):
    SLACK = "slack"
    EMAIL = "email"
    WEBHOOK = "webhook"


class BudgetAction(StrEnum):
    """ALERT: tell. THROTTLE: new pods wait behind all others. BLOCK: no new pods are placed."""

    ALERT = "alert"
    THROTTLE = "throttle"
    BLOCK = "block"


class BudgetState(StrEnum):
    OK = "OK"
    WARNING = "Warning"
    EXCEEDED = "Exceeded"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class BudgetScope:
    """Whose cost counts: any of the namespaces, any of the teams, all of the labels. Empty: no limit."""

    namespaces: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlertChannel:
    type: ChannelType
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BudgetAlert:
    name: str
    threshold_percent: int
    severity: AlertSeverity = AlertSeverity.WARNING
    channels: tuple[AlertChannel, ...] = ()


DEFAULT_ALERTS = (
    BudgetAlert("soft", 80),
    BudgetAlert("hard", 100, AlertSeverity.CRITICAL),
)


@dataclass(frozen=True, slots=True)
class BudgetEnforcement:
    action: BudgetAction = BudgetAction.ALERT
    grace_period_minutes: int = 0


@dataclass(frozen=True, slots=True)
class CostBudgetSpec:
    limit_nano_usd: int
    """For one period."""
    enabled: bool = True
    period: BudgetPeriod = BudgetPeriod.MONTH
    scope: BudgetScope = field(default_factory=BudgetScope)
    alerts: tuple[BudgetAlert, ...] = DEFAULT_ALERTS
    enforcement: BudgetEnforcement = field(default_factory=BudgetEnforcement)


@dataclass(frozen=True, slots=True)
class CostBudgetStatus:
    """None: not known; that is not zero."""

    spend_nano_usd: int | None = None
    forecast_nano_usd: int | None = None
    state: BudgetState | None = None
    message: str | None = None
    """What of it can't be done."""


@dataclass(frozen=True, slots=True)
class CostBudget:
    meta: ObjectMeta
    spec: CostBudgetSpec
    status: CostBudgetStatus = field(default_factory=CostBudgetStatus)
