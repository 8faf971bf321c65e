"""Puts inference autoscaling together: its loop runs beside the node autoscaler's, under the same lease."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gpuloom.clients.prometheus import PrometheusClient
from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.keda.externalscaler_pb2_grpc import add_ExternalScalerServicer_to_server
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer
from gpuloom.kube.leadership import Leadership
from gpuloom.kube.objects import metadata_of
from gpuloom.kube.resources import INFERENCE_POLICIES
from gpuloom.rpc.serving import Served, ServingConfig
from gpuloom.rpc.tls import CertificateSource
from gpuloom.runtime.app import App
from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.inference.adapters import keda as keda_api
from services.autoscaler.inference.adapters.api_services import ApiServices
from services.autoscaler.inference.adapters.catalogue import CatalogueReader
from services.autoscaler.inference.adapters.delegation import Delegation
from services.autoscaler.inference.adapters.exposition import ExpositionMeasures
from services.autoscaler.inference.adapters.keda import KedaScaler
from services.autoscaler.inference.adapters.metrics_api import MetricsApi
from services.autoscaler.inference.adapters.prometheus import PrometheusMeasures
from services.autoscaler.inference.adapters.targets import Targets
from services.autoscaler.inference.core.standing import Standing
from services.autoscaler.inference.loop import InferenceLoop, Outside
from services.autoscaler.inference.metrics import InferenceMetrics
from services.autoscaler.inference.notes import StatusWriter
from services.autoscaler.inference.planner import HastyPods
from services.autoscaler.inference.ports import Measures, NoMeasures

_log = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Shared:
    """What the node autoscaler has already."""

    client: KubeClient
    recorder: EventRecorder
    leadership: Leadership
    pods: Informer
    certificates: CertificateSource | None


@dataclass(frozen=True)
class Inference:
    """`loop` None: switched off. `keda` serves whether or not this replica leads."""

    loop: InferenceLoop | None
    planner: HastyPods
    keda: Served[KedaScaler]

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
    measures: Measures = NoMeasures()
    if config.prometheus.url is not None:
        prometheus = await app.enter(PrometheusClient(config.prometheus))
        measures = PrometheusMeasures(prometheus, config.inference.freshness_s)
    elif config.inference.metrics_url is not None:
        measures = await app.enter(ExpositionMeasures(config.inference.metrics_url))
    targets = Targets(shared.client)
    reader = CatalogueReader(shared.client, targets, measures, app.clock)
    scaler = KedaScaler(reader, measures, app.clock)
    keda = Served(scaler, add_ExternalScalerServicer_to_server, keda_api.SERVICE, keda_api.ALLOWED_CALLERS)
    if config.metrics_api.enabled:
        await _serve_metrics(app, config, shared, reader)
    loop = None
    if config.inference.enabled:
        policies = Informer(shared.client, INFERENCE_POLICIES, app.clock)
        app.add_loop("inference policies", policies.run)
        loop = InferenceLoop(policies, targets, measures, _outside(app, shared, planner), config.inference)
    return Inference(loop, planner, keda)


def keda_serving(config: AutoscalerConfig) -> ServingConfig:
    """A port of its own: who may reach the rest of this service is a matter of NetworkPolicies as well."""
    return ServingConfig(
        host=config.keda.host,
        port=config.keda.port,
        reflection=config.grpc.reflection,
        tls=config.grpc.tls,
    )


def _outside(app: App, shared: Shared, planner: HastyPods) -> Outside:
    write_timeout_s = shared.leadership.write_timeout_s
    return Outside(
        clock=app.clock,
        recorder=shared.recorder,
        statuses=StatusWriter(shared.client, shared.recorder, app.clock, write_timeout_s),
        metrics=InferenceMetrics(app.registry),
        write_timeout_s=write_timeout_s,
        planner=planner,
    )


async def _serve_metrics(app: App, config: AutoscalerConfig, shared: Shared, reader: CatalogueReader) -> None:
    certificates, settings = shared.certificates, config.metrics_api
    if certificates is None:
        raise InvalidRequestError("GPULOOM_AUTOSCALER_METRICS_API needs GPULOOM_TLS_CERT_FILE and its kin")
    delegation = Delegation(shared.client, app.clock)
    try:
        await delegation.renew()
    except GpuloomError as error:
        _log.warning("front proxy not read yet", extra={"reason": str(error)})
    app.add_loop("front proxy", delegation.run)
    api = MetricsApi(reader, delegation, certificates, (settings.host, settings.port), app.clock)
    await app.enter(api)
    if settings.service is not None:
        place = config.leadership.namespace(), settings.service
        kept = ApiServices(shared.client, place, lambda: certificates.current().trusted_ca, app.clock)
        app.add_loop("API services", kept.run)


def _labels(pods: Informer, namespace: str, name: str) -> Mapping[str, str]:
    return metadata_of(pods.get(name, namespace) or {}).get("labels") or {}


async def _awaited(work: Work) -> None:
    await work()
