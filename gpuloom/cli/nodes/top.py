"""`gpuloom top`: what GPUs, pods and namespaces use now, busiest first. Only asks and shows."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpuloom.cli.connection.endpoints import (
    DEFAULT_TIMEOUT_S,
    DirectoryOption,
    DiscoveryOption,
    TimeoutOption,
    find_endpoint,
    read_cluster,
)
from gpuloom.cli.nodes.top_rows import (
    By,
    GpuRow,
    NamespaceRow,
    Order,
    PodRow,
    gpu_rows,
    namespace_rows,
    pod_rows,
)
from gpuloom.cli.output import exits
from gpuloom.cli.output.forms import Output, OutputOption, is_document, rendered, repeat
from gpuloom.cli.output.tables import table_lines
from gpuloom.model.snapshot import ClusterSnapshot

_MIB_PER_GIB = 1024
_UNKNOWN = "-"
_NUMBERS = ("GPU", "GPUS", "PODS", "UTIL", "MEMORY", "POWER", "TEMP", "ALLOCATED")

_By = Annotated[By, typer.Argument(help="What a row is: gpu, pod or namespace.")]
_Order = Annotated[Order, typer.Option("--sort", help="util, memory or name.")]
_Once = Annotated[
    bool, typer.Option("--once", help="Show it once; so it is also where the output is no terminal.")
]
_Most = Annotated[int, typer.Option("--most", min=1, help="At most so many rows.")]


def register(app: typer.Typer) -> None:
    app.command("top", short_help="Show what GPUs, pods or namespaces use, live.")(top)


def top(  # noqa: PLR0913, PLR0917 - every one is an option
    by: _By = By.GPU,
    order: _Order = Order.UTIL,
    most: _Most = 50,
    once: _Once = False,
    discovery: DiscoveryOption = "",
    directory: DirectoryOption = Path("run"),
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Show what GPUs, pods or namespaces use now, busiest first, again every two seconds.

    Of a card that several pods hold it is only known what the whole card does: such pods are marked with *.
    Exits 0, or 3 if discovery can't be reached.
    """
    endpoint = find_endpoint("discovery", discovery, directory, os.environ)

    def answer() -> str:
        rows = _rows(read_cluster(endpoint, timeout), by, order)
        document = {"by": by, "rows": [asdict(row) for row in rows]}
        return rendered(output, document, lambda: row_lines(rows, most, wide=output is Output.WIDE))

    repeat(answer, watch=sys.stdout.isatty() and not once and not is_document(output))
    raise typer.Exit(exits.FINE)


def _rows(snapshot: ClusterSnapshot, by: By, order: Order) -> Sequence[GpuRow | PodRow | NamespaceRow]:
    nodes = snapshot.nodes.values()
    if by is By.GPU:
        return gpu_rows(nodes, order)
    pods = pod_rows(nodes, order)
    return pods if by is By.POD else namespace_rows(pods, order)


def row_lines(rows: Sequence[GpuRow | PodRow | NamespaceRow], most: int, *, wide: bool) -> Iterator[str]:
    if not rows:
        yield "nothing to show"
        return
    cells = [_cells(row, wide=wide) for row in rows[:most]]
    yield from table_lines([tuple(cells[0]), *(tuple(row.values()) for row in cells)], right=_NUMBERS)
    if any(isinstance(row, PodRow) and row.shared for row in rows[:most]):
        yield "* of the whole card, which others share"
    if len(rows) > most:
        yield f"{len(rows) - most} more; --most {len(rows)} shows all"


def _cells(row: GpuRow | PodRow | NamespaceRow, *, wide: bool) -> dict[str, str]:
    if isinstance(row, GpuRow):
        return _gpu_cells(row, wide=wide)
    if isinstance(row, PodRow):
        star = "*" if row.shared else ""
        return {
            "NAMESPACE": row.namespace,
            "POD": row.pod,
            "GPUS": _amount(row.gpus),
            "UTIL": _percent(row.utilization_ratio) + star,
            "MEMORY": _memory(row.memory_used_mib) + star,
            "NODE": row.node,
        }
    return {
        "NAMESPACE": row.namespace,
        "PODS": str(row.pods),
        "GPUS": _amount(row.gpus),
        "UTIL": _percent(row.utilization_ratio),
        "MEMORY": _memory(row.memory_used_mib),
    }


def _gpu_cells(row: GpuRow, *, wide: bool) -> dict[str, str]:
    cells = {
        "NODE": row.node,
        "GPU": str(row.index),
        "MODEL": row.model,
        "UTIL": _percent(row.utilization_ratio),
        "MEMORY": f"{_memory(row.memory_used_mib)}/{row.memory_mib / _MIB_PER_GIB:.0f} GiB",
        "POWER": _UNKNOWN if row.power_w is None else f"{row.power_w:.0f} W",
        "TEMP": _UNKNOWN if row.temperature_c is None else f"{row.temperature_c:.0f} C",
        "ALLOCATED": _amount(row.allocated),
        "HEALTH": row.health,
        "HELD BY": ", ".join(row.pods) if wide else _first(row.pods),
    }
    if wide:
        cells["UUID"] = row.uuid
    return cells


def _first(names: Sequence[str]) -> str:
    if not names:
        return _UNKNOWN
    return names[0] if len(names) == 1 else f"{names[0]} +{len(names) - 1}"


def _amount(gpus: float) -> str:
    return f"{gpus:.3f}".rstrip("0").rstrip(".")


def _percent(ratio: float | None) -> str:
    return _UNKNOWN if ratio is None else f"{ratio:.0%}"


def _memory(mib: int | None) -> str:
    return _UNKNOWN if mib is None else f"{mib / _MIB_PER_GIB:.1f}"
