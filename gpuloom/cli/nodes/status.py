"""`gpuloom status`: the cluster's GPU nodes in one table. Only asks and shows."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from gpuloom.cli.connection.endpoints import (
    DEFAULT_TIMEOUT_S,
    DirectoryOption,
    DiscoveryOption,
    TimeoutOption,
    find_endpoint,
    read_cluster,
)
from gpuloom.cli.nodes.node_rows import NodeRow, Totals, node_row, totals_of
from gpuloom.cli.output.forms import Output, OutputOption, WatchOption, follow
from gpuloom.cli.output.tables import table_lines

_MIB_PER_GIB = 1024
_UNKNOWN = "-"
_WIDE = ("DEVICES-BY", "LINKS", "INSTANCE-TYPE", "ZONE", "RACK", "CAPACITY")
_COLUMNS = ("NODE", "MODE", "MODEL", "GPUS", "ALLOCATED", "UTIL", "MEMORY", "HEALTH", *_WIDE)
_NUMBERS = ("GPUS", "ALLOCATED", "UTIL", "MEMORY")


def register(app: typer.Typer) -> None:
    app.command("status", short_help="Show GPU nodes, their use and health.")(status)


def status(
    discovery: DiscoveryOption = "",
    directory: DirectoryOption = Path("run"),
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the GPU nodes: what they have, how much of it is allocated and used, and what is unhealthy.

    Exits 0, or 3 if discovery can't be reached.
    """
    endpoint = find_endpoint("discovery", discovery, directory, os.environ)

    def found() -> tuple[Any, list[str]]:
        nodes = read_cluster(endpoint, timeout).nodes.values()
        rows = sorted(map(node_row, nodes), key=lambda row: row.node)
        totals = totals_of(rows)
        document = {"nodes": [asdict(row) for row in rows], "totals": asdict(totals)}
        lines = status_lines(rows, totals, wide=output is Output.WIDE)
        return document, [*lines, *problem_lines(rows)]

    follow(found, output, watch=watch)


def status_lines(rows: list[NodeRow], totals: Totals, *, wide: bool = False) -> Iterator[str]:
    """The header, a line per node, and the totals."""
    cells = [_COLUMNS, *(_cells(row) for row in rows), _total_cells(totals)]
    return table_lines(cells, right=_NUMBERS, without=() if wide else _WIDE)


def _cells(row: NodeRow) -> tuple[str, ...]:
    return (
        row.node,
        row.mode,
        row.model or _UNKNOWN,
        str(row.gpus),
        _amount(row.allocated),
        _percent(row.utilization_ratio),
        _memory(row.memory_used_mib, row.memory_mib),
        _health(row),
        row.delivery,
        row.links or _UNKNOWN,
        row.instance_type or _UNKNOWN,
        row.zone or _UNKNOWN,
        row.rack or _UNKNOWN,
        row.capacity_type or _UNKNOWN,
    )


def _total_cells(totals: Totals) -> tuple[str, ...]:
    return (
        f"{totals.nodes} nodes",
        "",
        "",
        str(totals.gpus),
        _amount(totals.allocated),
        _percent(totals.utilization_ratio),
        _memory(totals.memory_used_mib, totals.memory_mib),
        _sum_health(totals),
        *("" for _ in _WIDE),
    )


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
    if row.healthy < row.gpus:
        return f"{row.healthy}/{row.gpus} healthy"
    return f"{row.closed}/{row.gpus} closed" if row.closed else "ok"


def _sum_health(totals: Totals) -> str:
    text = "ok" if totals.healthy == totals.gpus else f"{totals.healthy}/{totals.gpus} healthy"
    return f"{text}, {totals.untrusted_nodes} untrusted" if totals.untrusted_nodes else text
