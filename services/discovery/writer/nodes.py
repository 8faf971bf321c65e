"""Writes to nodes what they should say, one guarded patch at a time for each.

It acts on a node only when it has seen the outcome of its own last write there, so it never repeats itself
on an old picture; somebody else's write in between makes it look again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from gpuloom.errors import ConflictError, GpuloomError, NotFoundError
from gpuloom.kube.objects import JsonObject, resource_version_of, uid_of
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock
from services.discovery.desired import Desired
from services.discovery.writer.metrics import WriterMetrics
from services.discovery.writer.patch import node_patch

_log = logging.getLogger(__name__)

_CONCURRENT_WRITES = 8
_FIRST_RETRY_S = 1.0
_RETRY_CAP_S = 60.0

DesiredOf = Callable[[str], Desired | None]
"""By node UID; None while nothing may be written: its agent is not heard."""


class Nodes(Protocol):
    """The nodes as last observed; an Informer gives it."""

    def get(self, name: str, namespace: str = "") -> JsonObject | None: ...

    def objects(self) -> Iterable[JsonObject]: ...


class NodePatcher(Protocol):
    async def patch(self, name: str, patch: JsonObject, resource_version: str) -> JsonObject:
        """Patch a node's status. Raise ConflictError if its version is another one by now."""


class NodeWriter:
    def __init__(
        self, nodes: Nodes, desired: DesiredOf, patcher: NodePatcher, clock: Clock, metrics: WriterMetrics
    ) -> None:
        self._nodes = nodes
        self._desired = desired
        self._patcher = patcher
        self._clock = clock
        self._metrics = metrics
        self._random = Random()
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._acted_on: dict[str, str] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._slots = asyncio.Semaphore(_CONCURRENT_WRITES)

    def touch(self, name: str) -> None:
        """Something about this node changed: look at it."""
        self._due[name] = None
        self._wake.set()

    def forget(self, name: str) -> None:
        """There is no such node any more."""
        for known in (self._due, self._acted_on, self._backoffs):
            known.pop(name, None)

    async def run(self) -> None:
        """For the elected replica alone, until cancelled. Starts with a look at every node."""
        self._acted_on.clear()
        self._backoffs.clear()
        for node in self._nodes.objects():
            self.touch(str(node["metadata"]["name"]))
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                self._wake.clear()
                due, self._due = self._due, {}
                for name in due:
                    order = self._order(name)
                    if order is not None:
                        group.create_task(self._write(order))

    def _order(self, name: str) -> "_Order | None":
        """What to write to this node now, at most once for each of its versions."""
        node = self._nodes.get(name)
        if node is None or resource_version_of(node) == self._acted_on.get(name):
            # Gone, or our own write is not observed yet: its observation touches the node again.
            return None
        desired = self._desired(uid_of(node))
        patch = None if desired is None else node_patch(node, desired, self._clock.now())
        if patch is None:
            self._backoffs.pop(name, None)
            return None
        self._acted_on[name] = resource_version_of(node)
        return _Order(name, resource_version_of(node), patch)

    async def _write(self, order: "_Order") -> None:
        try:
            async with self._slots:
                await self._patcher.patch(order.name, order.patch, order.version)
        except NotFoundError:
            self._metrics.writes.labels("gone").inc()
        except ConflictError:
            # Whoever wrote in between will be observed.
            self._metrics.writes.labels("conflict").inc()
        except GpuloomError as error:
            self._metrics.writes.labels("failed").inc()
            await self._try_again(order, error)
        else:
            self._metrics.writes.labels("written").inc()
            fields = {"node": order.name, "changed": sorted(_changed(order.patch))}
            _log.info("node written", extra=fields)

    async def _try_again(self, order: "_Order", error: GpuloomError) -> None:
        fields = {"node": order.name, "error": str(error)}
        _log.warning("node not written, trying again", extra=fields)
        backoff = self._backoffs.setdefault(order.name, Backoff(_FIRST_RETRY_S, _RETRY_CAP_S, self._random))
        await self._clock.sleep(backoff.next_delay_s())
        if self._acted_on.get(order.name) == order.version:
            # The write may have arrived all the same; then the node has another version by now.
            del self._acted_on[order.name]
            self.touch(order.name)


@dataclass(frozen=True, slots=True)
class _Order:
    """A patch that fits exactly this version of the node."""

    name: str
    version: str
    patch: JsonObject


def _changed(patch: JsonObject) -> Iterable[str]:
    for part in patch.values():
        yield from part
