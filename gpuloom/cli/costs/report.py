"""`gpuloom report`: costs, waste and savings as one page. Only asks and writes."""

import os
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuloom.cli.connection.endpoints import (
    DEFAULT_TIMEOUT_S,
    CostOption,
    DirectoryOption,
    TimeoutOption,
    ask,
    find_endpoint,
)
from gpuloom.cli.costs.cost import parse_window
from gpuloom.cli.costs.report_data import Report
from gpuloom.cli.costs.report_pages import html_page, markdown_page
from gpuloom.cli.output import exits
from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.model.cost import CostQuestion

if TYPE_CHECKING:
    from gpuloom.rpc.channel import RpcChannel

TABLES = ("namespace", "team", "pool", "capacity_type", "label:gpu-cost-center", "label:gpu-project", "pod")


class Form(StrEnum):
    HTML = "html"
    MARKDOWN = "markdown"


def register(app: typer.Typer) -> None:
    app.command("report", short_help="Write a page of costs, waste and savings.")(report)


def report(
    window: Annotated[str, typer.Option("--window", help="30d, 7d, …, or two times with a comma.")] = "30d",
    form: Annotated[Form, typer.Option("--format", help="How it is written.")] = Form.HTML,
    file: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to; standard output by default.")
    ] = None,
    address: CostOption = "",
    directory: DirectoryOption = Path("run"),
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Write one page of what GPUs cost, who pays, what was idle and what was saved.

    Exits 0, or 3 if the cost engine can't be reached.
    """
    endpoint = find_endpoint("cost_engine", address, directory, os.environ)
    now = datetime.now(UTC)
    start, end = parse_window(window, now)
    found = ask(endpoint, lambda channel: gather(channel, (start, end), now, timeout))
    page = html_page(found) if form is Form.HTML else markdown_page(found)
    if file is None:
        typer.echo(page)
        raise typer.Exit(exits.FINE)
    file.write_text(page, encoding="utf-8")
    typer.echo(f"{file} written")


async def gather(
    channel: "RpcChannel", span: tuple[datetime, datetime], now: datetime, timeout_s: float
) -> Report:
    from gpuloom.clients import cost as client  # noqa: PLC0415 - brings gRPC along

    start, end = span
    by_day = await client.query_costs(channel, CostQuestion(start, end, "day"), timeout_s)
    tables, refused = [], []
    for name in TABLES:
        try:
            question = CostQuestion(start, end, "all", (name,))
            tables.append((name, await client.query_costs(channel, question, timeout_s)))
        except InvalidRequestError as error:
            # More lines than an answer may have; the rest of the page is worth as much without.
            refused.append((name, str(error)))
    try:
        budgets = await client.list_budgets(channel, timeout_s)
    except GpuloomError:
        # Only the leader knows them; the rest of the page is worth as much without.
        budgets = ()
    return Report(
        made=now,
        summary=await client.cost_summary(channel, timeout_s),
        by_day=by_day,
        tables=tuple(tables),
        savings=await client.savings(channel, start, end, timeout_s),
        budgets=budgets,
        refused=tuple(refused),
    )
