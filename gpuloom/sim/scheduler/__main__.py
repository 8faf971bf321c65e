"""python -m gpuloom.sim.scheduler (--api URL | --kubeconfig FILE) --extender URL …"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuloom.catalog import load_catalog
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.client import KubeClient
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.command import (
    CommandParser,
    add_api_arguments,
    api_access,
    duration_argument,
    run_command,
    url_argument,
)
from gpuloom.sim.controllers.loop import ControllerLoop
from gpuloom.sim.scheduler.extender import ExtenderSettings, HttpExtender, client_tls
from gpuloom.sim.scheduler.loop import SchedulerSettings
from gpuloom.sim.scheduler.process import run_scheduler


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    settings = SchedulerSettings(
        managed_resources=frozenset(load_catalog().managed_resources()),
        scheduler_name=options.scheduler_name,
        extender_weight=options.extender_weight,
        seed=options.seed,
    )
    try:
        tls = client_tls(options.ca, options.cert, options.key)
    except InvalidRequestError as error:
        parser.error(str(error))
    reach = ExtenderSettings(options.extender, options.filter_timeout, options.bind_timeout, tls)

    async def run() -> None:
        clock = SystemClock()
        async with (
            KubeClient(api_access(options, clock), clock) as client,
            HttpExtender(reach, clock) as extender,
            asyncio.TaskGroup() as tasks,
        ):
            if options.controllers:
                tasks.create_task(ControllerLoop(client, clock).run())
            await run_scheduler(client, extender, settings, clock)

    return run_command("sim-scheduler", run)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m gpuloom.sim.scheduler",
        description="A scheduler loop that calls an extender as kube-scheduler does.",
    )
    add = parser.add_argument
    add_api_arguments(parser)
    add("--extender", type=url_argument, required=True, metavar="URL", help="verbs are appended to it")
    add("--ca", type=Path, metavar="FILE", help="authority of the extender's certificate")
    add("--cert", type=Path, metavar="FILE", help="client certificate shown to the extender")
    add("--key", type=Path, metavar="FILE", help="key of the client certificate")
    add("--scheduler-name", default="default-scheduler", metavar="NAME", help="pods of this name are ours")
    add("--filter-timeout", type=duration_argument, default=1.0, metavar="TIME", help="default 1s")
    add("--bind-timeout", type=duration_argument, default=5.0, metavar="TIME", help="default 5s")
    add("--extender-weight", type=int, default=100, metavar="N", help="default 100: the extender decides")
    add("--seed", type=int, default=0, help="equal seeds break ties equally (default 0)")
    add("--controllers", action="store_true", help="run the controllers of Jobs, Deployments and so on, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
