"""`python -m tests.browser.serve --nodes 1000`: the console's own port on a made-up cluster.

Prints the port. Plain HTTP on loopback: certificates are another test's.
"""

import argparse
import asyncio
from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import SystemClock
from services.console.aggregator import Aggregator
from services.console.core.state import Items, Json
from services.console.metrics import ConsoleMetrics
from services.console.ports import Source
from services.console.web.access import LoopbackGate
from services.console.web.server import ConsolePort, Parts, Place
from tests.browser.world import MARKUP, RULES, World


async def serve(world: World, step_s: float) -> None:
    clock, metrics = SystemClock(), ConsoleMetrics(CollectorRegistry())

    async def read() -> Mapping[str, Items]:
        if step_s:
            world.step()
        return world.sections()

    async def explained(pod: PodRef) -> Json:
        return world.explained(pod)

    async def recommended(pod: PodRef) -> Json:
        return world.recommended(pod)

    source = Source("world", RULES, step_s or 3600.0, read)
    aggregator = Aggregator((source,), clock, metrics)
    questions = {"explain": explained, "recommendation": recommended}
    parts = Parts(aggregator, LoopbackGate(), questions, clock, metrics)
    async with ConsolePort(parts, Place("127.0.0.1", 0, None)) as port:
        await aggregator.ask(source)
        print(port.port, flush=True)  # noqa: T201 - whoever started this process waits for it
        await aggregator.run(source)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=40)
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--step", type=float, default=1.0)
    options = parser.parse_args()
    world = World(options.nodes, mark=MARKUP if options.hostile else "")
    for _ in range(20):
        world.step()
    asyncio.run(serve(world, options.step))


if __name__ == "__main__":
    main()
