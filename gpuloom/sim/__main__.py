"""`python -m gpuloom.sim`: a simulated cluster whose services run elsewhere, as docker-compose.yml has it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.parsers import Address, address
from gpuloom.sim.command import CommandParser, run_command, url_argument
from gpuloom.sim.mesh.plan import MeshOptions
from gpuloom.sim.standalone import SimulatedCluster, Surroundings


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    mesh = MeshOptions(options.nodes, options.seed, options.rate)
    around = Surroundings(
        options.name,
        options.api_port,
        options.cloud_port,
        options.agents,
        options.extender,
        options.certificates,
        options.inference_port,
    )

    async def run() -> None:
        await SimulatedCluster(mesh, around, SystemClock()).run(options.dir)

    return run_command("simulation", run)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m gpuloom.sim",
        description="A simulated Kubernetes API, kubelets, scheduler, controllers and a workload.",
    )
    add = parser.add_argument
    add("--dir", type=Path, required=True, help="where machines, objects and kubeconfig are kept")
    add("--certificates", type=Path, required=True, metavar="DIR", help="made by `gpuloom certs`")
    add("--name", required=True, help="this host, as the kubeconfig shall name it")
    add("--api-port", type=int, default=8001, metavar="N", help="of the Kubernetes API (default 8001)")
    add("--cloud-port", type=int, default=8002, metavar="N", help="of the simulated cloud (default 8002)")
    add("--inference-port", type=int, default=8003, metavar="N", help="of the played service (default 8003)")
    add("--agents", type=_address, required=True, metavar="HOST:PORT", help="of the first agent")
    add(
        "--extender",
        type=url_argument,
        required=True,
        metavar="URL",
        help="of the extender",
    )
    add("--nodes", type=int, default=12, metavar="N", help="simulated nodes (default 12)")
    add("--seed", type=int, default=1, metavar="N", help="equal seeds give equal nodes and pods (default 1)")
    add("--rate", type=float, metavar="PODS_PER_MINUTE", help="default: as many as keep the GPUs busy")
    return parser


def _address(text: str) -> Address:
    try:
        return address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
