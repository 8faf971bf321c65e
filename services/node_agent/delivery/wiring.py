"""Puts delivery together for one agent."""

import asyncio

from gpuloom.errors import UnavailableError
from gpuloom.model.node import Delivery, Holder, NodeMode
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import Clock
from services.node_agent.delivery.cdi_folders import CdiFolders
from services.node_agent.delivery.chooser import Chooser, ChooserParts, ChosenRuntime
from services.node_agent.delivery.config import DeliveryConfig, DeliveryWay
from services.node_agent.delivery.connection import ConnectionParts, RuntimeConnection
from services.node_agent.delivery.core.deliveries import Deliveries
from services.node_agent.delivery.core.pod_specs import Seat
from services.node_agent.delivery.core.verify import NodeFacts, given_by_others
from services.node_agent.delivery.known_pods import Cluster, KnownPods, PodSource, UnknownPods
from services.node_agent.delivery.metrics import DeliveryMetrics
from services.node_agent.delivery.plugin import DeliveryParts, Plugin
from services.node_agent.delivery.runtime_class import RuntimeClassReader
from services.node_agent.node import Node
from services.node_agent.ports import PodDirectory, Runtime

_SCAN_INTERVAL_S = 1.0


class Undelivered:
    """The runtime of a node on which we deliver nothing: who has devices there is not ours to know."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def holders(self) -> tuple[Holder, ...]:
        raise UnavailableError(self._reason)


async def start_delivery(
    app: App,
    config: DeliveryConfig,
    node: Node,
    pods: PodDirectory,
    simulated: Runtime | None = None,
    cluster: Cluster | None = None,
) -> Runtime:
    """Deliver devices on this node from now on; the answer knows which containers have them.

    `simulated` is the runtime of a simulated machine, whose simulated kubelet delivers by itself. Without
    `cluster`, containers are judged by their allocation alone, and nothing is delivered by environment.
    """
    if node.state.mode is not NodeMode.GPULOOM:
        return simulated or Undelivered("a device plugin of the kubelet gives out this node's devices")
    if config.way is DeliveryWay.OFF:
        node.deliver_by(Delivery.NONE)
        return Undelivered("delivery of devices is switched off (GPULOOM_AGENT_DELIVERY)")
    if config.way is DeliveryWay.AUTO and simulated is not None:
        return simulated
    return await _Start(app, config, node, pods, cluster).run()


class _Start:
    """The parts of delivery on one node, and the loops that keep them going."""

    def __init__(
        self, app: App, config: DeliveryConfig, node: Node, pods: PodDirectory, cluster: Cluster | None
    ) -> None:
        self._app = app
        self._config = config
        self._node = node
        self._directory = pods
        self._cluster = cluster
        self._metrics = DeliveryMetrics(app.registry)
        self._deliveries = Deliveries()

    async def run(self) -> Runtime:
        pods, chooser = self._pods(), self._chooser()
        name = self._node.state.node_name
        if self._config.way is not DeliveryWay.ENV:
            await self._start_plugin(pods, chooser)
        if self._config.way is DeliveryWay.AUTO:
            self._app.add_loop(f"delivery way {name}", chooser.run)
        return ChosenRuntime(chooser, self._deliveries, pods)

    async def _start_plugin(self, pods: PodSource, chooser: Chooser) -> None:
        config, clock, name = self._config, self._app.clock, self._node.state.node_name
        folders = CdiFolders(config.cdi_folders)
        handlers = config.handler_rules()
        parts = DeliveryParts(
            self._facts,
            pods,
            folders,
            config.cdi_kind,
            self._metrics,
            handlers,
            str(config.mps_dir),
            config.enforcement,
        )
        plugin = Plugin(parts, self._deliveries)
        runtime = ConnectionParts(config.nri_socket, clock, self._metrics, chooser.set_connected)
        connection = RuntimeConnection(runtime, plugin, self._deliveries)
        await asyncio.to_thread(folders.scan)
        self._app.add_loop(f"cdi {name}", lambda: _keep_scanning(folders, clock))
        self._app.add_loop(f"nri {name}", connection.run)

    def _chooser(self) -> Chooser:
        config, clock = self._config, self._app.clock
        api = None if self._cluster is None else self._cluster.api
        runtime_class = RuntimeClassReader(api, config.runtime_class, clock)
        return Chooser(ChooserParts(config.way, config.nri_socket, clock, runtime_class, self._report))

    def _pods(self) -> PodSource:
        if self._cluster is None:
            return UnknownPods()
        return KnownPods(self._cluster.pods, self._seat, self._directory.unsynced_reason)

    def _seat(self) -> Seat:
        return Seat(self._node.state.node_name, self._node_uid(), self._config.runtime_class)

    def _facts(self) -> NodeFacts:
        state = self._node.state
        return NodeFacts(self._node_uid(), state.gpus, given_by_others(state.holders))

    def _node_uid(self) -> str:
        return self._directory.node_uid() or self._node.state.node_uid

    def _report(self, delivery: Delivery) -> None:
        self._metrics.set_way(delivery)
        self._node.deliver_by(delivery)


async def _keep_scanning(folders: CdiFolders, clock: Clock) -> None:
    while True:
        await clock.sleep(_SCAN_INTERVAL_S)
        await asyncio.to_thread(folders.scan)
