"""CostBudget. Money is exact: the limit is read as it was written, spend is written to the nano-dollar."""

import re
from decimal import Decimal

from gpuloom.codec.custom.objects import opened
from gpuloom.codec.custom.reading import (
    MAX_LABEL,
    MAX_MESSAGE,
    Fields,
    Json,
    each,
    flag,
    name,
    number,
    one_of,
    part,
    text,
    text_map,
    whole,
)
from gpuloom.errors import InvalidRequestError
from gpuloom.model.budget import (
    DEFAULT_ALERTS,
    AlertChannel,
    AlertSeverity,
    BudgetAction,
    BudgetAlert,
    BudgetEnforcement,
    BudgetPeriod,
    BudgetScope,
    BudgetState,
    ChannelType,
    CostBudget,
    CostBudgetSpec,
    CostBudgetStatus,
)
from gpuloom.model.money import MAX_USD, nano_usd, usd

_AMOUNT = text(32, pattern=re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,9})?"))
# A database that does not keep a character 0 could not note whom an alert was sent to.
_KEPT = re.compile(r"[^\x00]*")
_LIMIT = number(0.0, float(MAX_USD))


def cost_budget(obj: object) -> CostBudget:
    meta, spec, status = opened(obj)
    return CostBudget(meta, _spec(spec), _status(status))


def cost_budget_status_to_json(status: CostBudgetStatus) -> Json:
    return {
        "spend": amount_to_json(status.spend_nano_usd),
        "forecast": amount_to_json(status.forecast_nano_usd),
        "state": status.state,
        "message": status.message,
    }


def amount(value: object, where: str) -> int:
    """Nano-USD from an amount in USD as text."""
    try:
        return nano_usd(_AMOUNT(value, where))
    except ValueError as error:
        raise InvalidRequestError(f"{where}: {error}") from None


def amount_to_json(nano: int | None) -> str | None:
    return None if nano is None else f"{usd(nano):f}"


def _spec(fields: Fields) -> CostBudgetSpec:
    return CostBudgetSpec(
        limit_nano_usd=fields.need("monthlyLimit", _limit),
        enabled=fields.get_or("enabled", flag, default=True),
        period=fields.get_or("period", one_of(BudgetPeriod), BudgetPeriod.MONTH),
        scope=fields.get_or("scope", part(_scope), BudgetScope()),
        alerts=fields.get_or("alerts", each(part(_alert), 16), DEFAULT_ALERTS),
        enforcement=fields.get_or("enforcement", part(_enforcement), BudgetEnforcement()),
    )


def _limit(value: object, where: str) -> int:
    # The shortest text of a float is what was written; its exact binary value is not.
    limit = nano_usd(Decimal(repr(_LIMIT(value, where))))
    if limit <= 0:
        raise InvalidRequestError(f"{where} must be above 0")
    return limit


def _scope(fields: Fields) -> BudgetScope:
    return BudgetScope(
        namespaces=fields.get_or("namespaces", each(name(MAX_LABEL), 256), ()),
        teams=fields.get_or("teams", each(name(MAX_LABEL), 256), ()),
        labels=fields.get_or("labels", text_map(32), {}),
    )


def _alert(fields: Fields) -> BudgetAlert:
    return BudgetAlert(
        name=fields.need("name", text(MAX_LABEL, shortest=1, pattern=_KEPT)),
        threshold_percent=fields.need("thresholdPercent", whole(1, 1000)),
        severity=fields.get_or("severity", one_of(AlertSeverity), AlertSeverity.WARNING),
        channels=fields.get_or("channels", each(part(_channel), 16), ()),
    )


def _channel(fields: Fields) -> AlertChannel:
    return AlertChannel(
        type=fields.need("type", one_of(ChannelType)),
        config=fields.get_or("config", text_map(16, 2048, _KEPT), {}),
    )


def _enforcement(fields: Fields) -> BudgetEnforcement:
    return BudgetEnforcement(
        action=fields.get_or("action", one_of(BudgetAction), BudgetAction.ALERT),
        grace_period_minutes=fields.get_or("gracePeriodMinutes", whole(0, 43_200), 0),
    )


def _status(fields: Fields) -> CostBudgetStatus:
    return CostBudgetStatus(
        spend_nano_usd=fields.get("spend", amount),
        forecast_nano_usd=fields.get("forecast", amount),
        state=fields.get("state", one_of(BudgetState)),
        message=fields.get("message", text(MAX_MESSAGE)),
    )
