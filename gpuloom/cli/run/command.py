"""`gpuloom run`: the whole mesh on this machine, with simulated GPUs. Only asks and tells."""

import asyncio
import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from gpuloom.cli.output import exits
from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.runtime.parsers import integer, seconds

if TYPE_CHECKING:
    from gpuloom.cli.run.session import RunRequest
    from gpuloom.cli.run.summary import RunSummary

MAX_NODES = 1000
MAX_SEED = 2**31 - 1
MAX_PODS_PER_MINUTE = 60_000

Value = TypeVar("Value")


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


def _checked(parse: Callable[[str], Value]) -> Callable[[object], Value]:
    """Our parsers' texts as usage errors. A default comes as a value, not as text."""

    def check(raw: object) -> Value:
        try:
            return parse(str(raw))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return check


_Nodes = Annotated[
    int,
    typer.Option(
        parser=_checked(integer(1, MAX_NODES)), metavar="N", help=f"Simulated nodes, 1 to {MAX_NODES}."
    ),
]
_Seed = Annotated[
    int,
    typer.Option(
        parser=_checked(integer(0, MAX_SEED)), metavar="N", help="Equal seeds give equal nodes and pods."
    ),
]
_Duration = Annotated[
    float | None,
    typer.Option(
        parser=_checked(seconds), metavar="TIME", help="End after this, e.g. 60s or 5m. Default: at Ctrl-C."
    ),
]
_Rate = Annotated[
    int | None,
    typer.Option(
        parser=_checked(integer(1, MAX_PODS_PER_MINUTE)),
        metavar="PODS_PER_MINUTE",
        help="New pods a minute. Default: as many as keep the GPUs busy.",
    ),
]
_Headless = Annotated[
    bool,
    typer.Option("--headless", help="A line every 5 s instead of a screen; the default without a terminal."),
]
_Faults = Annotated[
    bool,
    typer.Option(
        "--faults/--no-faults",
        help="Break something now and then: a GPU, an agent, a service. It heals by itself.",
    ),
]
_Directory = Annotated[
    Path, typer.Option("--dir", help="Where logs, certificates and state go; cleared first.")
]
_Output = Annotated[Output, typer.Option("--output", "-o", help="Form of the summary at the end.")]


def register(app: typer.Typer) -> None:
    app.command("run", short_help="Run the mesh here with simulated GPUs.")(run)


def run(  # noqa: PLR0913, PLR0917 - a parameter per option
    nodes: _Nodes = 12,
    seed: _Seed = 1,
    duration: _Duration = None,
    rate: _Rate = None,
    headless: _Headless = False,
    faults: _Faults = True,
    directory: _Directory = Path("run"),
    output: _Output = Output.TEXT,
) -> None:
    """Start every service on this machine with simulated GPUs, and play a workload on them.

    Exits 0 if pods were placed and no GPU was booked twice, 1 if not, 3 if the mesh could not start.
    """
    # Imported here: they bring gRPC along, and `gpuloom --help` shall be quick.
    from gpuloom.cli.run.session import RunRequest  # noqa: PLC0415
    from gpuloom.sim.mesh.plan import MeshOptions  # noqa: PLC0415

    options = MeshOptions(nodes, seed, rate, autoscaling=True)
    summary = _run(RunRequest(options, directory, duration, faults), headless or not sys.stdout.isatty())
    _print(summary, output)
    raise typer.Exit(summary.exit_code)


def _run(request: "RunRequest", headless: bool) -> "RunSummary":
    from gpuloom.cli.run.displays import LiveScreen, ProgressLines  # noqa: PLC0415
    from gpuloom.cli.run.session import InterruptedStartError, RunSession  # noqa: PLC0415
    from gpuloom.runtime.clock import SystemClock  # noqa: PLC0415

    display = ProgressLines() if headless else LiveScreen("GPULoom", request.duration_s)
    try:
        return asyncio.run(RunSession(request, display, SystemClock()).run())
    except InterruptedStartError as error:
        _fail(error, exits.INTERRUPTED)
    except InvalidRequestError as error:
        _fail(error, exits.USAGE)
    except (GpuloomError, OSError) as error:
        _fail(error, exits.UNREACHABLE)


def _print(summary: "RunSummary", output: Output) -> None:
    from gpuloom.cli.run.summary import as_json, as_text  # noqa: PLC0415

    typer.echo(json.dumps(as_json(summary), indent=2) if output is Output.JSON else as_text(summary))


def _fail(error: Exception, code: int) -> NoReturn:
    typer.echo(f"gpuloom run: {exits.one_line(error)}", err=True)
    raise typer.Exit(code) from error
