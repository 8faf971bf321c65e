"""Puts the console together. A new section of the page is one more line in `_sources`."""

import os

from gpuloom.clients.discovery import ClusterMirror, MirrorOptions
from gpuloom.clients.extender import DecisionFollower, explain
from gpuloom.clients.ledger import LedgerMirror
from gpuloom.clients.planning import PlanClient
from gpuloom.clients.prometheus import PrometheusClient
from gpuloom.clients.replicas import Replicas
from gpuloom.kube.client import KubeClient
from gpuloom.kube.reviews import AccessReviews, TokenReviews
from gpuloom.model.node import PodRef
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.serving import rpc_environment
from gpuloom.rpc.tls import server_ssl_context
from gpuloom.runtime.app import App
from services.console.aggregator import Aggregator
from services.console.config import Access, ConsoleConfig
from services.console.core.placing import explanation_json
from services.console.core.state import Json
from services.console.metrics import ConsoleMetrics
from services.console.ports import Source
from services.console.sections.alerts import alerts_source
from services.console.sections.cluster import cluster_source
from services.console.sections.ledger import ledger_source
from services.console.sections.money import costs_source, summary_source
from services.console.sections.placing import placing_source
from services.console.sections.planning import planning_source
from services.console.sections.scaling import scaling_source
from services.console.sections.slices import slices_source
from services.console.sections.waste import recommendation, waste_source
from services.console.sections.workloads import workloads_source
from services.console.web.access import Gate, LoopbackGate, ProxyHeaders, TokenGate
from services.console.web.server import ConsolePort, Parts, Place

MOST_DECISIONS = 1000
EXPLAIN_TIMEOUT_S = 5.0


async def build(app: App, config: ConsoleConfig) -> None:
    rpc = rpc_environment(app, config.tls)
    metrics = ConsoleMetrics(app.registry)
    extender = await app.enter(RpcChannel(rpc, str(config.extender_address), "scheduler_extender"))
    optimizer = await app.enter(RpcChannel(rpc, str(config.optimizer_address), "optimizer"))
    sources = await _sources(app, config, rpc, extender, optimizer)
    aggregator = Aggregator(sources, app.clock, metrics)
    for source in sources:
        _add_loops(app, aggregator, source)

    async def explained(pod: PodRef) -> Json:
        return explanation_json(await explain(extender, pod, EXPLAIN_TIMEOUT_S))

    async def recommended(pod: PodRef) -> Json:
        return await recommendation(optimizer, pod)

    gate = await _gate(app, config, aggregator)
    questions = {"explain": explained, "recommendation": recommended}
    parts = Parts(aggregator, gate, questions, app.clock, metrics, config.most_clients)
    tls = (
        None
        if rpc.certificates is None
        else server_ssl_context(rpc.certificates, False, ask_for_client_certificate=config.proxy)
    )
    port = await app.enter(ConsolePort(parts, Place(config.https_host, config.https_port, tls)))
    app.on_drain("streams", port.drain)
    # Others are not waited for: the page says which of them are away.


async def _sources(
    app: App, config: ConsoleConfig, rpc: RpcEnvironment, extender: RpcChannel, optimizer: RpcChannel
) -> list[Source]:
    async def channel(address: object, service: str) -> RpcChannel:
        return await app.enter(RpcChannel(rpc, str(address), service))

    discovery = Replicas(rpc, (config.discovery_address,), "discovery")
    cost = await channel(config.cost_address, "cost_engine")
    follower = DecisionFollower(extender, app.clock, MOST_DECISIONS)
    sources = [
        cluster_source(ClusterMirror(discovery, app.clock, MirrorOptions(with_usage=True))),
        ledger_source(LedgerMirror(extender, app.clock)),
        placing_source(follower, extender, app.clock),
        planning_source(PlanClient(extender)),
        slices_source(await channel(config.mig_address, "mig_controller")),
        scaling_source(await channel(config.autoscaler_address, "autoscaler"), app.clock),
        summary_source(cost),
        costs_source(cost, app.clock),
        waste_source(optimizer),
        workloads_source(await channel(config.controller_address, "controller")),
    ]
    if config.prometheus.url is not None:
        sources.append(alerts_source(await app.enter(PrometheusClient(config.prometheus))))
    return sources


def _add_loops(app: App, aggregator: Aggregator, source: Source) -> None:
    app.add_loop(f"source {source.name}", lambda: aggregator.run(source))
    if source.follow is not None:
        app.add_loop(f"stream {source.name}", source.follow)


async def _gate(app: App, config: ConsoleConfig, aggregator: Aggregator) -> Gate:
    if config.access is not Access.TOKEN:
        return LoopbackGate()
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    rights = AccessReviews(client, app.clock) if config.by_namespace else None
    proxy = ProxyHeaders(config.user_header, config.groups_header) if config.proxy else None
    tokens = TokenReviews(client, app.clock)
    return TokenGate(tokens, rights, proxy, aggregator.namespaces)
