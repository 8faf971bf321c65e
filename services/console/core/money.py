"""Costs, budgets and savings as JSON values; amounts are in millionths of a dollar. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from gpuloom.model.cost import (
    IDLE_GROUP,
    UNALLOCATED_GROUP,
    BudgetReport,
    CostAmounts,
    CostAnswer,
    CostLine,
    CostSummary,
    SavingsReport,
)
from services.console.core.texts import micro_usd, moment

Json = Any

MOST_GROUPS = 200
"""Beyond them the smallest are one group."""
REST = "__others__"


def series_items(answer: CostAnswer, dimension: str, step: str) -> Mapping[str, Json]:
    """An item for each group, by `dimension/step/group`: points of [time, cost, used, idle]."""
    points = defaultdict[str, dict[str, list[int]]](dict)
    sums = defaultdict[str, int](int)
    for line in answer.lines:
        sums[_group(line)] += line.amounts.cost
    kept = set(sorted(sums, key=lambda group: (-sums[group], group))[:MOST_GROUPS])
    for line in answer.lines:
        group = _group(line) if _group(line) in kept else REST
        amounts = line.amounts
        sofar = points[group].setdefault(str(moment(line.start)), [0, 0, 0])
        for place, amount in enumerate((amounts.cost, amounts.used, amounts.idle)):
            sofar[place] += amount
    return {
        f"{dimension}/{step}/{group}": {
            "namespace": _namespace(dimension, group),
            "dimension": dimension,
            "step": step,
            "group": group,
            "points": [[time, *map(micro_usd, amounts)] for time, amounts in sorted(series.items())],
        }
        for group, series in points.items()
    }


def summary_item(summary: CostSummary) -> Json:
    return {
        "per_hour": micro_usd(summary.nano_usd_per_hour),
        "per_month": micro_usd(summary.nano_usd_per_month),
        "hours_per_month": summary.hours_per_month,
        "priced_nodes": summary.priced_nodes,
        "unpriced_nodes": summary.unpriced_nodes,
        "today": _amounts(summary.today),
        "total": _amounts(summary.total),
        "since": moment(summary.since),
    }


def savings_item(report: SavingsReport) -> Json:
    return {
        "baseline": micro_usd(report.baseline),
        "actual": micro_usd(report.actual),
        "start": moment(report.start),
        "end": moment(report.end),
        "mechanisms": [
            {"mechanism": one.mechanism, "saved": micro_usd(one.nano_usd), "estimated": one.estimated}
            for one in report.mechanisms
        ],
    }


def budget_items(budgets: Iterable[BudgetReport]) -> Mapping[str, Json]:
    return {
        one.name: {
            "budget": one.name,
            "period": one.period,
            "start": moment(one.period_start),
            "end": moment(one.period_end),
            "limit": micro_usd(one.limit),
            "spend": micro_usd(one.spend),
            "forecast": micro_usd(one.forecast),
            "forecast_low": micro_usd(one.forecast_low),
            "forecast_high": micro_usd(one.forecast_high),
            "state": one.state,
            "action": one.action,
            "crossed": list(one.crossed),
        }
        for one in budgets
    }


def _amounts(amounts: CostAmounts) -> Json:
    return {
        "cost": micro_usd(amounts.cost),
        "used": micro_usd(amounts.used),
        "idle": micro_usd(amounts.idle),
        "unknown": micro_usd(amounts.unknown),
        "unallocated": micro_usd(amounts.unallocated),
        "gpu_hours": round(amounts.gpu_seconds / 3600, 2),
    }


def _group(line: CostLine) -> str:
    return line.group[0] if line.group else ""


def _namespace(dimension: str, group: str) -> str:
    """Whose cost it is; empty for what is nobody's alone."""
    nobody = (IDLE_GROUP, UNALLOCATED_GROUP, REST)
    return group if dimension == "namespace" and group not in nobody else ""
