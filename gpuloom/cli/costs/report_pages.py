"""A report as one HTML page with inline SVG charts, which asks nobody for anything; or as Markdown. Pure."""

from collections.abc import Iterable, Sequence
from html import escape

from gpuloom.cli.costs.report_data import (
    COLUMNS,
    PARTS,
    Report,
    dollars,
    headline,
    percent,
    table,
    warnings,
    waste,
)
from gpuloom.model.cost import BudgetReport

_COLORS = {"used": "#2f855a", "idle": "#dd6b20", "unknown": "#a0aec0", "unallocated": "#cbd5e0"}
_NAMES = {
    "used": "used",
    "idle": "held and idle",
    "unknown": "not measured",
    "unallocated": "held by nobody",
}
_WIDTH, _HEIGHT, _MARGIN = 760, 220, 46
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}
body{color:#1a202c;background:#fff}
h1{margin-bottom:0}h2{margin-top:2.2rem}p.when{color:#4a5568;margin-top:.2rem}
table{border-collapse:collapse;width:100%}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #e2e8f0}
th:first-child,td:first-child{text-align:left;word-break:break-all}tr:last-child td{font-weight:600}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.6rem}
dt{color:#4a5568;font-size:.85rem}dd{margin:0;font-size:1.25rem;font-weight:600}
.warning{background:#fffaf0;border-left:4px solid #dd6b20;padding:.4rem .8rem}svg{max-width:100%;height:auto}
"""


def html_page(report: Report) -> str:
    body = [
        "<h1>GPU cost report</h1>",
        f'<p class="when">{_when(report)}</p>',
        *(f'<p class="warning">{escape(text)}</p>' for text in warnings(report)),
        "<dl>",
        *(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in headline(report)),
        "</dl>",
        "<h2>By day</h2>",
        day_chart(report),
        *(_section(f"By {name}", COLUMNS, table(answer)) for name, answer in report.tables if name != "pod"),
        _section("Held and not used", ("Pod", "Idle", "Of its cost"), waste(report)),
        _section("Savings", ("Mechanism", "Saved", ""), _savings(report)),
        _section("Budgets", _BUDGET_COLUMNS, _budget_rows(report.budgets)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>GPU cost report</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def markdown_page(report: Report) -> str:
    lines = ["# GPU cost report", "", _when(report), ""]
    lines += [f"> {_plain(text)}" for text in warnings(report)]
    lines += ["", *(f"- {name}: **{value}**" for name, value in headline(report)), ""]
    days = [(f"{line.start:%Y-%m-%d}", *_parts(line.amounts)) for line in report.by_day.lines]
    lines += ["## By day", "", *_markdown(("Day", *(_NAMES[part] for part in PARTS)), days)]
    for name, answer in report.tables:
        if name != "pod":
            lines += [f"## By {name}", "", *_markdown(COLUMNS, table(answer))]
    lines += ["## Held and not used", "", *_markdown(("Pod", "Idle", "Of its cost"), waste(report))]
    lines += ["## Savings", "", *_markdown(("Mechanism", "Saved", ""), _savings(report))]
    lines += ["## Budgets", "", *_markdown(_BUDGET_COLUMNS, _budget_rows(report.budgets))]
    return "\n".join(lines)


def day_chart(report: Report) -> str:
    """A bar for each day, of what was used, idle, not measured and held by nobody."""
    lines = report.by_day.lines
    highest = max((line.amounts.cost for line in lines), default=0) or 1
    step = (_WIDTH - _MARGIN) / max(1, len(lines))
    drawn = []
    for place, line in enumerate(lines):
        bottom = float(_HEIGHT)
        left = _MARGIN + place * step
        for part in PARTS:
            amount = getattr(line.amounts, part)
            height = _HEIGHT * amount / highest
            bottom -= height
            told = f"{line.start:%Y-%m-%d}: {dollars(amount)} USD {_NAMES[part]}"
            drawn.append(
                f'<rect x="{left:.1f}" y="{bottom:.1f}" width="{max(1.0, step * 0.8):.1f}" '
                f'height="{height:.1f}" fill="{_COLORS[part]}"><title>{escape(told)}</title></rect>'
            )
        if len(lines) <= 10 or place % (len(lines) // 10 + 1) == 0:
            drawn.append(f'<text x="{left:.1f}" y="{_HEIGHT + 16}" font-size="11">{line.start:%m-%d}</text>')
    legend = [
        f'<rect x="{_MARGIN + place * 150}" y="{_HEIGHT + 28}" width="11" height="11" '
        f'fill="{_COLORS[part]}"/>'
        f'<text x="{_MARGIN + 16 + place * 150}" y="{_HEIGHT + 38}" font-size="12">{_NAMES[part]}</text>'
        for place, part in enumerate(PARTS)
    ]
    scale = f'<text x="0" y="12" font-size="11">{dollars(highest)}</text>'
    scale += f'<text x="0" y="{_HEIGHT}" font-size="11">0</text>'
    return (
        f'<svg role="img" aria-label="Cost by day" viewBox="0 0 {_WIDTH} {_HEIGHT + 46}" '
        f'xmlns="http://www.w3.org/2000/svg">{scale}{"".join(drawn)}{"".join(legend)}</svg>'
    )


_BUDGET_COLUMNS = ("Budget", "Period", "Limit", "Spend", "Forecast", "State")


def _budget_rows(budgets: Sequence[BudgetReport]) -> list[tuple[str, ...]]:
    return [
        (
            budget.name,
            budget.period,
            dollars(budget.limit),
            dollars(budget.spend),
            f"{dollars(budget.forecast)} ({dollars(budget.forecast_low)} to {dollars(budget.forecast_high)})",
            budget.state,
        )
        for budget in budgets
    ]


def _savings(report: Report) -> list[tuple[str, ...]]:
    rows = [
        (one.mechanism, dollars(one.nano_usd), "estimated" if one.estimated else "")
        for one in report.savings.mechanisms
    ]
    saved = report.savings.baseline - report.savings.actual
    told = f"of {dollars(report.savings.baseline)} ({percent(saved, report.savings.baseline)})"
    return [*rows, ("Total", dollars(saved), told)]


def _parts(amounts: object) -> tuple[str, ...]:
    return tuple(dollars(getattr(amounts, part)) for part in PARTS)


def _when(report: Report) -> str:
    start, end = report.by_day.start, report.by_day.end
    return (
        f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, in USD; made {report.made:%Y-%m-%d %H:%M} UTC; "
        f"a month is {report.summary.hours_per_month} h"
    )


def _section(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    listed = list(rows)
    if not listed:
        return f"<h2>{escape(title)}</h2><p>None.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in listed)
    return f"<h2>{escape(title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    listed = list(rows)
    if not listed:
        return ["None.", ""]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return [*lines, *("| " + " | ".join(map(_plain, row)) + " |" for row in listed), ""]


def _plain(text: str) -> str:
    """Names may hold anything; in a table of Markdown a bar or a line's end would end the cell."""
    flat = " ".join(text.split())
    return "".join(f"\\{character}" if character in "\\|`*_<>[]#" else character for character in flat)
