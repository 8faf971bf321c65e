"""python -m tests.bench.agent: what a node agent costs at 8 GPUs x 7 MIG slices.

Real agents as processes, on the stand-in for NVML, side by side in one period. See the README one folder up.
"""

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.command import CommandParser, run_command
from tests.bench.agent.measurement import Effort, measure
from tests.bench.agent.report import render, summarize, to_json

_LEAST_SECONDS = 20.0
_WRITTEN_SCRAPES = 8


class MissedError(GpuloomError):
    """An aim was missed, or the agents did not do their work; the table says which."""


@dataclass(frozen=True)
class BenchOptions:
    effort: Effort
    as_json: bool


def main() -> int:
    parser = CommandParser(prog="python -m tests.bench.agent", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which agents are watched")
    parser.add_argument("--scrapes", type=int, default=300, help="of each page, afterwards")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return run_command("bench-agent", lambda: _run(_options(parser.parse_args())))


def _options(arguments: argparse.Namespace) -> BenchOptions:
    """Raise InvalidRequestError for what can't be run."""
    if arguments.seconds < _LEAST_SECONDS or arguments.scrapes < 1:
        raise InvalidRequestError(f"at least {_LEAST_SECONDS:g} seconds and 1 scrape are needed")
    effort = Effort(arguments.seconds, arguments.scrapes, _WRITTEN_SCRAPES)
    return BenchOptions(effort, arguments.output == "json")


async def _run(options: BenchOptions) -> None:
    # Not in the project's folder: the path of a socket may have about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="gpuloom-bench-") as folder:
        try:
            measured = await measure(Path(folder), options.effort, SystemClock())
        except asyncio.CancelledError:
            sys.stderr.write("interrupted: everything has ended, and there is nothing to report\n")
            raise
    summary = summarize(measured)
    if options.as_json:
        sys.stdout.write(to_json(summary).decode())
    else:
        sys.stdout.write(render(summary))
    if summary.failures:
        raise MissedError("; ".join(summary.failures))


if __name__ == "__main__":
    sys.exit(main())
