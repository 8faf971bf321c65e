"""What a cost report tells, before it is written in any form. Pure."""

from dataclasses import dataclass
from datetime import datetime

from gpuloom.model.cost import (
    BudgetReport,
    CostAmounts,
    CostAnswer,
    CostSummary,
    SavingsReport,
)
from gpuloom.model.money import usd

PARTS = ("used", "idle", "unknown", "unallocated")
"""Of a cost, in the order in which they are stacked; they add up to it."""


@dataclass(frozen=True, slots=True)
class Report:
    """`by_day` has a row for each day; `tables` are answers by what they are grouped by.

    `refused`: by what no answer was given, and why.
    """

    made: datetime
    summary: CostSummary
    by_day: CostAnswer
    tables: tuple[tuple[str, CostAnswer], ...]
    savings: SavingsReport
    budgets: tuple[BudgetReport, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def total(self) -> CostAmounts:
        return self.by_day.total


def dollars(nano: int) -> str:
    amount = usd(nano)
    return f"{amount:,.2f}" if abs(amount) >= 1 or not nano else f"{amount:.6f}"


def percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def cells(name: str, amounts: CostAmounts, total: CostAmounts) -> tuple[str, ...]:
    return (
        name,
        dollars(amounts.allocated),
        dollars(amounts.used),
        dollars(amounts.idle),
        dollars(amounts.unknown),
        dollars(amounts.cost),
        percent(amounts.cost, total.cost),
    )


COLUMNS = ("Group", "Allocated", "Used", "Idle", "Unknown", "Cost", "Share")


def table(answer: CostAnswer) -> list[tuple[str, ...]]:
    """Rows by cost, the dearest first, and the total."""
    lines = sorted(answer.lines, key=lambda line: (-line.amounts.cost, line.group))
    rows = [cells(" / ".join(line.group), line.amounts, answer.total) for line in lines]
    return [*rows, cells("Total", answer.total, answer.total)]


def headline(report: Report) -> list[tuple[str, str]]:
    """Name and value of the figures that come first."""
    total, summary = report.total, report.summary
    saved = report.savings.baseline - report.savings.actual
    found = [
        ("Cost", f"{dollars(total.cost)} USD"),
        ("Used", percent(total.used, total.cost)),
        ("Held and idle", percent(total.idle, total.cost)),
        ("Not measured", percent(total.unknown, total.cost)),
        ("Held by nobody", percent(total.unallocated, total.cost)),
        ("GPU hours", f"{total.gpu_seconds / 3600:,.1f}"),
        ("Now", f"{dollars(summary.nano_usd_per_hour)} USD/h"),
        (
            f"A month of {summary.hours_per_month} h",
            f"{dollars(summary.nano_usd_per_month)} USD",
        ),
        ("Saved", f"{dollars(saved)} USD ({percent(saved, report.savings.baseline)})"),
    ]
    if total.energy_mj:
        found.append(("Energy measured", f"{total.energy_mj / 3.6e9:,.2f} kWh"))
    return found


def warnings(report: Report) -> list[str]:
    found = [f"There is no table by {name}: {reason}." for name, reason in report.refused]
    if report.total.unpriced_seconds:
        hours = report.total.unpriced_seconds / 3600
        found.append(f"{hours:.2f} node hours have no price: their cost is missing in every sum here.")
    if report.by_day.gaps:
        reason = report.by_day.gaps[0].reason
        found.append(f"Of {len(report.by_day.gaps)} stretches it is not known what happened, e.g. {reason}.")
    if not report.by_day.reconciled:
        found.append("Not final: windows of the last day may still move cost between used, idle and unknown.")
    return found


def waste(report: Report) -> list[tuple[str, ...]]:
    """Who holds what he does not use: the largest amounts that were idle."""
    by_pod = [line for name, answer in report.tables if name == "pod" for line in answer.lines]
    lines = sorted(by_pod, key=lambda line: (-line.amounts.idle, line.group))[:10]
    return [
        (" / ".join(line.group), dollars(line.amounts.idle), percent(line.amounts.idle, line.amounts.cost))
        for line in lines
        if line.amounts.idle
    ]
