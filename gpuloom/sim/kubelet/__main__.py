"""python -m gpuloom.sim.kubelet (--api URL | --kubeconfig FILE) --machines DIR …"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuloom.kube.client import KubeClient
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.command import CommandParser, add_api_arguments, api_access, duration_argument, run_command
from gpuloom.sim.kubelet.host import Behaviour
from gpuloom.sim.kubelet.process import KubeletProcess, KubeletSettings


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    settings = KubeletSettings(options.machines, Behaviour(options.seed, options.max_publish_delay))

    async def run() -> None:
        clock = SystemClock()
        async with KubeClient(api_access(options, clock), clock) as client:
            await KubeletProcess(client, settings, clock).run()

    return run_command("sim-kubelet", run)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m gpuloom.sim.kubelet", description="Simulated kubelets of all machines in a directory."
    )
    add_api_arguments(parser)
    parser.add_argument(
        "--machines", type=_directory, required=True, metavar="DIR", help="one directory per machine in it"
    )
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal runs (default 0)")
    parser.add_argument(
        "--max-publish-delay",
        type=duration_argument,
        default=10.0,
        metavar="TIME",
        help="PodResources shows a pod up to this late (default 10s)",
    )
    return parser


def _directory(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a directory")
    return path


if __name__ == "__main__":
    sys.exit(main())
