"""Puts the cost engine together."""

import os

from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer
from gpuloom.kube.leadership import Leadership
from gpuloom.kube.resources import COST_BUDGETS
from gpuloom.kube.reviews import TokenReviews
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.serving import Served, rpc_environment, serve
from gpuloom.rpc.tls import server_ssl_context
from gpuloom.runtime.app import App
from gpuloom.store.database import Database
from gpuloom.v1.cost_engine_pb2_grpc import add_CostEngineServiceServicer_to_server
from services.cost_engine.alerts.budgets import Budgets, BudgetWriter
from services.cost_engine.alerts.channels import ConfiguredChannels
from services.cost_engine.api.exports import Exports
from services.cost_engine.api.http import CostHttp
from services.cost_engine.api.queries import Queries
from services.cost_engine.api.rules import TeamRules
from services.cost_engine.config import CostConfig
from services.cost_engine.core.tracking import Tracker
from services.cost_engine.engine import Engine
from services.cost_engine.ingest.consumer import StoreConsumer, now_ns
from services.cost_engine.ingest.facts import FactWriter, Sources
from services.cost_engine.ingest.usage import follow_usage
from services.cost_engine.metrics import CostMetrics, OpenCostMetrics
from services.cost_engine.prices.clouds import price_sources
from services.cost_engine.prices.refresher import Prices
from services.cost_engine.server import ALLOWED_CALLERS, SERVICE, CostEngineServer
from services.cost_engine.store.store import CostStore

__all__ = ["SERVICE", "build"]


async def build(app: App, config: CostConfig) -> None:
    rpc = rpc_environment(app, config.grpc.tls)
    metrics = CostMetrics(app.registry)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    database = await app.enter(Database(config.store, app.clock))
    store = CostStore(database, config.store_settings())
    await store.open()
    rules = TeamRules(config.teams_file, app.clock)
    app.add_loop("team rules", rules.run)
    prices = Prices(store, price_sources(config.prices), config.prices.file, app.clock, metrics)
    prices.check_file()
    queries = Queries(store, rules, app.clock, config.hours_per_month)
    leadership = Leadership(client, config.leadership, app.clock, os.environ)
    metrics.leader.set_function(lambda: float(leadership.is_leader()))
    engine = Engine(store, prices, app.clock, (metrics, OpenCostMetrics(app.registry)))
    sources = Sources(client, app.clock)
    for name, informer in (
        ("nodes", sources.nodes),
        ("pods", sources.pods),
        ("namespaces", sources.namespaces),
    ):
        app.add_loop(name, informer.run)
    budgets = _budgets(app, config, client, (store, rules, metrics))
    consumer = StoreConsumer(store, app.clock, metrics)
    engine.after_compute.append(budgets.look)
    engine.loops += [
        consumer.run,
        prices.watch_file,
        lambda: prices.refresh(config.prices.refresh_s),
        await follow_usage(app, rpc, str(config.discovery_address), consumer, metrics),
    ]

    _lead(app, config, leadership, (engine, sources, store))
    exports = Exports(queries, config.leadership.namespace())
    await _serve_http(app, config, rpc, (queries, exports, TokenReviews(client, app.clock)))
    servicer = CostEngineServer(queries, exports, budgets, (prices, store, app.clock), lambda: engine.started)
    served = Served(servicer, add_CostEngineServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)
    await serve(app, config.grpc, rpc, served)


def _lead(
    app: App, config: CostConfig, leadership: Leadership, parts: tuple[Engine, Sources, CostStore]
) -> None:
    engine, sources, store = parts

    async def lead() -> None:
        await store.begin_term(now_ns(app.clock))
        tracker = Tracker(await store.epoch_ns(now_ns(app.clock)), config.pool_labels, config.slice_rule)
        await engine.lead(FactWriter(sources, store, tracker, app.clock), config.compute_interval_s)

    def unready() -> str | None:
        if not sources.synced:
            return "nodes and pods are not listed yet"
        return "costs are not taken up yet" if leadership.is_leader() and not engine.started else None

    app.add_loop("leadership", lambda: leadership.run(lead, lambda: sources.synced))
    app.add_liveness("costs", engine.stuck_reason)
    app.add_readiness("costs", unready)


def _budgets(
    app: App, config: CostConfig, client: KubeClient, parts: tuple[CostStore, TeamRules, CostMetrics]
) -> Budgets:
    store, rules, metrics = parts
    observed = Informer(client, COST_BUDGETS, app.clock)
    app.add_loop("budgets", observed.run)
    identity = config.leadership.pod_name or "cost-engine"
    recorder = EventRecorder(client, "gpuloom-cost-engine", identity, app.clock, registry=app.registry)
    app.add_loop("events", recorder.run)
    outside = BudgetWriter(client, recorder), ConfiguredChannels(config.alerts)
    return Budgets(store, observed, rules, outside, app.clock, metrics)


async def _serve_http(
    app: App, config: CostConfig, rpc: RpcEnvironment, parts: tuple[Queries, Exports, TokenReviews]
) -> None:
    queries, exports, tokens = parts
    tls = None if rpc.certificates is None else server_ssl_context(rpc.certificates, False)
    place = config.api.host, config.api.port, tls
    reviewed = tokens if config.api.token_review else None
    await app.enter(CostHttp(queries, exports, reviewed, place, app.clock))
