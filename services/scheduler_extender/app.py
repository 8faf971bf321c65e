"""Puts the extender together."""

import os
import random
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from gpuloom.clients.discovery import ClusterMirror
from gpuloom.clients.optimizer import hint
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.leadership import Unopposed
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import NODES
from gpuloom.placement.strategies import ENTRY_POINTS, Order
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.serving import rpc_environment, serve
from gpuloom.rpc.tls import server_ssl_context
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.failpoints import Failpoints
from gpuloom.runtime.garbage import keep_out_of_the_way
from gpuloom.runtime.plug_ins import plug_ins
from services.scheduler_extender.adapters.admission_policies import PolicyWatch
from services.scheduler_extender.adapters.budgets import prefetch_verdicts, watch_waiting
from services.scheduler_extender.adapters.demand import DemandStore
from services.scheduler_extender.adapters.fence import KubernetesFence
from services.scheduler_extender.adapters.hints import Hints
from services.scheduler_extender.adapters.holds import HoldFeed, HoldFence, KubernetesHolds
from services.scheduler_extender.adapters.kubernetes import (
    KubernetesBinder,
    KubernetesMarker,
    KubernetesPods,
)
from services.scheduler_extender.adapters.leader_label import KubernetesLeaderLabel, NoLeaderLabel
from services.scheduler_extender.adapters.lease import NotedLease
from services.scheduler_extender.adapters.name_warnings import NameWarnings
from services.scheduler_extender.adapters.pod_informer import PodInformer
from services.scheduler_extender.adapters.quarantine import ReleaseWatch, WatchedBinder
from services.scheduler_extender.adapters.reservations import ReservationFeed
from services.scheduler_extender.adapters.sources import Sources
from services.scheduler_extender.adapters.strategies import Strategies
from services.scheduler_extender.config import ExtenderConfig, HintConfig
from services.scheduler_extender.core.gangs.entitlements import ReservationBook
from services.scheduler_extender.core.gangs.guard import Board, Guard
from services.scheduler_extender.core.inquiries.evaluation import Judge
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.objects.schedulers import SchedulerNames
from services.scheduler_extender.core.objects.trimming import trim_node
from services.scheduler_extender.core.verbs.budgets import BudgetGate
from services.scheduler_extender.core.verbs.comparison import Comparison
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import Preferences
from services.scheduler_extender.core.verbs.quarantine import Quarantine
from services.scheduler_extender.holds.holding import Holding
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.inquiries.inquiries import Inquiries, Records
from services.scheduler_extender.leadership.leadership import LeadershipParts, LeadershipState
from services.scheduler_extender.metrics import ExtenderMetrics
from services.scheduler_extender.planning.assembly import PlanningGrounds, PlanningMeans, plan_server
from services.scheduler_extender.ports import LeaderLabel
from services.scheduler_extender.server import HoldServer, SchedulerExtenderServer, served
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.state.demand import Learning
from services.scheduler_extender.state.ledger_feed import LedgerFeed
from services.scheduler_extender.state.view_refresher import ViewRefresher
from services.scheduler_extender.state.waker import Waker
from services.scheduler_extender.verbs.binding import BindContext, Bindings
from services.scheduler_extender.verbs.https import ExtenderHttp, HttpsOptions
from services.scheduler_extender.verbs.verbs import Verbs

WAKE_INTERVAL_S = 1.0
SETTLE_INTERVAL_S = 30.0
HOLD_INTERVAL_S = 2.0
WARM_CONNECTIONS = 8
RENEWALS = 12
"""In one duration of the lease: so often that a Binding nearly always finds its full timeout left of it."""


async def build(app: App, config: ExtenderConfig) -> None:
    rpc = rpc_environment(app, config.grpc.tls)
    metrics = ExtenderMetrics(app.registry)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    await client.warm(WARM_CONNECTIONS, timeout_s=2.0)
    discovery = await app.enter(RpcChannel(rpc, str(config.discovery_address), "discovery"))
    contested = config.leadership.elects(os.environ)
    feed = PodInformer(client, app.clock, prompt=contested)
    holds = HoldFeed(client, app.clock, prompt=contested)
    nodes = Informer(client, NODES, app.clock, InformerOptions(transform=trim_node))
    reserved, reservations = _reservations(client, app.clock)
    sources = Sources(nodes, feed, holds, ClusterMirror(discovery, app.clock), reserved)
    state = _state(config, sources, app.clock)
    parts = _parts(config, client, sources, app.clock)
    leadership = LeadershipState(sources, parts, app.clock, metrics)
    evaluator = Evaluator(config.weights.weights())
    hint_of = await _hints(app, config.hint, rpc, feed)
    state.views.keep(evaluator.fleet)
    guard = Guard(state.views, state.ledger.holds, Board(), reservations.entitlement_of)
    context = BindContext(
        state.ledger,
        state.views,
        DecisionLog(app.clock),
        app.clock,
        lambda: evaluator.fleet.prices,
        Comparison(evaluator.of, evaluator.fleet.view, hint_of),
        guard,
    )
    quarantine, marker = Quarantine(chance=random.random), KubernetesMarker(client)
    pods = KubernetesPods(feed.informer, client)
    binder = WatchedBinder(
        KubernetesBinder(client, Failpoints(config.failpoints.points, app.clock)), quarantine, pods, app.clock
    )
    bindings = Bindings(context, pods, binder, config.bind_timeout_s, leadership)
    waker = Waker(state, marker, app.clock, metrics, leadership.is_leader)
    releases = ReleaseWatch(quarantine, marker, app.clock, sources.nodes, leadership.is_leader)
    _wake(app, waker, releases)
    _follow(app, sources, state)
    await _learn(
        app, state, evaluator, DemandStore(client, config.leadership.namespace(), app.clock), leadership
    )
    app.add_loop("leadership", leadership.run)
    app.add_loop("open binds", lambda: _settle(bindings, app.clock))
    policies = _policies(app, config, client, leadership, metrics)
    app.add_readiness("ledger", lambda: leadership.unhealthy_reason() or None)
    recorder = _warn_of_names(app, client, feed, leadership)
    metrics.watch(state)
    metrics.quarantined.set_function(lambda: quarantine.held_count(app.clock.monotonic()))
    preferences = Preferences(config.shortlist, evaluator, config.first_shortlist, hint_of, _order_of(nodes))
    schedulers = SchedulerNames(config.scheduler_names)
    budgets = await _budgets(app, config, rpc, lambda: _waiting(state, feed))
    verbs = Verbs(context, bindings, preferences, quarantine, schedulers, budgets)
    https = ExtenderHttp(verbs, leadership.unready_reason, _https(config, rpc), app.clock, metrics)
    app.add_loop("https port", (await app.enter(https)).run)
    records = Records(
        state.views,
        context.decisions,
        quarantine,
        sources.nodes,
        feed.informer,
        schedulers,
        policies.note,
        budgets,
        guard,
        config.enforcement,
    )
    inquiries = Inquiries(
        records, Judge(evaluator, context.prices, preferences.order_of), leadership.unready_reason, app.clock
    )
    ledger_feed = LedgerFeed(state.views, leadership.unready_reason, app.clock)
    servicer = SchedulerExtenderServer(state.ledger, ledger_feed, context.decisions, inquiries)
    holding = _holding(app, client, state, leadership)
    plans = plan_server(
        app,
        config.planning,
        PlanningGrounds(sources, state, evaluator, guard, reservations),
        PlanningMeans(client, holding, leadership, recorder, metrics),
    )
    await serve(app, config.grpc, rpc, *served(servicer, HoldServer(holding), plans))
    if contested:
        # Drained first, being last: whoever takes over should not wait for readers to hang up.
        app.on_drain("leadership", leadership.step_down)


def _order_of(nodes: Informer) -> Callable[[JsonObject], Order | None]:
    strategies = Strategies(plug_ins(ENTRY_POINTS))
    nodes.on_change(strategies.observe_node)
    return strategies.of


def _reservations(client: KubeClient, clock: Clock) -> tuple[ReservationFeed, ReservationBook]:
    feed, book = ReservationFeed(client, clock, prompt=True), ReservationBook()
    feed.informer.on_change(book.observe)
    return feed, book


def _wake(app: App, waker: Waker, releases: ReleaseWatch) -> None:
    app.add_loop("waker", lambda: waker.run(WAKE_INTERVAL_S))
    app.add_loop("quarantine", lambda: releases.run(WAKE_INTERVAL_S))


def _policies(
    app: App,
    config: ExtenderConfig,
    client: KubeClient,
    leadership: LeadershipState,
    metrics: ExtenderMetrics,
) -> PolicyWatch:
    policies = PolicyWatch(client, config.admission_policies, config.leadership.own_pod(), app.clock, metrics)
    if config.admission_policies:
        app.add_loop("admission policies", lambda: policies.run(leadership.is_leader))
    return policies


async def _hints(
    app: App, config: HintConfig, rpc: RpcEnvironment, feed: PodInformer
) -> Callable[[str], Mapping[str, float]]:
    """Advice by pod UID, in points by node name; none if nobody is to be asked."""
    if config.address is None or config.weight == 0:
        return lambda _uid: {}
    channel = await app.enter(RpcChannel(rpc, str(config.address), "optimizer"))
    hints = Hints(partial(hint, channel), config.weight, app.clock, app.registry)
    feed.informer.on_change(hints.observe)
    app.add_loop("hints", hints.run)
    return hints.of


def _state(config: ExtenderConfig, sources: Sources, clock: Clock) -> ClusterState:
    mirror = sources.mirror
    state = ClusterState(Ledger(config.settle_s), lambda: mirror.age_s() > config.facts_ttl_s, clock)
    sources.feed(state)
    return state


def _follow(app: App, sources: Sources, state: ClusterState) -> None:
    app.add_loop("discovery", sources.mirror.run)
    app.add_loop("nodes", sources.nodes.run)
    app.add_loop("pods", sources.follow_pods)
    app.add_loop("holds", sources.holds.run)
    app.add_loop("reservations", sources.reservations.run)
    refresher = ViewRefresher(state.views)
    app.add_loop("views", refresher.run)
    app.add_loop("garbage", lambda: keep_out_of_the_way(lambda: not sources.missing(), app.clock))
    app.add_readiness("views", lambda: sources.missing() or refresher.unready_reason() or None)


async def _learn(
    app: App, state: ClusterState, evaluator: Evaluator, store: DemandStore, leadership: LeadershipState
) -> None:
    learning = Learning(evaluator.fleet)
    saved = await store.load()
    if saved is not None:
        learning.adopt(saved)
    state.on_arrival(learning.learn)
    app.add_loop("prices", learning.run)
    app.add_loop("demand", lambda: store.keep(lambda: learning.demand, leadership.is_leader))


async def _budgets(
    app: App, config: ExtenderConfig, rpc: RpcEnvironment, waiting: Callable[[], Iterable[JsonObject]]
) -> BudgetGate:
    gate = BudgetGate()
    if config.cost_address is not None:
        channel = await app.enter(RpcChannel(rpc, str(config.cost_address), "cost_engine"))
        app.add_loop("budgets", lambda: prefetch_verdicts(channel, gate, app.clock))
        app.add_loop("throttled pods", lambda: watch_waiting(gate, waiting, app.clock))
    return gate


def _waiting(state: ClusterState, feed: PodInformer) -> Iterable[JsonObject]:
    found = (feed.informer.get(ref.name, ref.namespace) for ref in state.pending_pods())
    return (pod for pod in found if pod is not None)


def _holding(app: App, client: KubeClient, state: ClusterState, leadership: LeadershipState) -> Holding:
    holding = Holding(state.ledger, KubernetesHolds(client), leadership, leadership.unready_reason, app.clock)
    app.add_loop("ending holds", lambda: holding.run(HOLD_INTERVAL_S))
    return holding


def _warn_of_names(
    app: App, client: KubeClient, feed: PodInformer, leadership: LeadershipState
) -> EventRecorder:
    recorder = EventRecorder(
        client, "gpuloom-scheduler-extender", socket.gethostname(), app.clock, registry=app.registry
    )
    warnings = NameWarnings(recorder, app.clock, leadership.is_leader)
    feed.informer.on_change(warnings.observe)
    app.add_loop("name warnings", lambda: warnings.run(WAKE_INTERVAL_S))
    return recorder


def _parts(settings: ExtenderConfig, client: KubeClient, sources: Sources, clock: Clock) -> LeadershipParts:
    config, feed = settings.leadership, sources.pods
    own_pod = config.own_pod()
    pods_fence = KubernetesFence(client, feed, own_pod, clock, settings.patience())
    fence = HoldFence(pods_fence, sources.holds)
    leader_label: LeaderLabel = (
        NoLeaderLabel() if own_pod is None else KubernetesLeaderLabel(client, feed.informer, own_pod)
    )
    if not config.elects(os.environ):
        return LeadershipParts(Unopposed(), fence, leader_label, lambda: "", contested=False)
    lease = NotedLease(client, sources.begin_anew)
    elector = config.elector(lease, clock, config.identity(), RENEWALS)
    return LeadershipParts(elector, fence, leader_label, lambda: lease.holder, contested=True)


def _https(config: ExtenderConfig, rpc: RpcEnvironment) -> HttpsOptions:
    host, port, certificates = config.https_host, config.https_port, rpc.certificates
    if certificates is None:
        return HttpsOptions(host, port, None, check_identity=False)
    tls = server_ssl_context(certificates, config.client_certificate)
    return HttpsOptions(host, port, tls, check_identity=config.client_certificate)


async def _settle(bindings: Bindings, clock: Clock) -> None:
    while True:
        await clock.sleep(SETTLE_INTERVAL_S)
        await bindings.settle()
