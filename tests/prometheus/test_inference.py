"""The queries of inference autoscaling on a real Prometheus that scrapes what inference servers expose."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gpuloom.clients.prometheus import PrometheusClient, PrometheusConfig
from gpuloom.model.policies import (
    InferenceMetrics,
    InferencePolicySpec,
    InferenceServer,
    LatencyMetric,
    ScaleTarget,
    TargetMetric,
)
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.processes.ports import HOST
from services.autoscaler.inference.adapters.exposition import ExpositionMeasures
from services.autoscaler.inference.adapters.prometheus import PrometheusMeasures
from services.autoscaler.inference.core.catalogue import CATALOGUE
from services.autoscaler.inference.core.measures import Question, Replicas, demand, questions, readings
from services.autoscaler.inference.core.queries import SERVERS, Pods
from tests.prometheus.server import running

pytestmark = pytest.mark.real

CLOCK = SystemClock()
NAMES = ("llm-1-aaaaa", "llm-1-bbbbb")
PODS = Pods("work", NAMES, "llm")
REPLICAS = Replicas(current=2, ready=NAMES, names=NAMES)
FRESHNESS_S = 10.0
RATE, SECONDS_EACH = 5, 2
"""Requests that each pod completes between two scrapes, and the time of each."""


class Server:
    """Two pods of a server, and two of somebody else whose names begin alike."""

    def __init__(self) -> None:
        self.scrapes = 0
        self.silent = False

    async def answer(self, _: web.Request) -> web.Response:
        self.scrapes += 1
        lines = [] if self.silent else [*self._of(NAMES, 1), *self._of(("llm-other-1-ccccc",), 1000)]
        return web.Response(text="\n".join([*lines, ""]))

    def _of(self, pods: tuple[str, ...], factor: int) -> list[str]:
        done = self.scrapes * RATE
        lines = []
        for pod in pods:
            labels = f'namespace="work",pod="{pod}"'
            for one in SERVERS.values():
                lines += [f"{name}{{{labels}}} {6 * factor}" for name in (one.waiting, one.running) if name]
                lines += [f"{name}{{{labels}}} {done}" for name in {one.arrived, one.completed} if name]
                spent, count = one.service
                seconds = done * SECONDS_EACH / one.service_unit_s
                lines.append(f"{spent}{{{labels}}} {seconds:.0f}")
                if count not in (one.arrived, one.completed):
                    lines.append(f"{count}{{{labels}}} {done}")
                if one.latency:
                    for bound, share in (("1", 0), ("4", 1), ("+Inf", 1)):
                        lines.append(f'{one.latency}_bucket{{{labels},le="{bound}"}} {done * share}')
                if one.summary:
                    for quantile in ("0.95", "0.99"):
                        lines.append(f'{one.summary}{{{labels},quantile="{quantile}"}} {3_900_000 * factor}')
            lines += [f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 60", f"DCGM_FI_DEV_FB_USED{{{labels}}} 30"]
            lines.append(f"DCGM_FI_DEV_FB_FREE{{{labels}}} 10")
        return sorted(set(lines))


@asynccontextmanager
async def measured(programs: Path, folder: Path) -> AsyncIterator[tuple[Server, PrometheusMeasures, str]]:
    server, app = Server(), web.Application()
    app.router.add_get("/metrics", server.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        port = runner.addresses[0][1]
        async with (
            running(programs / "prometheus", folder, port, CLOCK) as prometheus,
            PrometheusClient(PrometheusConfig(url=prometheus.url)) as client,
        ):
            async with deadline(CLOCK, 60.0):
                while server.scrapes < 8:
                    await CLOCK.sleep(0.2)
            yield server, PrometheusMeasures(client, FRESHNESS_S), f"http://{HOST}:{port}/metrics"
    finally:
        await runner.cleanup()


def a_spec(server: InferenceServer) -> InferencePolicySpec:
    metrics = InferenceMetrics(
        server=server,
        latency=LatencyMetric(p99_ms=2000, p95_ms=1900),
        gpu_utilization=TargetMetric(target=80),
        gpu_memory=TargetMetric(target=90),
        queue_depth=TargetMetric(target=6),
    )
    return InferencePolicySpec(ScaleTarget("Deployment", "llm"), 10, metrics)


async def test_every_server_tells_what_it_has_and_no_other_pods_are_counted(
    programs: Path, tmp_path: Path
) -> None:
    async with measured(programs, tmp_path) as (served, measures, url):
        found = {}
        for server in InferenceServer:
            spec = a_spec(server)
            answers = await measures.ask(questions(spec, PODS))
            told = {one.name: one.value for one in readings(spec, REPLICAS, answers)}
            found[server] = (told, demand(spec, REPLICAS, answers, 8.0))
        gauges = {
            name: one for name, one in questions(a_spec(InferenceServer.VLLM), PODS).items() if one.gauges
        }
        by_prometheus = await measures.ask(gauges)
        async with ExpositionMeasures(url) as exposition:
            by_exposition = await exposition.ask(gauges)
        for metric in CATALOGUE.values():
            query = metric.by_pod(InferenceServer.AUTO, PODS)
            answer = (await measures.ask({"it": Question(query, by_pod=True)}))["it"]
            assert set(answer.pods) == set(NAMES), (metric.name, answer.problem)
        served.silent = True
        async with deadline(CLOCK, 90.0):
            while (await measures.ask(gauges))["waiting"].pods:
                await CLOCK.sleep(1.0)
        silent = readings(
            a_spec(InferenceServer.VLLM),
            REPLICAS,
            await measures.ask(questions(a_spec(InferenceServer.VLLM), PODS)),
        )

    for server, (told, work) in found.items():
        assert told["gpu-utilization"] == 60.0
        assert told["gpu-memory"] == 75.0
        assert told["latency-p99"] == pytest.approx(
            3970.0 if server is not InferenceServer.TRITON else 3900.0
        )
        assert work.service_s == pytest.approx(SECONDS_EACH, rel=0.01)
        assert work.rate is not None
        assert 0.0 < work.rate < 100.0
        has_queue = server is not InferenceServer.KSERVE
        assert told["request-queue-depth"] == (6.0 if has_queue else None)
        has_running = server not in (InferenceServer.KSERVE, InferenceServer.TRITON)
        if server is not InferenceServer.AUTO:
            assert work.running == (12.0 if has_running else None)
    assert by_exposition == by_prometheus
    assert [one.value for one in silent if one.name == "request-queue-depth"] == [None]
