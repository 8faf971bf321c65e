"""Puts the optimizer together."""

import logging
import os
from datetime import timedelta

from gpuloom.clients.agent_directory import AgentDirectory
from gpuloom.clients.discovery import ClusterMirror, MirrorOptions
from gpuloom.clients.replicas import Replicas
from gpuloom.clients.usage import UsageFollower
from gpuloom.errors import GpuloomError
from gpuloom.kube.client import KubeClient
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.serving import Served, rpc_environment, serve
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import Clock
from gpuloom.store.database import Database
from gpuloom.v1.optimizer_pb2_grpc import add_OptimizerServiceServicer_to_server
from services.optimizer.adapters.pods import Pods
from services.optimizer.adapters.prices import KnownPrices
from services.optimizer.adapters.store import MIGRATIONS, SqlStore
from services.optimizer.adapters.trainer import ChildTrainer
from services.optimizer.config import OptimizerConfig
from services.optimizer.core.waste import WasteRule
from services.optimizer.engine import Engine, EngineParts
from services.optimizer.metrics import OptimizerMetrics
from services.optimizer.model_keeper import ModelKeeper
from services.optimizer.profiles import Profiles
from services.optimizer.server import ALLOWED_CALLERS, SERVICE, OptimizerServer
from services.optimizer.summaries import Summaries

__all__ = ["SERVICE", "build"]

FORGET_INTERVAL_S = 3600.0
MAX_SILENCE_S = 60.0

_log = logging.getLogger(__name__)


async def build(app: App, config: OptimizerConfig) -> None:
    rpc = rpc_environment(app, config.grpc.tls)
    metrics = OptimizerMetrics(app.registry)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    database = await app.enter(Database(config.store, app.clock))
    await MIGRATIONS.upgrade(database)
    store, pods = SqlStore(database, app.clock), Pods(client, app.clock)
    profiles = Profiles(store, pods.find, app.clock, metrics)
    prices = KnownPrices(config.usd_per_gpu_hour, config.hours_per_month)
    if config.cost is not None:
        cost = await app.enter(RpcChannel(rpc, str(config.cost), "cost_engine"))
        app.add_loop("prices", lambda: prices.follow(cost, app.clock))
    rule = WasteRule(config.waste.ratio, config.waste.after_s, config.waste.window_s)
    engine = Engine(EngineParts(profiles, pods, prices, store, app.clock, metrics), rule)
    keeper = ModelKeeper(engine, store, ChildTrainer(config.seed, app.clock), app.clock, metrics)
    keeper.use(await profiles.load())
    await engine.load()
    replicas = Replicas(rpc, [config.discovery], "discovery")
    mirror = ClusterMirror(replicas, app.clock, MirrorOptions(with_usage=True))
    mirror.on_change(engine.observe_node)
    follower = UsageFollower(AgentDirectory(mirror), rpc, profiles)
    app.add_loop("pods", pods.informer.run)
    app.add_loop("discovery", mirror.run)
    app.add_loop("usage", lambda: _follow(follower, pods, app.clock))
    app.add_loop("ended runs", profiles.run)
    app.add_loop("waste", lambda: _judge(engine, follower, metrics, config.waste.interval_s, app.clock))
    app.add_loop("retention", lambda: _forget(profiles, timedelta(seconds=config.retention_s), app.clock))
    if config.train:
        app.add_loop("training", lambda: keeper.run(config.retrain_interval_s))
    app.add_readiness("pods", lambda: None if pods.informer.synced else "pods are not listed yet")
    app.add_readiness("discovery", lambda: _stale(mirror))
    summaries = Summaries(profiles, store, engine)
    servicer = OptimizerServer(engine, pods, summaries, config.hours_per_month, metrics)
    served = Served(servicer, add_OptimizerServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)
    await serve(app, config.grpc, rpc, served)


async def _follow(follower: UsageFollower, pods: Pods, clock: Clock) -> None:
    """Windows of pods that are not listed yet would count as nobody's."""
    while not pods.informer.synced:
        await clock.sleep(0.1)
    await follower.run()


async def _judge(
    engine: Engine, follower: UsageFollower, metrics: OptimizerMetrics, interval_s: float, clock: Clock
) -> None:
    while True:
        metrics.behind.set(sum(each.behind for each in follower.progress.values()))
        await engine.judge()
        await clock.sleep(interval_s)


async def _forget(profiles: Profiles, retention: timedelta, clock: Clock) -> None:
    while True:
        try:
            await profiles.forget(retention)
        except GpuloomError as error:
            _log.warning("old profiles not dropped", extra={"reason": str(error)})
        await clock.sleep(FORGET_INTERVAL_S)


def _stale(mirror: ClusterMirror) -> str | None:
    return "discovery is silent" if mirror.age_s() > MAX_SILENCE_S else None
