"""An inference service that a test plays: its pods are simulated, its metrics are those of vLLM.

The load is of all replicas together and is shared by those that are ready, as a gateway would do it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import key_of
from gpuloom.kube.resources import PODS
from gpuloom.sim.processes.ports import HOST
from tests.cluster.gpu_pods import NAMESPACE


@dataclass
class PlayedService:
    """`waiting`: requests that wait now, by app; None: the exporter is silent about it."""

    client: KubeClient
    waiting: dict[str, float | None] = field(default_factory=dict)
    port: int = 0

    async def answer(self, _: web.Request) -> web.Response:
        lines = []
        for app, waiting in self.waiting.items():
            ready = await self.ready_pods(app)
            if waiting is None or not ready:
                continue
            for pod in ready:
                labels = f'namespace="{NAMESPACE}",pod="{pod}"'
                lines.append(f"vllm:num_requests_waiting{{{labels}}} {waiting / len(ready)}")
                lines.append(f"vllm:num_requests_running{{{labels}}} 8")
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def ready_pods(self, app: str) -> list[str]:
        pods = (await self.client.list(PODS, Selection(NAMESPACE, f"app={app}"))).items
        return sorted(key_of(pod)[1] for pod in pods if _is_ready(pod))


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")


@asynccontextmanager
async def played(client: KubeClient) -> AsyncIterator[PlayedService]:
    service = PlayedService(client)
    app = web.Application()
    app.router.add_get("/metrics", service.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        service.port = runner.addresses[0][1]
        yield service
    finally:
        await runner.cleanup()
