"""Puts the controller together."""

import os
import socket

from gpuloom.clients.agent_directory import AgentDirectory
from gpuloom.clients.discovery import ClusterMirror
from gpuloom.clients.gpu_prices import GpuPrices
from gpuloom.clients.holds import HoldClient
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.leadership import Leadership
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import metadata_of, uid_of, without_managed_fields
from gpuloom.kube.resources import GPU_NODE_CONFIGS, GPU_SHARING_POLICIES, PODS
from gpuloom.model.node import PodRef
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.serving import Served, rpc_environment, serve
from gpuloom.runtime.app import App
from gpuloom.runtime.failpoints import Failpoints
from gpuloom.v1.mig_controller_pb2_grpc import add_MigControllerServiceServicer_to_server
from services.mig_controller.adapters.agents import GrpcAgents
from services.mig_controller.adapters.configs import NodeConfigs, SharingPolicies, StatusWriter
from services.mig_controller.adapters.evictions import KubeEvictor
from services.mig_controller.adapters.holds import ExtenderHolds
from services.mig_controller.adapters.intents import ConfigMapIntents
from services.mig_controller.adapters.nodes import KubeNodeLabels
from services.mig_controller.adapters.prices import NodePrices
from services.mig_controller.config import MigConfig
from services.mig_controller.controller import Controller, Makers, Sources
from services.mig_controller.defragmenter import Defragmenter
from services.mig_controller.metrics import MigMetrics
from services.mig_controller.server import ALLOWED_CALLERS, SERVICE, MigControllerServer
from services.mig_controller.steering import Steering
from services.mig_controller.transactions import TransactionParts, Transactions

_STATUS_INTERVAL_S = 5.0


async def build(app: App, config: MigConfig) -> None:
    rpc = rpc_environment(app, config.grpc.tls)
    metrics = MigMetrics(app.registry)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    discovery = await app.enter(RpcChannel(rpc, str(config.discovery_address), "discovery"))
    extender = await app.enter(RpcChannel(rpc, str(config.extender_address), "scheduler_extender"))
    mirror = ClusterMirror(discovery, app.clock)
    agents = await app.enter(GrpcAgents(AgentDirectory(mirror), rpc))
    options = InformerOptions(transform=without_managed_fields)
    pods = Informer(client, PODS, app.clock, options)
    configs = Informer(client, GPU_NODE_CONFIGS, app.clock, InformerOptions(selection=Selection()))
    leadership = Leadership(client, config.leadership, app.clock, os.environ)
    writer = StatusWriter(client, leadership.write_timeout_s)
    policies = Informer(client, GPU_SHARING_POLICIES, app.clock)
    node_configs = NodeConfigs(writer, configs, app.clock)
    sharing = SharingPolicies(writer, policies, app.clock)
    recorder = EventRecorder(
        client, "gpuloom-mig-controller", socket.gethostname(), app.clock, registry=app.registry
    )
    prices = NodePrices(GpuPrices(config.usd_per_gpu_hour), mirror)
    holds = ExtenderHolds(HoldClient(extender))
    parts = TransactionParts(
        holds=holds,
        agents=agents,
        evictor=KubeEvictor(client, pods, recorder, leadership.write_timeout_s),
        store=ConfigMapIntents(client, config.leadership.namespace(), leadership.write_timeout_s),
        clock=app.clock,
        metrics=metrics,
        reach=Failpoints(config.failpoints.points, app.clock).reach,
    )
    sources = Sources(
        facts=lambda: list(mirror.snapshot().nodes.values()),
        pods=pods.objects,
        configs=node_configs.all,
        unsynced=lambda: _unsynced(mirror, pods, configs, config.facts_ttl_s),
    )
    labels = KubeNodeLabels(client, leadership.write_timeout_s)
    makers = Makers(
        transactions=lambda: Transactions(parts),
        steering=lambda: Steering(holds, labels, app.clock, metrics, config.steering.options()),
        defragmenter=Defragmenter(pods.objects, prices, config.plan.defragmenting()),
    )
    controller = Controller(
        sources,
        makers,
        config.plan.options(),
        app.clock,
        metrics,
        _teller(pods, recorder),
    )
    for name, loop in (
        ("discovery", mirror.run),
        ("pods", pods.run),
        ("configs", configs.run),
        ("policies", policies.run),
    ):
        app.add_loop(name, loop)
    app.add_loop("events", recorder.run)
    if config.cost_engine_address is not None:
        costs = await app.enter(RpcChannel(rpc, str(config.cost_engine_address), "cost_engine"))
        app.add_loop("prices", lambda: prices.gpu.follow(costs, app.clock))
    app.add_loop("leadership", lambda: leadership.run(lambda: controller.lead(config.plan.interval_s)))
    app.add_loop("status", lambda: _write_status(app, controller, node_configs, sharing))
    app.add_readiness("synced", lambda: sources.unsynced() or None)
    servicer = MigControllerServer(controller, lambda ref: _annotations(pods, ref), config.enforcement)
    add_to_server = add_MigControllerServiceServicer_to_server
    await serve(app, config.grpc, rpc, Served(servicer, add_to_server, SERVICE, ALLOWED_CALLERS))


def _annotations(pods: Informer, ref: PodRef) -> dict[str, str]:
    pod = pods.get(ref.name, ref.namespace)
    return {} if pod is None else metadata_of(pod).get("annotations") or {}


def _unsynced(mirror: ClusterMirror, pods: Informer, configs: Informer, ttl_s: float) -> str:
    if not mirror.synced or mirror.age_s() > ttl_s:
        return "discovery does not tell of devices"
    return "" if pods.synced and configs.synced else "pods and GPUNodeConfigs are not listed yet"


def _teller(pods: Informer, recorder: EventRecorder) -> "Teller":
    return Teller(pods, recorder)


class Teller:
    """Tells a pod what is made for it, as an event."""

    def __init__(self, pods: Informer, recorder: EventRecorder) -> None:
        self._pods = pods
        self._recorder = recorder

    def __call__(self, about: PodRef, reason: str, text: str) -> None:
        pod = self._pods.get(about.name, about.namespace)
        if pod is not None and uid_of(pod) == about.uid:
            self._recorder.normal({"apiVersion": "v1", "kind": "Pod", **pod}, reason, text)


async def _write_status(
    app: App, controller: Controller, configs: NodeConfigs, policies: SharingPolicies
) -> None:
    while True:
        await app.clock.sleep(_STATUS_INTERVAL_S)
        if controller.view is not None:
            await configs.write_status(controller.view)
        # Its term may have ended meanwhile.
        if controller.view is not None:
            await policies.write_status(controller.view)
