"""`python -m gpuloom.sim.workloads.inference`: a played service with bursts, and the policy that scales it.

Its requests exist only as numbers: they come steadily and in bursts, wait, and are worked on by the replicas
that are ready. /metrics tells of them by pod under vLLM's names, as a server in those pods would.
"""

import asyncio
import logging
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiohttp import web

from gpuloom.errors import ConflictError, GpuloomError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, key_of, metadata_of
from gpuloom.kube.resources import DEPLOYMENTS, INFERENCE_POLICIES, NAMESPACES, PODS
from gpuloom.names import RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import Clock, SystemClock
from gpuloom.sim.command import CommandParser, add_api_arguments, api_access, run_command

NAME = "llm-serve"
NAMESPACE = "inference"
PLACES = 4
SERVICE_S = 2.0
QUIET, BURST = 1.5, 9.0
"""Requests a second."""
EVERY_S, LASTS_S = 90.0, 40.0
RETRY_S = 2.0

_log = logging.getLogger(__name__)


@dataclass
class Load:
    """Requests as numbers, advanced second by second."""

    seed: int
    running: float = 0.0
    waiting: float = 0.0
    second: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"inference/{self.seed}")

    def advance(self, replicas: int) -> None:
        burst = self.second % EVERY_S >= EVERY_S - LASTS_S
        rate = (BURST if burst else QUIET) * self._random.uniform(0.8, 1.2)
        self.second += 1
        self.running = max(0.0, self.running * (1.0 - 1.0 / SERVICE_S))
        self.waiting += rate
        started = min(self.waiting, max(0.0, replicas * PLACES - self.running))
        self.running, self.waiting = self.running + started, self.waiting - started

    def exposition(self, pods: Sequence[str]) -> str:
        """Shared evenly, as a gateway would do it; without a ready pod there is nobody to tell of it."""
        lines = []
        for pod in pods:
            labels = f'namespace="{NAMESPACE}",pod="{pod}"'
            for name, amount in (("running", self.running), ("waiting", self.waiting)):
                lines.append(f"vllm:num_requests_{name}{{{labels}}} {amount / len(pods):.3f}")
        return "\n".join([*lines, ""])


class PlayedInference:
    def __init__(self, client: KubeClient, load: Load, clock: Clock) -> None:
        self._client = client
        self._load = load
        self._clock = clock
        self._pods: tuple[str, ...] = ()

    async def run(self) -> None:
        await self._create()
        while True:
            try:
                self._pods = await self._ready_pods()
            except GpuloomError as error:
                _log.info("pods not read", extra={"reason": str(error)})
            self._load.advance(len(self._pods))
            await self._clock.sleep(1.0)

    async def serve(self, host: str, port: int) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        return runner

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._load.exposition(self._pods))

    async def _create(self) -> None:
        wanted = (
            (NAMESPACES, {"metadata": {"name": NAMESPACE}}),
            (DEPLOYMENTS, served_deployment()),
            (INFERENCE_POLICIES, served_policy()),
        )
        for resource, obj in wanted:
            while True:
                try:
                    await self._client.create(resource, obj)
                except ConflictError:
                    break
                except GpuloomError as error:
                    _log.warning("not created", extra={"kind": resource.kind, "error": str(error)})
                    await self._clock.sleep(RETRY_S)
                else:
                    break

    async def _ready_pods(self) -> tuple[str, ...]:
        listed = await self._client.list(PODS, Selection(NAMESPACE, f"app={NAME}"))
        return tuple(sorted(key_of(pod)[1] for pod in listed.items if _is_ready(pod)))


def served_deployment() -> JsonObject:
    labels = {"app": NAME}
    resources = {"cpu": "500m", "memory": "1Gi", RESOURCE_GPU_MILLI: "250"}
    container = {
        "name": "main",
        "image": f"registry.example.com/{NAME}:1",
        "resources": {"requests": resources, "limits": {RESOURCE_GPU_MILLI: "250"}},
    }
    return {
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 2},
            },
        },
    }


def served_policy() -> JsonObject:
    return {
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME},
            "minReplicas": 1,
            "maxReplicas": 8,
            "cooldownPeriod": 10,
            "mode": "adaptive",
            "adaptive": {"requestsPerReplica": PLACES},
            "metrics": {"server": "vllm", "requestQueueDepth": {"targetDepth": PLACES}},
            "scaleDown": {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 15}]},
        },
    }


def _is_ready(pod: JsonObject) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return ready and not metadata_of(pod).get("deletionTimestamp")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        prog="python -m gpuloom.sim.workloads.inference", description="Plays an inference service."
    )
    add_api_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address of /metrics (default: %(default)s)")
    parser.add_argument("--port", type=int, required=True, help="its port; 0 picks a free one")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal requests (default 0)")
    options = parser.parse_args(arguments)

    async def run() -> None:
        clock = SystemClock()
        async with KubeClient(api_access(options, clock), clock) as client:
            played = PlayedInference(client, Load(options.seed), clock)
            runner = await played.serve(options.host, options.port)
            try:
                await played.run()
            finally:
                await asyncio.shield(runner.cleanup())

    return run_command("sim-inference", run)


if __name__ == "__main__":
    sys.exit(main())
