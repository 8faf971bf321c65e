"""python -m tests.bench.discovery_scale.reader: a mirror of discovery that notes when it saw which change.

Changes are known by their mark in the reason of a faulty GPU. The clock is the machine's own, which all its
processes share.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TextIO

from prometheus_client import CollectorRegistry

from gpuloom.clients.discovery import ClusterMirror, MirrorOptions
from gpuloom.model.snapshot import NodeFacts
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import Clock, SystemClock
from gpuloom.sim.command import CommandParser, run_command
from tests.bench.discovery_scale.changes import marks_of


class Sightings:
    def __init__(self, file: TextIO, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._known: set[str] = set()

    def note(self, uid: str, facts: NodeFacts | None) -> None:
        for mark in marks_of(facts.state.gpus) if facts is not None else ():
            if mark not in self._known:
                self._known.add(mark)
                self._file.write(f"{mark} {self._clock.monotonic()!r}\n")


def read_sightings(path: Path) -> dict[str, float]:
    """By change, when it was seen."""
    words = [line.split(" ") for line in path.read_text(encoding="utf-8").splitlines()]
    return {mark: float(seen_s) for mark, seen_s in words}


def main() -> int:
    parser = CommandParser(prog="python -m tests.bench.discovery_scale.reader", description=__doc__)
    parser.add_argument("--discovery", required=True, metavar="HOST:PORT")
    parser.add_argument("--certificates", type=Path, required=True, metavar="DIR")
    parser.add_argument("--identity", required=True, metavar="SERVICE")
    parser.add_argument("--seen", type=Path, required=True, metavar="FILE", help="made once it is synced")
    parser.add_argument("--with-usage", action="store_true")
    options = parser.parse_args()
    return run_command("bench-reader", lambda: _read(options))


async def _read(options: argparse.Namespace) -> None:
    clock = SystemClock()
    rpc = RpcEnvironment(tls_files(options.certificates, options.identity), CollectorRegistry(), clock)
    async with RpcChannel(rpc, options.discovery, "discovery") as channel, asyncio.TaskGroup() as tasks:
        mirror = ClusterMirror(channel, clock, MirrorOptions(with_usage=options.with_usage))
        tasks.create_task(mirror.run())
        await mirror.wait_synced()
        with options.seen.open("w", encoding="utf-8", buffering=1) as file:
            mirror.on_change(Sightings(file, clock).note)
            await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
