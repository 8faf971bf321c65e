"""python -m tests.bench.discovery_scale: what discovery costs, and how fast it is, at 100 and at 1,000 nodes.

Real processes on a simulated Kubernetes API and simulated machines. See the README one folder up.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.command import CommandParser, run_command
from tests.bench.discovery_scale.measurement import Effort, measure
from tests.bench.discovery_scale.population import Size
from tests.bench.discovery_scale.report import render, summarize, to_json

_LEAST_REST_S = 10.0
_MOST_NODES = 4000
_MOST_PODS_A_NODE = 64


class MissedError(GpuloomError):
    """An aim was missed, or discovery did not do its work; the table says which."""


@dataclass(frozen=True)
class BenchOptions:
    sizes: tuple[Size, ...]
    effort: Effort
    as_json: bool


def main() -> int:
    parser = CommandParser(prog="python -m tests.bench.discovery_scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--smaller", type=int, default=100, help="nodes to compare with; none if not fewer")
    parser.add_argument("--pods", type=int, help="of all nodes together (default 10 a node)")
    parser.add_argument("--fleets", type=int, default=4, help="processes for the agents, beside the probed")
    parser.add_argument("--readers", type=int, default=3, help="the last one follows usage, too")
    parser.add_argument("--rest-seconds", type=float, default=60.0, help="for which discovery is watched")
    parser.add_argument("--changes", type=int, default=400, help="that are followed to the readers")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return run_command("bench-discovery", lambda: _run(_options(parser.parse_args())))


def _options(arguments: argparse.Namespace) -> BenchOptions:
    """Raise InvalidRequestError for what can't be run."""
    nodes = arguments.nodes
    pods = 10 * nodes if arguments.pods is None else arguments.pods
    if not 1 <= nodes <= _MOST_NODES or min(arguments.fleets, arguments.readers, arguments.changes) < 1:
        raise InvalidRequestError(f"1 to {_MOST_NODES} nodes and at least 1 of the rest are needed")
    if not nodes <= pods <= _MOST_PODS_A_NODE * nodes:
        raise InvalidRequestError(f"1 to {_MOST_PODS_A_NODE} pods a node are needed")
    if arguments.rest_seconds < _LEAST_REST_S:
        raise InvalidRequestError(f"at least {_LEAST_REST_S:g} seconds of rest are needed")
    size = Size(nodes, pods, arguments.fleets, arguments.readers)
    smaller = (size.shrunk_to(arguments.smaller),) if 0 < arguments.smaller < nodes else ()
    effort = Effort(arguments.rest_seconds, arguments.changes)
    return BenchOptions((*smaller, size), effort, arguments.output == "json")


async def _run(options: BenchOptions) -> None:
    measured = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory(prefix="gpuloom-bench-") as folder:
            measured.append(await measure(Path(folder), size, options.effort, SystemClock()))
    summary = summarize(measured)
    if options.as_json:
        sys.stdout.write(to_json(summary).decode())
    else:
        sys.stdout.write(render(summary))
    if summary.failures:
        raise MissedError("; ".join(summary.failures))


if __name__ == "__main__":
    sys.exit(main())
