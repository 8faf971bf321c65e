"""Puts the layouts of one node together."""

from collections.abc import Callable
from dataclasses import dataclass

from gpuloom.runtime.app import App
from services.node_agent.layout.executor import Machine
from services.node_agent.layout.layouts import LayoutParts, Layouts
from services.node_agent.layout.metrics import LayoutMetrics
from services.node_agent.layout.ports import (
    DeviceFiles,
    JournalStore,
    LayoutDriver,
    Reach,
    SharingControl,
    Users,
    nowhere,
)
from services.node_agent.node import Node


@dataclass(frozen=True, slots=True)
class LayoutSources:
    """What cuts and shares the GPUs of this machine, and where its journal is.

    `tend` is done again and again beside it, e.g. looking after daemons.
    """

    driver: LayoutDriver
    sharing: SharingControl
    store: JournalStore
    devices: DeviceFiles
    boot_id: Callable[[], str]
    reach: Reach = nowhere
    restore_patience_s: float = 30.0


async def start_layouts(
    app: App, node: Node, sources: LayoutSources, users: Users, metrics: LayoutMetrics
) -> Layouts:
    """Restore the layouts of this node, as far as that goes in its time, and look after them from now on."""
    parts = LayoutParts(
        machine=Machine(sources.driver, sources.sharing, users),
        store=sources.store,
        devices=sources.devices,
        clock=app.clock,
        metrics=metrics,
        boot_id=sources.boot_id,
        reach=sources.reach,
    )
    layouts = Layouts(node, parts)
    await layouts.open()
    await layouts.settle(sources.restore_patience_s)
    app.add_loop(f"layouts {node.state.node_name}", layouts.run)
    return layouts
