"""Puts delivery together for one agent."""

import asyncio

from gpuloom.errors import UnavailableError
from gpuloom.model.node import Delivery, Holder, NodeMode
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import Clock
from services.node_agent.delivery.cdi_folders import CdiFolders
from services.node_agent.delivery.config import DeliveryConfig, DeliveryWay
from services.node_agent.delivery.connection import ConnectionParts, RuntimeConnection
from services.node_agent.delivery.deliveries import Deliveries
from services.node_agent.delivery.metrics import DeliveryMetrics
from services.node_agent.delivery.plugin import DeliveryParts, Plugin
from services.node_agent.delivery.verify import NodeFacts
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
    app: App, config: DeliveryConfig, node: Node, pods: PodDirectory, simulated: Runtime | None = None
) -> Runtime:
    """Deliver devices on this node from now on; the answer knows which containers have them.

    `simulated` is the runtime of a simulated machine, whose simulated kubelet delivers by itself.
    """
    if node.state.mode is not NodeMode.GPULOOM:
        return simulated or Undelivered("a device plugin of the kubelet gives out this node's devices")
    if config.way is DeliveryWay.OFF:
        node.deliver_by(Delivery.NONE)
        return Undelivered("delivery of devices is switched off (GPULOOM_AGENT_DELIVERY)")
    if config.way is DeliveryWay.AUTO and simulated is not None:
        return simulated
    return await _start_nri(app, config, node, pods)


async def _start_nri(app: App, config: DeliveryConfig, node: Node, pods: PodDirectory) -> Runtime:
    metrics, deliveries, folders = DeliveryMetrics(app.registry), Deliveries(), CdiFolders(config.cdi_folders)

    def facts() -> NodeFacts:
        return NodeFacts(pods.node_uid() or node.state.node_uid, node.state.gpus)

    def report(connected: bool) -> None:
        node.deliver_by(Delivery.NRI if connected else Delivery.NONE)

    plugin = Plugin(DeliveryParts(facts, folders, config.cdi_kind, metrics), deliveries)
    parts = ConnectionParts(config.nri_socket, app.clock, metrics, report)
    connection = RuntimeConnection(parts, plugin, deliveries)
    report(False)
    await asyncio.to_thread(folders.scan)
    app.add_loop(f"cdi {node.state.node_name}", lambda: _keep_scanning(folders, app.clock))
    app.add_loop(f"nri {node.state.node_name}", connection.run)
    return deliveries


async def _keep_scanning(folders: CdiFolders, clock: Clock) -> None:
    while True:
        await clock.sleep(_SCAN_INTERVAL_S)
        await asyncio.to_thread(folders.scan)
