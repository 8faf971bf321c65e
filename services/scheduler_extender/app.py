"""Puts the extender together."""

import asyncio
import logging
import os
import secrets

from gpuloom.clients.discovery import ClusterMirror
from gpuloom.errors import GpuloomError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer
from gpuloom.kube.resources import NODES, PODS
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer, ServerOptions
from gpuloom.rpc.tls import server_ssl_context
from gpuloom.runtime.app import App
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock
from gpuloom.v1 import scheduler_extender_pb2
from gpuloom.v1.scheduler_extender_pb2_grpc import add_SchedulerExtenderServiceServicer_to_server
from services.scheduler_extender.adapters.kubernetes import (
    KubernetesBinder,
    KubernetesMarker,
    KubernetesPods,
)
from services.scheduler_extender.binding import Bench, Bindings
from services.scheduler_extender.config import ExtenderConfig
from services.scheduler_extender.decisions import DecisionLog
from services.scheduler_extender.http import ExtenderHttp, HttpsOptions
from services.scheduler_extender.ledger import Ledger
from services.scheduler_extender.metrics import ExtenderMetrics
from services.scheduler_extender.outcomes import Outcomes
from services.scheduler_extender.server import ALLOWED_CALLERS, SchedulerExtenderServer
from services.scheduler_extender.state import ClusterState
from services.scheduler_extender.takeover import stamp_unbound
from services.scheduler_extender.verbs import Verbs
from services.scheduler_extender.verdicts import Preferences
from services.scheduler_extender.waker import Waker

SERVICE = scheduler_extender_pb2.DESCRIPTOR.services_by_name["SchedulerExtenderService"]

WAKE_INTERVAL_S = 1.0
SETTLE_INTERVAL_S = 30.0
MAX_SILENCE_S = 60.0

_log = logging.getLogger(__name__)


async def build(app: App, config: ExtenderConfig) -> None:
    rpc = RpcEnvironment(config.tls.files(), app.registry, app.clock)
    metrics = ExtenderMetrics(app.registry)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    discovery = await app.enter(RpcChannel(rpc, str(config.discovery_address), "discovery"))
    mirror = ClusterMirror(discovery, app.clock)
    state = ClusterState(Ledger(config.settle_s), lambda: mirror.age_s() > config.facts_ttl_s, app.clock)
    power = Power(client, mirror, state, metrics, app.clock)
    bench = Bench(state.ledger, state.views, DecisionLog(app.clock), app.clock)
    bindings = Bindings(
        bench, KubernetesPods(power.pods, client), KubernetesBinder(client), config.bind_timeout_s
    )
    verbs = Verbs(bench, bindings, Preferences(config.shortlist, Outcomes(config.weights.weights())))
    waker = Waker(state, KubernetesMarker(client), app.clock, metrics)
    app.add_loop("discovery", mirror.run)
    app.add_loop("takeover", power.run)
    app.add_loop("open binds", lambda: _settle(bindings, app.clock))
    app.add_loop("waker", lambda: waker.run(WAKE_INTERVAL_S))
    app.add_readiness("ledger", lambda: power.unready_reason() or None)
    metrics.watch(state)
    await _serve(app, config, rpc, verbs, power)
    server = RpcServer(rpc, config.grpc_host, config.grpc_port, ServerOptions(reflection=config.reflection))
    servicer = SchedulerExtenderServer(state.ledger, bench.decisions)
    server.add(servicer, add_SchedulerExtenderServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)
    await app.enter(server)
    app.on_drain("grpc", lambda: server.drain(grace_s=2.0))


async def _serve(app: App, config: ExtenderConfig, rpc: RpcEnvironment, verbs: Verbs, power: "Power") -> None:
    """Binds that are under way finish when the port closes, which is after everything else."""
    tls = rpc.certificates
    options = HttpsOptions(
        config.https_host,
        config.https_port,
        None if tls is None else server_ssl_context(tls, config.client_certificate),
        check_identity=tls is not None and config.client_certificate,
    )
    metrics = power.metrics
    await app.enter(ExtenderHttp(verbs, power.unready_reason, options, app.clock, metrics))


async def _settle(bindings: Bindings, clock: Clock) -> None:
    while True:
        await clock.sleep(SETTLE_INTERVAL_S)
        await bindings.settle()


class Power:
    """The right to serve: stamped, listed, and in touch."""

    def __init__(
        self,
        client: KubeClient,
        mirror: ClusterMirror,
        state: ClusterState,
        metrics: ExtenderMetrics,
        clock: Clock,
    ) -> None:
        self.pods = Informer(client, PODS, clock)
        self.nodes = Informer(client, NODES, clock)
        self.metrics = metrics
        self._client = client
        self._mirror = mirror
        self._state = state
        self._clock = clock
        self._stamped = False
        self._reported = False

    def unready_reason(self) -> str:
        if not self._stamped:
            return "unbound pods are not stamped yet"
        if not (self.pods.synced and self.nodes.synced):
            return "pods and nodes are not listed yet"
        if not self._mirror.synced:
            return "no device facts from discovery yet"
        if self.pods.last_contact_age_s() > MAX_SILENCE_S:
            return "the Kubernetes API is silent"
        return ""

    async def run(self) -> None:
        started_s = self._clock.monotonic()
        await self._stamp()
        # The nodes first: a pod's allocation is judged by its node's UID, and one that ends on a node that
        # is not there leaves nothing behind.
        self.nodes.on_change(self._state.observe_node)
        self.pods.on_change(self._state.observe_pod)
        self._mirror.on_change(self._state.observe_facts)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nodes.run())
            await self.nodes.wait_synced()
            group.create_task(self.pods.run())
            await self.pods.wait_synced()
            await self._mirror.wait_synced()
            took_s = self._clock.monotonic() - started_s
            self.metrics.takeover_duration.set(took_s)
            _log.info("ledger complete, serving", extra={"took_s": round(took_s, 3)})

    async def _stamp(self) -> None:
        epoch = secrets.token_hex(8)
        backoff = Backoff(0.2, 3.0)
        while True:
            try:
                listing = await self._client.list(PODS)
                break
            except GpuloomError as error:
                _log.warning("pods not listed, trying again", extra={"reason": str(error)})
            await self._clock.sleep(backoff.next_delay_s())
        count = await stamp_unbound(listing.items, epoch, KubernetesMarker(self._client), self._clock)
        _log.info("unbound pods stamped", extra={"pods": count, "epoch": epoch})
        self._stamped = True
