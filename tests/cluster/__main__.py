"""python -m tests.cluster DIR [--controller-manager|--network]: a cluster to look at, until Ctrl-C."""

import argparse
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.command import CommandParser, run_command
from tests.cluster.binaries import find_binaries
from tests.cluster.control_plane import ControlPlaneOptions, open_control_plane
from tests.cluster.network.cluster import open_networked_cluster
from tests.cluster.nodes.configuration import RuntimeLine


def main() -> int:
    parser = CommandParser(
        prog="python -m tests.cluster", description="A Kubernetes control plane on loopback."
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="made anew at every start")
    parser.add_argument("--controller-manager", action="store_true", help="run its controllers too")
    parser.add_argument("--network", action="store_true", help="with two nodes whose pods have a network")
    return run_command("control-plane", lambda: _run(parser.parse_args()))


async def _run(options: argparse.Namespace) -> None:
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        if options.network:
            lines = dict.fromkeys(("real-a", "real-b"), RuntimeLine.CONTAINERD_2)
            cluster = open_networked_cluster(options.directory, lines, clock)
            plane = (await stack.enter_async_context(cluster)).plane
        else:
            wanted = ControlPlaneOptions(controller_manager=options.controller_manager)
            binaries = find_binaries(os.environ)
            plane = await stack.enter_async_context(
                open_control_plane(binaries, options.directory, clock, wanted)
            )
        sys.stdout.write(f"export KUBECONFIG={plane.admin_kubeconfig}\n")
        sys.stdout.flush()
        while True:
            await clock.sleep(3600)


if __name__ == "__main__":
    sys.exit(main())
