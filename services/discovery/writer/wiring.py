"""Puts the writer together: every replica stands for election, and the elected one writes."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer
from gpuloom.kube.leadership import Leadership, OnLoss
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import NODES
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import Clock
from services.discovery.core.cluster import Changes, ClusterModel
from services.discovery.writer.config import WriterConfig
from services.discovery.writer.events import TrustEvents
from services.discovery.writer.metrics import WriterMetrics
from services.discovery.writer.nodes import NodeWriter

_WRITE_TIMEOUT_S = 5.0


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class WriterParts:
    """`ready`: whether this replica knows the cluster; one that does not would call every agent silent."""

    client: KubeClient
    nodes: Informer
    model: ClusterModel
    ready: Callable[[], bool] = _always


class Writer:
    """Stands for election once it is ready. Without an election it writes nothing and says nothing."""

    def __init__(
        self, parts: WriterParts, config: WriterConfig, clock: Clock, metrics: WriterMetrics
    ) -> None:
        self._parts = parts
        self._metrics = metrics
        self._leadership = Leadership(parts.client, config.leadership, clock, os.environ, OnLoss.STAND_AGAIN)
        self._elected = False
        self._recorder = EventRecorder(
            parts.client, "gpuloom-discovery", self._leadership.identity, clock, registry=metrics.registry
        )
        self._events = TrustEvents(self._recorder, parts.nodes.get, clock)
        patcher = StatusPatcher(parts.client, self._leadership)
        self._nodes = NodeWriter(parts.nodes, parts.model.desired, patcher, clock, metrics)
        parts.nodes.on_change(self._nodes.loop.observe)

    def observe(self, changes: Changes) -> None:
        """What the model published."""
        for facts in changes.facts:
            if facts.state.node_uid not in changes.usage_only:
                self._nodes.touch(facts.state.node_name)
        if self._elected:
            self._events.tell(changes.distrust)

    async def run(self) -> None:
        await self._leadership.run(self._write, self._parts.ready)

    def stuck_reason(self) -> str | None:
        """While another replica writes, what is due here waits for good."""
        return self._nodes.loop.stuck_reason() if self._elected else None

    async def _write(self) -> None:
        self._elected = True
        self._metrics.elected.set(1)
        self._events.start(self._parts.model.standing_distrust())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._nodes.loop.run())
                group.create_task(self._recorder.run())
        finally:
            self._elected = False
            self._metrics.elected.set(0)


class StatusPatcher:
    """Sends a patch only while nobody else can be elected, with a timeout that ends before somebody is."""

    def __init__(self, client: KubeClient, leadership: Leadership) -> None:
        self._client = client
        self._leadership = leadership

    async def patch(self, name: str, patch: JsonObject, resource_version: str) -> JsonObject:
        timeout_s = self._leadership.write_timeout_s(_WRITE_TIMEOUT_S)
        return await self._client.patch_status(
            NODES, name, None, patch, resource_version=resource_version, timeout_s=timeout_s
        )


def start_writer(app: App, config: WriterConfig, parts: WriterParts) -> Writer | None:
    """None where discovery shall not write (GPULOOM_DISCOVERY_WRITES=false).

    It waits until the whole service is ready: then every node and pod is listed, and every agent was heard
    or given up on.
    """
    if not config.writes:
        return None

    def ready() -> bool:
        return parts.ready() and not any(check() for check in app.readiness.values())

    writer = Writer(replace(parts, ready=ready), config, app.clock, WriterMetrics(app.registry))
    app.add_loop("writer", writer.run)
    app.add_liveness("writer", writer.stuck_reason)
    return writer
