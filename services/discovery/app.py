"""Puts discovery together."""

import os

from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.listing import Selection
from gpuloom.kube.resources import NODES, PODS
from gpuloom.model.node import NodeState
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.serving import Served, rpc_environment, serve
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.garbage import keep_out_of_the_way
from services.discovery.adapters.agents import GrpcAgents
from services.discovery.adapters.informers import (
    finding_agents_by_node,
    finding_agents_by_pod,
    observing_nodes,
    observing_pods,
)
from services.discovery.adapters.kubernetes import PlaceLabels, trimmed_node
from services.discovery.adapters.pods import trimming
from services.discovery.agents import AgentPods, AgentsFile, AgentSource, WantedAgents
from services.discovery.config import DiscoveryConfig
from services.discovery.core.cluster import ClusterModel
from services.discovery.followers import CONNECT_S, Followers, FollowerSettings, Hear
from services.discovery.metrics import DiscoveryMetrics
from services.discovery.readmodel import ReadModel
from services.discovery.server import ALLOWED_CALLERS, SERVICE, DiscoveryServer, add_to_server
from services.discovery.writer.wiring import WriterParts, start_writer

__all__ = ["SERVICE", "build"]

_BOUND = Selection(field_selector="spec.nodeName!=")


async def build(app: App, config: DiscoveryConfig) -> None:
    rpc = rpc_environment(app, config.grpc.tls)
    metrics = DiscoveryMetrics(app.registry)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    sources = Sources(client, app.clock, config)
    cluster = ClusterModel(config.agent_ttl_s, config.lag_grace_s)
    sources.nodes.on_change(
        observing_nodes(cluster, PlaceLabels(config.rack_label, config.nvlink_domain_label))
    )
    sources.pods.on_change(observing_pods(cluster))
    model = ReadModel(cluster, sources.synced, app.clock, metrics, config.usage_interval_s)
    # Before the loops that list, which make most of what there is.
    app.add_loop("garbage", lambda: keep_out_of_the_way(lambda: not model.unsynced_reason(), app.clock))
    app.add_loop("nodes", sources.nodes.run)
    app.add_loop("pods", sources.pods.run)
    followers = _followers(app, config, rpc, _hearing(cluster, app.clock, metrics))
    _find_agents(app, config, sources, WantedAgents(cluster, followers, app.clock))
    writer = start_writer(app, config.writer, WriterParts(client, sources.nodes, cluster))
    if writer is not None:
        model.on_publish(writer.observe)
    app.add_loop("publish", lambda: model.run(config.publish_interval_s))
    app.add_readiness("synced", lambda: model.unsynced_reason() or None)
    servicer = DiscoveryServer(model, config.heartbeat_interval_s, metrics)
    await serve(app, config.grpc, rpc, Served(servicer, add_to_server, SERVICE, ALLOWED_CALLERS))


class Sources:
    """What is followed in Kubernetes."""

    def __init__(self, client: KubeClient, clock: Clock, config: DiscoveryConfig) -> None:
        self.nodes = Informer(client, NODES, clock, InformerOptions(transform=trimmed_node))
        options = InformerOptions(selection=_BOUND, transform=trimming(config.agent_labels))
        self.pods = Informer(client, PODS, clock, options)

    def synced(self) -> bool:
        return self.nodes.synced and self.pods.synced


def _hearing(cluster: ClusterModel, clock: Clock, metrics: DiscoveryMetrics) -> Hear:
    def hear(name: str, state: NodeState | None) -> None:
        metrics.agent_messages.inc()
        cluster.hear(name, clock.monotonic(), state)

    return hear


def _followers(app: App, config: DiscoveryConfig, rpc: RpcEnvironment, hear: Hear) -> Followers:
    silence_s = config.agent_ttl_s / 2
    settings = FollowerSettings(config.concurrent_connects, silence_s, min(CONNECT_S, silence_s))
    followers = Followers(GrpcAgents(rpc), hear, app.clock, settings)
    app.add_loop("agents", followers.run)
    return followers


def _find_agents(app: App, config: DiscoveryConfig, sources: Sources, wanted: WantedAgents) -> None:
    match config.agent_source:
        case AgentSource.FILE if config.agents_file is not None:
            file = AgentsFile(config.agents_file, wanted, app.clock)
            file.read()
            app.add_loop("agents file", file.run)
        case AgentSource.NODES:
            sources.nodes.on_change(finding_agents_by_node(wanted, config.agent_port))
        case _:
            found = AgentPods(wanted, config.agent_port)
            sources.pods.on_change(finding_agents_by_pod(found, config.agent_namespace, config.agent_labels))
