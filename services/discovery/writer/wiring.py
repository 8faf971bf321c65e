"""Puts the writer together: every replica stands for election, and the elected one writes."""

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpuloom.errors import GpuloomError, NotReadyError
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
_LEAST_WRITE_S = 0.2
_LOOK_EVERY_S = 0.2


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
        identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._parts = parts
        self._clock = clock
        self._metrics = metrics
        self._elected = False
        self._backoff = Backoff(1.0, 30.0)
        self._elector = LeaderElector(
            parts.client,
            config.lease_namespace,
            config.lease_name,
            identity,
            clock,
            config.lease_settings(),
        )
        self._recorder = EventRecorder(
            parts.client, "gpuloom-discovery", identity, clock, registry=metrics.registry
        )
        self._events = TrustEvents(self._recorder, parts.nodes.get, clock)
        patcher = StatusPatcher(parts.client, self._elector.leader_until_s, clock)
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
        while not self._parts.ready():
            await self._clock.sleep(_LOOK_EVERY_S)
        while True:
            try:
                await self._elector.run(self._write)
            except LeadershipLostError as error:
                _log.warning("not elected to write any more", extra={"reason": str(error)})
            except GpuloomError as error:
                _log.warning("writing stopped, standing for election again", extra={"reason": str(error)})
            await self._clock.sleep(self._backoff.next_delay_s())

    async def _write(self) -> None:
        self._backoff.reset()
        self._elected = True
        self._metrics.elected.set(1)
        self._events.start(self._parts.model.standing_distrust())
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
    """Sends a patch only while nobody else can be elected, with a timeout that ends before somebody is.

    A process that was stopped in between does not know that it was: it asks here, right before it sends.
    """

    def __init__(self, client: KubeClient, elected_until_s: Callable[[], float], clock: Clock) -> None:
        self._client = client
        self._elected_until_s = elected_until_s
        self._clock = clock

    async def patch(self, name: str, patch: JsonObject, resource_version: str) -> JsonObject:
        left_s = self._elected_until_s() - self._clock.monotonic()
        if left_s < _LEAST_WRITE_S:
            raise NotReadyError("too little is left of the lease to write within it")
        timeout_s = min(_WRITE_TIMEOUT_S, left_s)
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
    return writer
