"""python -m tests.cluster DIR [--controller-manager]: a control plane to look at, until Ctrl-C or SIGTERM."""

import argparse
import os
import sys
from pathlib import Path

from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.command import CommandParser, run_command
from tests.cluster.binaries import find_binaries
from tests.cluster.control_plane import ControlPlaneOptions, open_control_plane


def main() -> int:
    parser = CommandParser(
        prog="python -m tests.cluster", description="A Kubernetes control plane on loopback."
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="made anew at every start")
    parser.add_argument("--controller-manager", action="store_true", help="run its controllers too")
    return run_command("control-plane", lambda: _run(parser.parse_args()))


async def _run(options: argparse.Namespace) -> None:
    clock = SystemClock()
    wanted = ControlPlaneOptions(controller_manager=options.controller_manager)
    async with open_control_plane(find_binaries(os.environ), options.directory, clock, wanted) as plane:
        sys.stdout.write(f"export KUBECONFIG={plane.admin_kubeconfig}\n")
        sys.stdout.flush()
        while True:
            await clock.sleep(3600)


if __name__ == "__main__":
    sys.exit(main())
