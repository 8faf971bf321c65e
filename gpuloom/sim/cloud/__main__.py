"""python -m gpuloom.sim.cloud --port N --machines DIR …"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuloom.catalog import load_catalog
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.cloud.machines import MachineRoom
from gpuloom.sim.cloud.offerings import default_offerings
from gpuloom.sim.cloud.server import CloudServer
from gpuloom.sim.cloud.state import CloudSettings, CloudState
from gpuloom.sim.command import CommandParser, duration_argument, run_command


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    catalog = load_catalog()
    boot_delay_s = (options.boot_delay / 2, options.boot_delay)
    settings = CloudSettings(seed=options.seed, boot_delay_s=boot_delay_s)
    state = CloudState(default_offerings(catalog, options.provider), settings)

    async def run() -> None:
        machines = MachineRoom(options.machines, catalog)
        async with CloudServer(
            state, SystemClock(), machines, host=options.host, port=options.port
        ) as server:
            sys.stdout.write(f"listening on {server.url}\n")
            sys.stdout.flush()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(server.run())

    return run_command("sim-cloud", run)


def _parser() -> CommandParser:
    parser = CommandParser(prog="python -m gpuloom.sim.cloud", description="A simulated cloud.")
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, required=True, help="port to listen on; 0 picks a free one")
    add("--machines", type=Path, required=True, metavar="DIR", help="where instances become machines")
    add("--provider", default="aws", help="whose instance types of the catalogue are offered (default aws)")
    add("--boot-delay", type=duration_argument, default=60.0, metavar="TIME", help="at most; default 60s")
    add("--seed", type=int, default=0, help="equal seeds give equal instances (default 0)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
