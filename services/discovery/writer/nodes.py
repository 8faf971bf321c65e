"""Writes to nodes what they should say, one guarded patch at a time for each."""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from gpuloom.errors import ConflictError, GpuloomError, NotFoundError
from gpuloom.kube.objects import JsonObject, ObjectKey, resource_version_of, uid_of
from gpuloom.kube.reconciler import Observed, Reconciler, ReconcilerOptions, Step
from gpuloom.runtime.clock import Clock
from services.discovery.core.desired import Desired
from services.discovery.writer.core.patch import node_patch
from services.discovery.writer.metrics import WriterMetrics

_log = logging.getLogger(__name__)

_OPTIONS = ReconcilerOptions(workers=8, retry_cap_s=60.0)

DesiredOf = Callable[[str], Desired | None]
"""By node UID; None while nothing may be written: its agent is not heard."""


class NodePatcher(Protocol):
    async def patch(self, name: str, patch: JsonObject, resource_version: str) -> JsonObject:
        """Patch a node's status. Raise ConflictError if its version is another one by now."""


class NodeWriter:
    def __init__(
        self, nodes: Observed, desired: DesiredOf, patcher: NodePatcher, clock: Clock, metrics: WriterMetrics
    ) -> None:
        self._desired = desired
        self._patcher = patcher
        self._clock = clock
        self._metrics = metrics
        self.loop = Reconciler("discovery_writer", nodes, self._write, clock, metrics.registry, _OPTIONS)

    def touch(self, name: str) -> None:
        """Something about this node changed."""
        self.loop.queue.add(("", name))

    async def _write(self, key: ObjectKey, node: JsonObject | None) -> Step:
        desired = None if node is None else self._desired(uid_of(node))
        if node is None or desired is None:
            return Step()
        patch = node_patch(node, desired, self._clock.now())
        if patch is None:
            return Step()
        try:
            wrote = await self._patcher.patch(key[1], patch, resource_version_of(node))
        except NotFoundError:
            self._metrics.writes.labels("gone").inc()
            return Step()
        except ConflictError:
            self._metrics.writes.labels("conflict").inc()
            raise
        except GpuloomError:
            self._metrics.writes.labels("failed").inc()
            raise
        self._metrics.writes.labels("written").inc()
        _log.info("node written", extra={"node": key[1], "changed": sorted(_changed(patch))})
        return Step(wrote=wrote)


def _changed(patch: JsonObject) -> Iterable[str]:
    for part in patch.values():
        yield from part
