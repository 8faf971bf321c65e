"""`gpuloom cost`: who pays what, prices, savings, budgets, and files of them. Only asks and shows."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuloom.cli.connection.endpoints import (
    DEFAULT_TIMEOUT_S,
    CostOption,
    DirectoryOption,
    Endpoint,
    TimeoutOption,
    ask,
    find_endpoint,
)
from gpuloom.cli.output import exits
from gpuloom.cli.output.forms import Output, OutputOption, WatchOption, follow
from gpuloom.cli.output.tables import table_lines
from gpuloom.errors import InvalidRequestError
from gpuloom.model.cost import (
    BudgetReport,
    CostAmounts,
    CostAnswer,
    CostQuestion,
    PriceList,
    SavingsReport,
)
from gpuloom.model.money import usd

if TYPE_CHECKING:
    from gpuloom.rpc.channel import RpcChannel

_COLUMNS = ("GROUP", "ALLOCATED", "USED", "IDLE", "COST", "SHARE", "UNKNOWN")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Show(StrEnum):
    COSTS = "costs"
    BUDGETS = "budgets"
    PRICES = "prices"
    SAVINGS = "savings"


class Step(StrEnum):
    ALL = "all"
    HOUR = "hour"
    DAY = "day"


class Export(StrEnum):
    CSV = "csv"
    JSON = "json"
    FOCUS = "focus"


def register(app: typer.Typer) -> None:
    app.command("cost", short_help="Show who pays what, budgets, prices and savings.")(cost)


def cost(  # noqa: PLR0913, PLR0917 - each is an option of the command
    show: Annotated[Show, typer.Argument(help="What to show.")] = Show.COSTS,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by", help="namespace, pod, workload, node, pool, team, … or label:<name>; repeatable."
        ),
    ] = None,
    window: Annotated[
        str, typer.Option("--window", help="24h, 7d, …, or two times with a comma between.")
    ] = "24h",
    step: Annotated[Step, typer.Option("--step", help="Into which stretches it is cut.")] = Step.ALL,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="DIMENSION=VALUE", help="What counts; repeatable.")
    ] = None,
    export: Annotated[
        Export | None, typer.Option("--export", help="Write a file to standard output instead.")
    ] = None,
    address: CostOption = "",
    directory: DirectoryOption = Path("run"),
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show what GPUs cost and who pays for it; sums are exact to the nano-dollar.

    Exits 0, or 3 if the cost engine can't be reached. `budgets` exits 1 if one is exceeded.
    """
    if watch and export is not None:
        raise InvalidRequestError("--watch and --export exclude each other")
    endpoint = find_endpoint("cost_engine", address, directory, os.environ)

    def question() -> CostQuestion:
        start, end = parse_window(window, datetime.now(UTC))
        return CostQuestion(start, end, step.value, tuple(by or ("namespace",)), _filters(only or ()))

    if export is not None:
        ask(endpoint, lambda channel: _export(channel, question(), export))
        raise typer.Exit(exits.FINE)
    exceeded = False

    def found() -> tuple[Any, Iterator[str]]:
        nonlocal exceeded
        answer, lines = _answer(endpoint, show, question(), timeout)
        exceeded = show is Show.BUDGETS and any(report.state == "Exceeded" for report in answer)
        return _document(answer), lines

    follow(found, output, watch=watch)
    raise typer.Exit(exits.NO if exceeded else exits.FINE)


def _answer(
    endpoint: Endpoint, what: Show, question: CostQuestion, timeout_s: float
) -> tuple[Any, Iterator[str]]:
    from gpuloom.clients import cost as client  # noqa: PLC0415 - brings gRPC along

    match what:
        case Show.COSTS:
            answer = ask(endpoint, lambda channel: client.query_costs(channel, question, timeout_s))
            return answer, cost_lines(answer, question)
        case Show.SAVINGS:
            start, end = question.start, question.end
            saved = ask(endpoint, lambda channel: client.savings(channel, start, end, timeout_s))
            return saved, savings_lines(saved)
        case Show.PRICES:
            listed = ask(endpoint, lambda channel: client.list_prices(channel, timeout_s=timeout_s))
            return listed, price_lines(listed)
        case Show.BUDGETS:
            reports = ask(endpoint, lambda channel: client.list_budgets(channel, timeout_s))
            return reports, budget_lines(reports)


def parse_window(text: str, now: datetime) -> tuple[datetime, datetime]:
    """Raise InvalidRequestError for what is no stretch of time."""
    first, comma, last = text.partition(",")
    try:
        if comma:
            return _moment(first), _moment(last)
        return now - timedelta(**{_UNITS[text[-1]]: int(text[:-1])}), now
    except (ValueError, KeyError, IndexError, OverflowError):
        raise InvalidRequestError(
            "--window is like 24h, 7d or 2026-01-01T00:00:00Z,2026-02-01T00:00:00Z"
        ) from None


def cost_lines(answer: CostAnswer, question: CostQuestion) -> Iterator[str]:
    rows = [
        (_group(line.start, line.group, question.step), *_cells(line.amounts, answer.total))
        for line in answer.lines
    ]
    yield from table_lines(
        [_COLUMNS, *rows, ("TOTAL", *_cells(answer.total, answer.total))], right=_COLUMNS[1:]
    )
    state = "final" if answer.reconciled else "not final yet"
    yield f"USD, {answer.start:%Y-%m-%d %H:%M} to {answer.end:%Y-%m-%d %H:%M} UTC, {state}"
    if answer.total.unpriced_seconds:
        hours = answer.total.unpriced_seconds / 3600
        yield f"WARNING: {hours:.2f} node hours have no price and are missing: see `gpuloom cost prices`"
    if answer.gaps:
        yield f"{len(answer.gaps)} stretches are not known, e.g. {answer.gaps[0].reason}"


def savings_lines(report: SavingsReport) -> Iterator[str]:
    rows = [
        (one.mechanism, money(one.nano_usd), "estimated" if one.estimated else "")
        for one in report.mechanisms
    ]
    yield from table_lines([("MECHANISM", "SAVED", ""), *rows], right=("SAVED",))
    saved = report.baseline - report.actual
    part = saved / report.baseline if report.baseline else 0.0
    yield (
        f"{money(report.baseline)} USD unshared and on demand, {money(report.actual)} USD in fact: "
        f"{money(saved)} USD saved ({part:.0%})"
    )


def price_lines(listed: PriceList) -> Iterator[str]:
    rows = [
        (
            price.provider or "-",
            price.zone or price.region or "*",
            price.instance_type,
            price.capacity_type,
            f"{usd(price.nano_usd_per_hour):f}",
            price.source,
        )
        for price in listed.prices
    ]
    header = ("PROVIDER", "PLACE", "TYPE", "CAPACITY", "USD/HOUR", "SOURCE")
    yield from table_lines([header, *rows], right=("USD/HOUR",))
    if listed.missing:
        yield f"WARNING: no price for {', '.join(listed.missing)}"


def budget_lines(reports: tuple[BudgetReport, ...]) -> Iterator[str]:
    rows = [
        (
            report.name,
            report.period,
            money(report.limit),
            money(report.spend),
            f"{money(report.forecast)} ({money(report.forecast_low)}-{money(report.forecast_high)})",
            report.state,
            report.action,
        )
        for report in reports
    ]
    header = ("BUDGET", "PERIOD", "LIMIT", "SPEND", "FORECAST", "STATE", "ACTION")
    yield from table_lines([header, *rows], right=("LIMIT", "SPEND", "FORECAST"))


def money(nano: int) -> str:
    """Small amounts keep their digits: they are not nothing."""
    amount = usd(nano)
    return f"{amount:,.2f}" if abs(amount) >= 1 or not nano else f"{amount:.9f}".rstrip("0")


def _cells(amounts: CostAmounts, total: CostAmounts) -> tuple[str, ...]:
    share = f"{amounts.cost / total.cost:.1%}" if total.cost else "-"
    return (
        money(amounts.allocated),
        money(amounts.used),
        money(amounts.idle),
        money(amounts.cost),
        share,
        money(amounts.unknown),
    )


def _group(start: datetime, group: tuple[str, ...], step: str) -> str:
    name = " ".join(group) or "cluster"
    form = {"hour": "%Y-%m-%d %H:%M  ", "day": "%Y-%m-%d  "}.get(step, "")
    return f"{start.strftime(form)}{name}" if form else name


def _filters(given: "list[str] | tuple[str, ...]") -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidRequestError("--only is DIMENSION=VALUE, e.g. namespace=research")
        found[name] = (*found.get(name, ()), value)
    return found


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    return found if found.tzinfo else found.replace(tzinfo=UTC)


async def _export(channel: "RpcChannel", question: CostQuestion, form: Export) -> None:
    from gpuloom.clients.cost import export_costs  # noqa: PLC0415 - brings gRPC along

    async for piece in export_costs(channel, question, form.value):
        typer.echo(piece, nl=False)


def _document(answer: Any) -> Any:
    return [asdict(one) for one in answer] if isinstance(answer, tuple) else asdict(answer)
