"""The admission port in a process of its own: ours with all it decides, or one that does nothing.

Ours is the product's port and core; only what it would hear of a cluster is given to it.
"""

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry

from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.tls import server_ssl_context
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.command import CommandParser, run_command
from gpuloom.sim.processes.ports import HOST
from gpuloom.v1 import optimizer_pb2 as pb
from services.webhook.adapters.optimizer import OptimizerAdvisor, asking
from services.webhook.admission import MUTATE, Admission, AdmissionSettings, Handler
from services.webhook.core.pods import Offers, PodPolicy, Surroundings
from services.webhook.core.reviews import ADMITTED, Answer, Review
from services.webhook.metrics import WebhookMetrics
from services.webhook.server import AdmissionPort
from tests.cluster.stand_in_optimizer import StandInOptimizer, serving

_CLOCK = SystemClock()
_SURROUNDINGS = Surroundings(
    {"gpu-autoscaler.io/sharing-enabled": "true"}, Offers(shares=True, mig_profiles=frozenset({"1g.10gb"}))
)


class _Cluster:
    def surroundings(self, pod: object, namespace: str) -> Surroundings:
        return _SURROUNDINGS


async def _nothing(review: Review) -> Answer:
    return ADMITTED


def _handler(options: argparse.Namespace, channel: RpcChannel, metrics: WebhookMetrics) -> Handler:
    if options.variant == "nothing":
        return _nothing
    settings = AdmissionSettings(PodPolicy(), 0.03, False, frozenset(), frozenset())
    return Admission(_Cluster(), OptimizerAdvisor(asking(channel), _CLOCK, metrics), settings).mutate


async def _run(options: argparse.Namespace) -> None:
    rpc = RpcEnvironment(tls_files(options.certificates, "webhook"), CollectorRegistry(), _CLOCK)
    optimizer, metrics = StandInOptimizer(_CLOCK), WebhookMetrics(CollectorRegistry())
    optimizer.advice = pb.AdviseResponse(utilization=0.2, mig_profile="1g.10gb", confidence=0.9, runs=9)
    assert rpc.certificates is not None
    tls = server_ssl_context(rpc.certificates, False)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(optimizer, options.certificates, 0, _CLOCK))
        channel = await stack.enter_async_context(RpcChannel(rpc, f"{HOST}:{port}", "optimizer"))
        handlers = {MUTATE: _handler(options, channel, metrics)}
        await stack.enter_async_context(AdmissionPort(handlers, HOST, options.port, tls, _CLOCK, metrics))
        runner = web.AppRunner(_probe())
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, HOST, options.probe_port).start()
        await asyncio.Event().wait()


def _probe() -> web.Application:
    async def ok(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/", ok)
    return app


def main() -> int:
    parser = CommandParser(prog="python -m tests.bench.webhook.serving", description=__doc__)
    parser.add_argument("--variant", choices=("ours", "nothing"), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--probe-port", type=int, required=True)
    parser.add_argument("--certificates", type=Path, required=True)
    return run_command("admission", lambda: _run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
