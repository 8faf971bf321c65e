"""Puts the extender together."""

import os
import random
import secrets
import socket

from gpuloom.clients.discovery import ClusterMirror
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.leader import LeaderElector
from gpuloom.kube.resources import NODES
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.serving import Served, rpc_environment, serve
from gpuloom.rpc.tls import server_ssl_context
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.failpoints import Failpoints
from gpuloom.runtime.garbage import keep_out_of_the_way
from gpuloom.v1 import scheduler_extender_pb2
from gpuloom.v1.scheduler_extender_pb2_grpc import add_SchedulerExtenderServiceServicer_to_server
from services.scheduler_extender.adapters.admission_policies import PolicyWatch
from services.scheduler_extender.adapters.demand import DemandStore
from services.scheduler_extender.adapters.fence import KubernetesFence
from services.scheduler_extender.adapters.kubernetes import (
    KubernetesBinder,
    KubernetesMarker,
    KubernetesPods,
)
from services.scheduler_extender.adapters.leader_label import KubernetesBadge, NoBadge
from services.scheduler_extender.adapters.lease import NotedLease, Unopposed
from services.scheduler_extender.adapters.name_warnings import NameWarnings
from services.scheduler_extender.adapters.pod_informer import PodFeed
from services.scheduler_extender.adapters.quarantine import ReleaseWatch, WatchedBinder
from services.scheduler_extender.adapters.sources import Sources
from services.scheduler_extender.config import ExtenderConfig
from services.scheduler_extender.core.inquiries.evaluation import Judge
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.objects.schedulers import SchedulerNames
from services.scheduler_extender.core.objects.trimming import trim_node
from services.scheduler_extender.core.verbs.comparison import Comparison
from services.scheduler_extender.core.verbs.evaluator import Outcomes
from services.scheduler_extender.core.verbs.filtering import Preferences
from services.scheduler_extender.core.verbs.quarantine import Quarantine
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.inquiries.inquiries import Inquiries, Records
from services.scheduler_extender.leadership.leadership import Office, Power
from services.scheduler_extender.metrics import ExtenderMetrics
from services.scheduler_extender.ports import Badge
from services.scheduler_extender.server import ALLOWED_CALLERS, SchedulerExtenderServer
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.state.demand import Learning
from services.scheduler_extender.state.view_refresher import Freshness
from services.scheduler_extender.state.waker import Waker
from services.scheduler_extender.verbs.binding import Bench, Bindings
from services.scheduler_extender.verbs.https import ExtenderHttp, HttpsOptions
from services.scheduler_extender.verbs.verbs import Verbs

SERVICE = scheduler_extender_pb2.DESCRIPTOR.services_by_name["SchedulerExtenderService"]

WAKE_INTERVAL_S = 1.0
SETTLE_INTERVAL_S = 30.0
WARM_CONNECTIONS = 8


async def build(app: App, config: ExtenderConfig) -> None:
    rpc = rpc_environment(app, config.grpc.tls)
    metrics = ExtenderMetrics(app.registry)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    await client.warm(WARM_CONNECTIONS, timeout_s=2.0)
    discovery = await app.enter(RpcChannel(rpc, str(config.discovery_address), "discovery"))
    contested = config.leadership.elects(os.environ)
    feed = PodFeed(client, app.clock, prompt=contested)
    sources = _sources(client, feed, ClusterMirror(discovery, app.clock), app.clock)
    state = _state(config, sources, app.clock)
    office = _office(config, client, sources, app.clock)
    power = Power(sources, office, app.clock, metrics)
    outcomes = Outcomes(config.weights.weights())
    state.views.keep(outcomes.fleet)
    bench = Bench(
        state.ledger,
        state.views,
        DecisionLog(app.clock),
        app.clock,
        lambda: outcomes.fleet.prices,
        Comparison(outcomes.of, outcomes.fleet.view),
    )
    quarantine, marker = Quarantine(chance=random.random), KubernetesMarker(client)
    pods = KubernetesPods(feed.informer, client)
    failpoints = Failpoints(config.failpoints.points, app.clock)
    binder = WatchedBinder(KubernetesBinder(client, failpoints), quarantine, pods, app.clock)
    bindings = Bindings(bench, pods, binder, config.bind_timeout_s, power)
    waker = Waker(state, marker, app.clock, metrics, power.is_leader)
    releases = ReleaseWatch(quarantine, marker, app.clock, sources.nodes, power.is_leader)
    _follow(app, sources, state)
    await _learn(app, state, outcomes, DemandStore(client, config.leadership.namespace(), app.clock), power)
    app.add_loop("leadership", power.run)
    app.add_loop("open binds", lambda: _settle(bindings, app.clock))
    app.add_loop("waker", lambda: waker.run(WAKE_INTERVAL_S))
    app.add_loop("quarantine", lambda: releases.run(WAKE_INTERVAL_S))
    policies = PolicyWatch(client, config.admission_policies, config.leadership.own_pod(), app.clock, metrics)
    if config.admission_policies:
        app.add_loop("admission policies", lambda: policies.run(power.is_leader))
    app.add_readiness("ledger", lambda: power.unhealthy_reason() or None)
    _warn_of_names(app, client, feed, power)
    metrics.watch(state)
    metrics.quarantined.set_function(lambda: quarantine.held_count(app.clock.monotonic()))
    preferences = Preferences(config.shortlist, outcomes, config.first_shortlist)
    schedulers = SchedulerNames(config.scheduler_names)
    verbs = Verbs(bench, bindings, preferences, quarantine, schedulers)
    https = ExtenderHttp(verbs, power.unready_reason, _https(config, rpc), app.clock, metrics)
    app.add_loop("https port", (await app.enter(https)).run)
    records = Records(
        state.views,
        bench.decisions,
        quarantine,
        sources.nodes,
        feed.informer,
        schedulers,
        policies.note,
    )
    inquiries = Inquiries(records, Judge(outcomes, bench.prices), power.unready_reason, app.clock)
    servicer = SchedulerExtenderServer(state.ledger, bench.decisions, inquiries)
    add_to_server = add_SchedulerExtenderServiceServicer_to_server
    await serve(app, config.grpc, rpc, Served(servicer, add_to_server, SERVICE, ALLOWED_CALLERS))
    if contested:
        # Drained first, being last: whoever takes over should not wait for readers to hang up.
        app.on_drain("leadership", power.step_down)


def _sources(client: KubeClient, feed: PodFeed, mirror: ClusterMirror, clock: Clock) -> Sources:
    nodes = Informer(client, NODES, clock, InformerOptions(transform=trim_node))
    return Sources(nodes, feed, mirror)


def _state(config: ExtenderConfig, sources: Sources, clock: Clock) -> ClusterState:
    mirror = sources.mirror
    state = ClusterState(Ledger(config.settle_s), lambda: mirror.age_s() > config.facts_ttl_s, clock)
    sources.feed(state)
    return state


def _follow(app: App, sources: Sources, state: ClusterState) -> None:
    app.add_loop("discovery", sources.mirror.run)
    app.add_loop("nodes", sources.nodes.run)
    app.add_loop("pods", sources.follow_pods)
    freshness = Freshness(state.views)
    app.add_loop("views", freshness.run)
    app.add_loop("garbage", lambda: keep_out_of_the_way(lambda: not sources.missing(), app.clock))
    app.add_readiness("views", lambda: sources.missing() or freshness.unready_reason() or None)


async def _learn(app: App, state: ClusterState, outcomes: Outcomes, store: DemandStore, power: Power) -> None:
    learning = Learning(outcomes.fleet)
    saved = await store.load()
    if saved is not None:
        learning.adopt(saved)
    state.on_arrival(learning.learn)
    app.add_loop("prices", learning.run)
    app.add_loop("demand", lambda: store.keep(lambda: learning.demand, power.is_leader))


def _warn_of_names(app: App, client: KubeClient, feed: PodFeed, power: Power) -> None:
    recorder = EventRecorder(
        client, "gpuloom-scheduler-extender", socket.gethostname(), app.clock, registry=app.registry
    )
    warnings = NameWarnings(recorder, app.clock, power.is_leader)
    feed.informer.on_change(warnings.observe)
    app.add_loop("name warnings", lambda: warnings.run(WAKE_INTERVAL_S))


def _office(settings: ExtenderConfig, client: KubeClient, sources: Sources, clock: Clock) -> Office:
    config, feed = settings.leadership, sources.pods
    own_pod = config.own_pod()
    fence = KubernetesFence(client, feed, own_pod, clock, settings.patience())
    badge: Badge = NoBadge() if own_pod is None else KubernetesBadge(client, feed.informer, own_pod)
    if not config.elects(os.environ):
        return Office(Unopposed(), fence, badge, lambda: "", contested=False)
    lease = NotedLease(client, sources.begin_anew)
    # A pod's name may come back after a restart of its container; the process it names does not.
    identity = f"{config.pod_name or socket.gethostname()}-{secrets.token_hex(4)}"
    elector = LeaderElector(
        lease, config.namespace(), config.lease_name, identity, clock, config.lease_settings()
    )
    return Office(elector, fence, badge, lambda: lease.holder, contested=True)


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
