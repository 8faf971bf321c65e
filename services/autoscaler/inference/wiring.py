"""Puts inference autoscaling together: its loop runs beside the node autoscaler's, under the same lease."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gpuloom.clients.prometheus import PrometheusClient
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer
from gpuloom.kube.leadership import Leadership
from gpuloom.kube.objects import metadata_of
from gpuloom.kube.resources import INFERENCE_POLICIES
from gpuloom.runtime.app import App
from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.inference.adapters.prometheus import PrometheusMeasures
from services.autoscaler.inference.adapters.targets import Targets
from services.autoscaler.inference.core.standing import Standing
from services.autoscaler.inference.loop import InferenceLoop, Outside
from services.autoscaler.inference.metrics import InferenceMetrics
from services.autoscaler.inference.notes import StatusWriter
from services.autoscaler.inference.planner import HastyPods
from services.autoscaler.inference.ports import Measures, NoMeasures

Work = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Shared:
    """What the node autoscaler has already."""

    client: KubeClient
    recorder: EventRecorder
    leadership: Leadership
    pods: Informer


@dataclass(frozen=True)
class Inference:
    """`loop` None: switched off."""

    loop: InferenceLoop | None
    planner: HastyPods

    def beside(self, work: Work) -> Work:
        """What the leader does: that and this. A failure that one of them does not handle ends both."""

        async def both() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(_awaited(work), name="nodes")
                if self.loop is not None:
                    group.create_task(self.loop.run(), name="inference")

        return both

    def standings(self) -> list[Standing]:
        return [] if self.loop is None else self.loop.standings


async def open_inference(app: App, config: AutoscalerConfig, shared: Shared) -> Inference:
    planner = HastyPods(app.clock, lambda namespace, name: _labels(shared.pods, namespace, name))
    if not config.inference.enabled:
        return Inference(None, planner)
    policies = Informer(shared.client, INFERENCE_POLICIES, app.clock)
    app.add_loop("inference policies", policies.run)
    measures: Measures = NoMeasures()
    if config.prometheus.url is not None:
        prometheus = await app.enter(PrometheusClient(config.prometheus))
        measures = PrometheusMeasures(prometheus, config.inference.freshness_s)
    write_timeout_s = shared.leadership.write_timeout_s
    outside = Outside(
        clock=app.clock,
        recorder=shared.recorder,
        statuses=StatusWriter(shared.client, shared.recorder, app.clock, write_timeout_s),
        metrics=InferenceMetrics(app.registry),
        write_timeout_s=write_timeout_s,
        planner=planner,
    )
    loop = InferenceLoop(policies, Targets(shared.client), measures, outside, config.inference)
    return Inference(loop, planner)


def _labels(pods: Informer, namespace: str, name: str) -> Mapping[str, str]:
    return metadata_of(pods.get(name, namespace) or {}).get("labels") or {}


async def _awaited(work: Work) -> None:
    await work()
