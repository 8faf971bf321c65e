"""Puts the autoscaler together: informers and mirrors in every replica, the loop in the one that leads."""

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpuloom.catalog import load_catalog
from gpuloom.clients.discovery import ClusterMirror, MirrorOptions
from gpuloom.clients.ledger import LedgerMirror
from gpuloom.clients.prometheus import PrometheusClient
from gpuloom.errors import GpuloomError, InvalidRequestError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.leadership import Leadership
from gpuloom.kube.resources import INFERENCE_POLICIES, NODES, PDBS, PODS
from gpuloom.model.claims import GpuNodeClaimSpec
from gpuloom.model.money import nano_usd
from gpuloom.model.policies import CapacityType, CloudProvider
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.serving import Served, rpc_environment, serve
from gpuloom.runtime.app import App
from gpuloom.runtime.failpoints import Failpoints
from gpuloom.store.database import Database
from gpuloom.v1.autoscaler_pb2_grpc import add_AutoscalerServiceServicer_to_server
from services.autoscaler.clouds.wiring import open_clouds
from services.autoscaler.config import AutoscalerConfig, CloudsConfig
from services.autoscaler.core.buying.filling import MachineForm
from services.autoscaler.core.buying.offerings import OfferingKey
from services.autoscaler.core.buying.table import SIMULATED_TYPES
from services.autoscaler.core.lifecycle.machines import Instance
from services.autoscaler.core.scaling.policy_status import Taken
from services.autoscaler.inference.wiring import Shared, keda_serving, open_inference
from services.autoscaler.metrics import AutoscalerMetrics
from services.autoscaler.nodes.claim_store import ClaimStore
from services.autoscaler.nodes.cluster import ClusterReader, Sources, index_by_node
from services.autoscaler.nodes.drainer import Drainer
from services.autoscaler.nodes.interruptions import Interruptions
from services.autoscaler.nodes.loop import NodeLoop
from services.autoscaler.nodes.policy_store import PolicyStore
from services.autoscaler.nodes.pressure import PressureSource
from services.autoscaler.nodes.prices import CostEnginePrices
from services.autoscaler.nodes.scaler import KEPT_ACTIONS, Scaler, ScalerSettings
from services.autoscaler.nodes.sweeper import Sweeper, SweepInputs, Tools, adopted_spec
from services.autoscaler.server import ALLOWED_CALLERS, SERVICE, AutoscalerServer
from services.autoscaler.store.history import MIGRATIONS, SqlHistory

__all__ = ["SERVICE", "build"]

_log = logging.getLogger(__name__)


async def build(app: App, config: AutoscalerConfig) -> None:
    rpc = rpc_environment(app, config.grpc.tls)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    leadership = Leadership(client, config.leadership, app.clock, os.environ)
    metrics = AutoscalerMetrics(app.registry)
    tools = Tools(client, app.clock, metrics, Failpoints(config.failpoints.points, app.clock))
    discovery = await app.enter(RpcChannel(rpc, str(config.discovery_address), "discovery"))
    extender = await app.enter(RpcChannel(rpc, str(config.extender_address), "scheduler_extender"))
    sources = _sources(client, discovery, extender, app)
    store = ClaimStore(client, app.clock, leadership.write_timeout_s)
    policies = PolicyStore(client, app.clock, leadership.write_timeout_s)
    reader = ClusterReader(sources, MachineForm(config.node_mode), policies.pool_labels)
    recorder = EventRecorder(
        client, "gpuloom-autoscaler", leadership.identity, app.clock, registry=app.registry
    )
    drainer = Drainer(client, reader, recorder, app.clock)
    inputs = SweepInputs(
        reader.node_facts,
        lambda: drainer.drained(store.claims()),
        policies.pool_labels,
        lambda instance: _adopted(instance, policies),
        lambda pool: scaler.only_tells(pool),  # noqa: PLW0108 - the scaler is made below
    )
    sweepers = {
        provider: Sweeper(cloud, store, inputs, tools, config.pace.timeouts())
        for provider, cloud in (await open_clouds(app, config)).items()
    }
    settings = ScalerSettings(
        config.pace.down(), config.dry_run, config.consolidates, config.hours_a_month, config.bounds.values()
    )
    scaler = Scaler(reader, store, policies, sweepers, tools, settings)
    scaler.prices = scaler.given_prices = _prices(config.clouds)
    pressure = await _pressure(app, config, scaler)
    scaler.pressure_of, scaler.prediction_of = pressure.of, pressure.prediction
    scaler.notes_of = pressure.notes
    cost = await app.enter(RpcChannel(rpc, str(config.cost_address), "cost_engine"))
    prices = CostEnginePrices(cost, _regions(config.clouds))
    loop = NodeLoop(scaler, sweepers, drainer, Interruptions(scaler, drainer, tools), prices, tools)
    shared = Shared(client, recorder, leadership, sources.pods, rpc.certificates)
    inference = await open_inference(app, config, shared)
    scaler.hastened = inference.planner.due
    app.add_loop("claims", store.informer.run)
    app.add_loop("policies", policies.informer.run)
    app.add_loop("events", recorder.run)
    app.add_loop(
        "leadership",
        lambda: leadership.run(
            inference.beside(_work(loop, pressure, config.pace.interval_s)),
            lambda: not scaler.unready_reason(),
        ),
    )
    app.add_readiness("synced", lambda: scaler.unready_reason() or None)
    servicer = AutoscalerServer(scaler, leadership.is_leader, app.clock, inference.standings)
    add_to_server = add_AutoscalerServiceServicer_to_server
    served = Served(servicer, add_to_server, SERVICE, ALLOWED_CALLERS)
    await serve(app, config.grpc, rpc, served)
    await serve(app, keda_serving(config), rpc, inference.keda, name="keda")


def _work(loop: NodeLoop, pressure: PressureSource, interval_s: float) -> Callable[[], Awaitable[None]]:
    """What the leader does, side by side: a failure that one of them does not handle ends both."""

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(loop.run(interval_s), name="nodes")
            group.create_task(pressure.run(), name="pressure")

    return work


async def _pressure(app: App, config: AutoscalerConfig, scaler: Scaler) -> PressureSource:
    history = None
    if config.store.url is not None:
        database = await app.enter(Database(config.store, app.clock))
        await MIGRATIONS.upgrade(database)
        history = SqlHistory(database)
        scaler.actions.extend(reversed(await history.actions(KEPT_ACTIONS)))
        _remember(app, scaler, history)
    prometheus = None
    if config.prometheus.url is not None:
        prometheus = await app.enter(PrometheusClient(config.prometheus))
    try:
        zone = ZoneInfo(config.time_zone)
    except (ZoneInfoNotFoundError, ValueError):
        text = f"GPULOOM_AUTOSCALER_TIME_ZONE: there is no time zone {config.time_zone}"
        raise InvalidRequestError(text) from None
    return PressureSource(scaler, history, prometheus, zone, scaler.tools.metrics, app.clock)


def _remember(app: App, scaler: Scaler, history: SqlHistory) -> None:
    """Actions go to the history in the background; one that can't be written is told of and left out."""
    waiting: asyncio.Queue[Taken] = asyncio.Queue(KEPT_ACTIONS)

    def note(taken: Taken) -> None:
        if not waiting.full():
            waiting.put_nowait(taken)

    async def write() -> None:
        while True:
            taken = await waiting.get()
            try:
                await history.add_action(taken)
            except GpuloomError as error:
                _log.warning("action not remembered", extra={"error": str(error)})

    scaler.on_action.append(note)
    app.add_loop("history", write)


def _sources(client: KubeClient, discovery: RpcChannel, extender: RpcChannel, app: App) -> Sources:
    sources = Sources(
        pods=Informer(client, PODS, app.clock, InformerOptions(indexes={"node": index_by_node})),
        nodes=Informer(client, NODES, app.clock),
        budgets=Informer(client, PDBS, app.clock),
        facts=ClusterMirror(discovery, app.clock, MirrorOptions(with_usage=True)),
        ledger=LedgerMirror(extender, app.clock),
        inference=Informer(client, INFERENCE_POLICIES, app.clock),
    )
    app.add_loop("pods", sources.pods.run)
    app.add_loop("nodes", sources.nodes.run)
    app.add_loop("budgets", sources.budgets.run)
    app.add_loop("discovery", sources.facts.run)
    app.add_loop("ledger", sources.ledger.run)
    app.add_loop("inference-policies", sources.inference.run)
    return sources


def _adopted(instance: Instance, policies: PolicyStore) -> GpuNodeClaimSpec | None:
    """A claim for a machine that nobody asked for here, if its pool and its type are known."""
    for one in policies.effective():
        spec = one.policy.spec
        if instance.pool in {pool.name for pool in spec.pools}:
            provider = SIMULATED_TYPES if spec.provider is CloudProvider.SIMULATED else spec.provider.value
            try:
                kind = load_catalog().instance(provider, instance.instance_type)
            except NotFoundError:
                return None
            return adopted_spec(instance, one.name, kind.gpu.name, kind.gpu_count)
    return None


def _regions(config: CloudsConfig) -> dict[CloudProvider, str]:
    found = {CloudProvider.AWS: config.aws_region, CloudProvider.GCP: config.gcp_region}
    return {provider: region for provider, region in found.items() if region}


def _prices(config: CloudsConfig) -> dict[OfferingKey, int]:
    """Raise InvalidRequestError for a file that can't be read: a wrong price is worse than none."""
    if config.prices_file is None:
        return {}
    prices = {}
    try:
        for name, usd in json.loads(config.prices_file.read_text(encoding="utf-8")).items():
            kind, *zone, tier = name.split("/")
            price = nano_usd(str(usd))
            if price < 0:
                raise ValueError(f"{name} is below 0")
            prices[OfferingKey(kind, "/".join(zone), CapacityType(tier))] = price
    except (ValueError, AttributeError) as error:
        raise InvalidRequestError(f"{config.prices_file} is no list of prices: {error}") from None
    return prices
