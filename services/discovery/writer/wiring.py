"""Puts the writer together: every replica stands for election, and the elected one writes."""

import asyncio
import logging
import secrets
import socket
from dataclasses import dataclass

from gpuloom.errors import GpuloomError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import KubeClient
from gpuloom.kube.errors import LeadershipLostError
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer
from gpuloom.kube.leader import LeaderElector
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import NODES
from gpuloom.runtime.app import App
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock
from services.discovery.cluster import Changes, ClusterModel
from services.discovery.writer.config import WriterConfig
from services.discovery.writer.events import TrustEvents
from services.discovery.writer.metrics import WriterMetrics
from services.discovery.writer.nodes import NodeWriter

_log = logging.getLogger(__name__)

_WRITE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class WriterParts:
    client: KubeClient
    nodes: Informer
    model: ClusterModel


class Writer:
    """Stands for election for as long as it runs. Without an election it writes nothing and says nothing."""

    def __init__(
        self, parts: WriterParts, config: WriterConfig, clock: Clock, metrics: WriterMetrics
    ) -> None:
        identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._parts = parts
        self._clock = clock
        self._metrics = metrics
        self._elected = False
        self._elector = LeaderElector(
            parts.client, config.lease_namespace, config.lease_name, identity, clock
        )
        self._recorder = EventRecorder(parts.client, "gpuloom-discovery", identity, clock)
        self._events = TrustEvents(self._recorder, parts.nodes.get)
        patcher = StatusPatcher(parts.client)
        self._nodes = NodeWriter(parts.nodes, parts.model.desired, patcher, clock, metrics)
        parts.nodes.on_change(self._node_changed)

    def observe(self, changes: Changes) -> None:
        """What the model published."""
        for facts in changes.facts:
            if facts.state.node_uid not in changes.usage_only:
                self._nodes.touch(facts.state.node_name)
        if self._elected:
            self._events.tell(changes.distrust)

    async def run(self) -> None:
        backoff = Backoff(1.0, 30.0)
        while True:
            try:
                await self._elector.run(self._write)
            except LeadershipLostError as error:
                _log.warning("another replica writes from now on", extra={"reason": str(error)})
            except GpuloomError as error:
                _log.warning("writing stopped, standing for election again", extra={"reason": str(error)})
            await self._clock.sleep(backoff.next_delay_s())

    async def _write(self) -> None:
        self._elected = True
        self._metrics.elected.set(1)
        # Nobody may have told of what appeared before this election.
        self._events.tell(self._parts.model.standing_distrust())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._nodes.run())
                group.create_task(self._recorder.run())
        finally:
            self._elected = False
            self._metrics.elected.set(0)

    def _node_changed(self, change: Change) -> None:
        name = change.key[1]
        if change.new is None:
            self._nodes.forget(name)
        else:
            self._nodes.touch(name)


class StatusPatcher:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def patch(self, name: str, patch: JsonObject, resource_version: str) -> JsonObject:
        return await self._client.patch_status(
            NODES, name, None, patch, resource_version=resource_version, timeout_s=_WRITE_TIMEOUT_S
        )


def start_writer(app: App, config: WriterConfig, parts: WriterParts) -> Writer | None:
    """None where discovery shall not write (GPULOOM_DISCOVERY_WRITES=false)."""
    if not config.writes:
        return None
    writer = Writer(parts, config, app.clock, WriterMetrics(app.registry))
    app.add_loop("writer", writer.run)
    return writer
