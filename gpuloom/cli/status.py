"""`gpuloom status`: the cluster's GPU nodes in one table. Only asks and shows."""

import os
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpuloom.cli import exits
from gpuloom.cli.connection import (
    DEFAULT_TIMEOUT_S,
    DirectoryOption,
    DiscoveryOption,
    TimeoutOption,
    find_endpoint,
    read_cluster,
)
from gpuloom.cli.node_rows import NodeRow, Totals, node_row, totals_of

_MIB_PER_GIB = 1024
_UNKNOWN = "-"
_COLUMNS = ("NODE", "MODEL", "GPUS", "ALLOCATED", "UTIL", "MEMORY", "HEALTH")
_NUMBERS = ("GPUS", "ALLOCATED", "UTIL", "MEMORY")


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table or json.")]


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    discovery: DiscoveryOption = "",
    directory: DirectoryOption = Path("run"),
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the GPU nodes: what they have, how much of it is allocated and used, and whether all is well.

    Exits 0, or 3 if discovery can't be reached.
    """
    snapshot = read_cluster(find_endpoint(discovery, directory, os.environ), timeout)
    rows = sorted((node_row(facts) for facts in snapshot.nodes.values()), key=lambda row: row.node)
    totals = totals_of(rows)
    if output is Output.JSON:
        document = {"nodes": [asdict(row) for row in rows], "totals": asdict(totals)}
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        raise typer.Exit(exits.FINE)
    console = Console(highlight=False, soft_wrap=True)
    console.print(table_of(rows, totals))
    for line in problem_lines(rows):
        console.print(Text(line))


def table_of(rows: list[NodeRow], totals: Totals) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            row.node,
            row.model or _UNKNOWN,
            str(row.gpus),
            _amount(row.allocated),
            _percent(row.utilization_ratio),
            _memory(row.memory_used_mib, row.memory_mib),
            _health(row),
        )
    table.add_row(
        f"{totals.nodes} nodes",
        "",
        str(totals.gpus),
        _amount(totals.allocated),
        _percent(totals.utilization_ratio),
        _memory(totals.memory_used_mib, totals.memory_mib),
        _sum_health(totals),
        style="bold",
    )
    return table


def problem_lines(rows: list[NodeRow]) -> list[str]:
    return [f"{row.node}: {problem}" for row in rows for problem in row.problems]


def _amount(gpus: float) -> str:
    return f"{gpus:.3f}".rstrip("0").rstrip(".")


def _percent(ratio: float | None) -> str:
    return _UNKNOWN if ratio is None else f"{ratio:.0%}"


def _memory(used_mib: int | None, total_mib: int) -> str:
    used = _UNKNOWN if used_mib is None else f"{used_mib / _MIB_PER_GIB:.0f}"
    return f"{used}/{total_mib / _MIB_PER_GIB:.0f} GiB"


def _health(row: NodeRow) -> str:
    if not row.trusted:
        return "untrusted"
    return "ok" if row.healthy == row.gpus and not row.problems else f"{row.healthy}/{row.gpus} healthy"


def _sum_health(totals: Totals) -> str:
    text = "ok" if totals.healthy == totals.gpus else f"{totals.healthy}/{totals.gpus} healthy"
    return f"{text}, {totals.untrusted_nodes} untrusted" if totals.untrusted_nodes else text
