"""python -m tests.bench.extender_scale: the extender's own process in a large cluster, one call at a time.

Real HTTPS and gRPC, a simulated Kubernetes API. See the README one folder up.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.command import CommandParser, run_command
from tests.bench.extender_scale.measurement import measure
from tests.bench.extender_scale.population import Size
from tests.bench.extender_scale.report import render, summarize, to_json

_MOST_NODES = 20_000
_MOST_RESIDENTS_A_NODE = 16


class MissedError(GpuloomError):
    """An aim was missed, or something was placed wrongly; the table says which."""


@dataclass(frozen=True)
class BenchOptions:
    size: Size
    directory: Path | None
    as_json: bool


def main() -> int:
    parser = CommandParser(prog="python -m tests.bench.extender_scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--residents", type=int, default=40_000, help="pods that run already")
    parser.add_argument("--pods", type=int, default=1000, help="that come one after the other")
    parser.add_argument("--dir", type=Path, help="folder for logs and state, kept; it must not exist yet")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return run_command("bench-extender", lambda: _run(_options(parser.parse_args())))


def _options(arguments: argparse.Namespace) -> BenchOptions:
    """Raise InvalidRequestError for what can't be run."""
    nodes, residents, pods = arguments.nodes, arguments.residents, arguments.pods
    if not 2 <= nodes <= _MOST_NODES or pods < 1:
        raise InvalidRequestError(f"2 to {_MOST_NODES} nodes and at least 1 pod are needed")
    if not 0 <= residents <= _MOST_RESIDENTS_A_NODE * nodes:
        raise InvalidRequestError(f"at most {_MOST_RESIDENTS_A_NODE} residents a node are possible")
    size = Size(nodes, residents, pods)
    return BenchOptions(size, arguments.dir, arguments.output == "json")


async def _run(options: BenchOptions) -> None:
    if options.directory is not None:
        options.directory.mkdir(parents=True)
        measured = await measure(options.directory.absolute(), options.size, SystemClock())
    else:
        with tempfile.TemporaryDirectory(prefix="gpuloom-bench-") as folder:
            measured = await measure(Path(folder), options.size, SystemClock())
    summary = summarize(measured)
    sys.stdout.write(to_json(summary).decode() if options.as_json else render(summary))
    if summary.failures:
        raise MissedError("; ".join(summary.failures))


if __name__ == "__main__":
    sys.exit(main())
