"""Which alerts of budgets were reached, and who was told: each once, whoever leads."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from services.cost_engine.core.budgets import Crossing


@dataclass(frozen=True, slots=True)
class CrossedAlert:
    alert: str
    threshold_percent: int
    crossed_ns: int
    told: frozenset[str]
    """Names of channels."""
    limit: int = 0
    """Of the budget, then."""


def note_crossings(session: Session, crossings: Sequence[Crossing], now_ns: int) -> None:
    """The first time of each in its period stays."""
    statement = (
        "INSERT INTO budget_alert (budget_uid, period_start_ns, alert, budget, threshold_percent, severity, "
        "crossed_ns, spend_nano, limit_nano) VALUES (:uid, :period, :alert, :budget, :threshold, :severity, "
        ":now, :spend, :limit) ON CONFLICT DO NOTHING"
    )
    rows = [
        {
            "uid": crossing.budget_uid,
            "period": crossing.period_start_ns,
            "alert": crossing.alert.name,
            "budget": crossing.budget,
            "threshold": crossing.alert.threshold_percent,
            "severity": crossing.alert.severity,
            "now": now_ns,
            "spend": crossing.spend,
            "limit": crossing.limit,
        }
        for crossing in crossings
    ]
    if rows:
        session.execute(text(statement), rows)


def crossed_alerts(session: Session, budget_uid: str, period_start_ns: int) -> dict[str, CrossedAlert]:
    """By the alert's name."""
    key = {"uid": budget_uid, "period": period_start_ns}
    told: dict[str, set[str]] = {}
    statement = (
        "SELECT alert, channel FROM alert_delivery WHERE budget_uid = :uid AND period_start_ns = :period"
    )
    for row in session.execute(text(statement), key):
        told.setdefault(row.alert, set()).add(row.channel)
    statement = "SELECT * FROM budget_alert WHERE budget_uid = :uid AND period_start_ns = :period"
    return {
        row.alert: CrossedAlert(
            row.alert,
            row.threshold_percent,
            row.crossed_ns,
            frozenset(told.get(row.alert, ())),
            row.limit_nano,
        )
        for row in session.execute(text(statement), key)
    }


def forget_crossings(session: Session, budget_uid: str, period_start_ns: int, alerts: Sequence[str]) -> None:
    """And who was told of them."""
    rows = [{"uid": budget_uid, "period": period_start_ns, "alert": alert} for alert in alerts]
    where = "budget_uid = :uid AND period_start_ns = :period AND alert = :alert"
    for table in ("budget_alert", "alert_delivery") if rows else ():
        session.execute(text(f"DELETE FROM {table} WHERE {where}"), rows)


def note_delivery(session: Session, crossing: Crossing, channel: str, now_ns: int) -> None:
    session.execute(
        text(
            "INSERT INTO alert_delivery (budget_uid, period_start_ns, alert, channel, delivered_ns) "
            "VALUES (:uid, :period, :alert, :channel, :now) ON CONFLICT DO NOTHING"
        ),
        {
            "uid": crossing.budget_uid,
            "period": crossing.period_start_ns,
            "alert": crossing.alert.name,
            "channel": channel,
            "now": now_ns,
        },
    )
