"""Puts the controller together."""

import asyncio
import os

from prometheus_client import CollectorRegistry

from gpuloom.clients.prometheus import PrometheusClient
from gpuloom.kube.cache import Change
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.leadership import Leadership
from gpuloom.kube.reconciler import Reconciler, ReconcilerOptions, controller_of
from gpuloom.kube.resources import GPU_WORKLOADS, JOBS
from gpuloom.placement.strategies import ENTRY_POINTS, WITHOUT_DEVICES
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.serving import Served, rpc_environment, serve
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.plug_ins import plug_ins
from gpuloom.v1.controller_pb2_grpc import add_ControllerServiceServicer_to_server
from services.controller.adapters.images import ModelImages
from services.controller.adapters.kubernetes import KubernetesCluster, KubernetesWorkloads
from services.controller.adapters.waste import (
    ConfigMapPursuits,
    KubernetesWaste,
    OptimizerWaste,
    PrometheusCheck,
)
from services.controller.config import ControllerConfig, Placement
from services.controller.metrics import ControllerMetrics
from services.controller.server import ALLOWED_CALLERS, SERVICE, ControllerServer
from services.controller.waste_events import WasteEvents, WasteParts, WasteRules
from services.controller.workloads import Workloads, WorkloadSettings

__all__ = ["SERVICE", "build"]


async def build(app: App, config: ControllerConfig) -> None:
    rpc = rpc_environment(app, config.grpc.tls)
    metrics = ControllerMetrics(app.registry)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    leadership = Leadership(client, config.leadership, app.clock, os.environ)
    images = ModelImages(
        client, app.clock, config.leadership.namespace(), config.images, config.default_image
    )
    cluster = KubernetesCluster(client, app.clock, config.namespace, config.selector, images.of)
    recorder = EventRecorder(
        client, "gpuloom-controller", leadership.identity, app.clock, registry=app.registry
    )
    api = KubernetesWorkloads(client, leadership)
    workloads = Workloads(api, cluster, recorder, _settings(config), app.clock, metrics)
    loop = workload_loop(cluster, workloads, app.clock, app.registry, config.workers)
    waste = await _waste(app, config, (client, leadership, recorder, cluster), rpc, metrics)
    informers = (*cluster.informers, images.informer)
    for informer in informers:
        app.add_loop(f"informer {informer.resource.plural} {id(informer)}", informer.run)

    def unsynced() -> str | None:
        missing = sorted({one.resource.plural for one in informers if not one.synced})
        return f"not listed yet: {', '.join(missing)}" if missing else None

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(loop.run())
            group.create_task(recorder.run())
            if waste is not None:
                group.create_task(waste.run())

    app.add_loop("leadership", lambda: leadership.run(work, lambda: unsynced() is None))
    app.add_readiness("synced", unsynced)
    app.add_liveness("workloads", lambda: loop.stuck_reason() if leadership.is_leader() else None)
    if waste is not None:
        app.add_liveness("waste", lambda: waste.stuck_reason() if leadership.is_leader() else None)
    servicer = ControllerServer(cluster.workloads.objects, unsynced)
    served = Served(servicer, add_ControllerServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)
    await serve(app, config.grpc, rpc, served)


async def _waste(
    app: App,
    config: ControllerConfig,
    kubernetes: tuple[KubeClient, Leadership, EventRecorder, KubernetesCluster],
    rpc: RpcEnvironment,
    metrics: ControllerMetrics,
) -> WasteEvents | None:
    def problem() -> str | None:
        return None

    if config.prometheus.url is not None:
        check = PrometheusCheck(await app.enter(PrometheusClient(config.prometheus)), app.clock)
        app.add_loop("Prometheus", check.run)
        app.add_readiness("Prometheus", check.problem)
        problem = check.problem
    if not config.waste:
        return None
    client, leadership, recorder, cluster = kubernetes
    channel = await app.enter(RpcChannel(rpc, str(config.optimizer_address), "optimizer"))
    parts = WasteParts(
        OptimizerWaste(channel),
        KubernetesWaste(client, leadership, recorder, cluster.gpu_pods),
        ConfigMapPursuits(client, leadership, config.leadership.namespace()),
        problem,
    )
    rules = WasteRules(config.waste_threshold, config.waste_interval_s, config.namespace)
    return WasteEvents(parts, rules, app.clock, metrics)


def workload_loop(
    cluster: KubernetesCluster,
    workloads: Workloads,
    clock: Clock,
    registry: CollectorRegistry,
    workers: int = 8,
) -> Reconciler:
    """A step for each workload that changed, or whose Job or pod did."""
    loop = Reconciler(
        "controller_workloads",
        cluster.workloads,
        workloads.reconcile,
        clock,
        registry,
        ReconcilerOptions(workers=workers),
    )
    cluster.workloads.on_change(loop.observe)
    cluster.jobs.on_change(lambda change: loop.observe_dependent(change, GPU_WORKLOADS.kind))

    def pod_changed(change: Change) -> None:
        owner = controller_of(change.object, JOBS.kind)
        job = None if owner is None else cluster.jobs.get(owner[1], owner[0])
        workload = None if job is None else controller_of(job, GPU_WORKLOADS.kind)
        if workload is not None:
            loop.queue.add(workload)

    cluster.pods.on_change(pod_changed)
    return loop


def _settings(config: ControllerConfig) -> WorkloadSettings:
    return WorkloadSettings(
        strategies={**plug_ins(ENTRY_POINTS), **WITHOUT_DEVICES},
        priority_class_prefix=config.priority_class_prefix,
        scheduler_name=config.scheduler_name,
        pins_nodes=config.placement is Placement.AFFINITY,
        gives_shares=config.gives_shares(),
    )
