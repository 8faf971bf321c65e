"""`gpuloom workloads`: GPUWorkloads and where they stand. Only asks and shows."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuloom.cli.connection.endpoints import (
    DEFAULT_TIMEOUT_S,
    DirectoryOption,
    TimeoutOption,
    ask,
    find_endpoint,
)
from gpuloom.cli.output import exits
from gpuloom.cli.output.forms import Output, OutputOption, WatchOption, follow
from gpuloom.cli.output.tables import table_lines
from gpuloom.model.workload_row import WorkloadRow

_HEADER = (
    "NAMESPACE",
    "NAME",
    "MODEL",
    "GPUS",
    "PRIORITY",
    "STRATEGY",
    "PHASE",
    "NODE",
    "JOB",
    "CREATED",
    "RETRIES",
    "MESSAGE",
)
_WIDE = ("JOB", "CREATED")

_Namespace = Annotated[
    str, typer.Option("-n", "--namespace", help="Only of this namespace. Default: of all.")
]
_Controller = Annotated[
    str, typer.Option("--controller", metavar="HOST:PORT", help="The controller's gRPC address.")
]


def register(app: typer.Typer) -> None:
    app.command("workloads", short_help="Show GPUWorkloads and where they stand.")(workloads)


def workloads(
    namespace: _Namespace = "",
    controller: _Controller = "",
    directory: DirectoryOption = Path("run"),
    watch: WatchOption = False,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show GPUWorkloads: what they ask for, their phase, their node, and why they wait.

    Exits 0 also if there are none, 3 if the controller can't be reached.
    """
    endpoint = find_endpoint("controller", controller, directory, os.environ)
    from gpuloom.clients.controller import list_workloads  # noqa: PLC0415 - brings gRPC along

    def found() -> tuple[Any, Iterator[str]]:
        rows, total = ask(endpoint, lambda channel: list_workloads(channel, namespace, timeout))
        lines = workload_lines(rows, total, wide=output is Output.WIDE)
        return {"workloads": rows, "total": total}, lines

    follow(found, output, watch=watch)
    raise typer.Exit(exits.FINE)


def workload_lines(rows: Sequence[WorkloadRow], total: int, *, wide: bool = False) -> Iterator[str]:
    if not rows:
        yield "no GPUWorkloads"
        return
    cells = [_cells(row) for row in rows]
    yield from table_lines([_HEADER, *cells], right=("GPUS", "RETRIES"), without=() if wide else _WIDE)
    if total > len(rows):
        yield f"{total - len(rows)} more; choose a namespace with -n"


def _cells(row: WorkloadRow) -> tuple[str, ...]:
    return (
        row.namespace,
        row.name,
        row.model_name,
        str(row.gpu_count),
        row.priority,
        row.strategy,
        row.phase or "-",
        row.node or "-",
        row.job or "-",
        row.created or "-",
        str(row.retries),
        exits.one_line(row.message),
    )
