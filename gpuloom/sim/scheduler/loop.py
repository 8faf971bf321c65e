"""The scheduling loop: one pod at a time through filters, extender and scores; binding beside it.

1 take the next pod   2 in-tree filters   3 the extender's filter   4 scores   5 assume   6 bind, concurrently

A bind that fails or times out takes the assumption back and tries the pod again later; if the bind took
effect after all, the watch shows the pod on its node and it leaves the queue. Preemption is not simulated.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpuloom.errors import GpuloomError
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.parse import format_time
from gpuloom.model.node import PodRef
from gpuloom.placement.constraints.filters import refusals
from gpuloom.placement.constraints.objects import SchedulablePod
from gpuloom.runtime.clock import Clock
from gpuloom.sim.scheduler.cache import ClusterCache
from gpuloom.sim.scheduler.extender import MAX_BINDS_AT_ONCE, Extender
from gpuloom.sim.scheduler.queue import QueuedPod, SchedulingQueue
from gpuloom.sim.scheduler.verdict import (
    choose,
    least_allocated,
    pod_scheduled_condition,
    total_scores,
    unschedulable_message,
)
from gpuloom.sim.scheduler.wire import ExtenderError
from gpuloom.sim.wakeup import wait_changed

_log = logging.getLogger(__name__)

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"


class ClusterApi(Protocol):
    """What the scheduler writes to Kubernetes. Every call may raise a GpuloomError."""

    async def bind(self, pod: PodRef, node: str) -> None: ...

    async def write_conditions(self, pod: JsonObject, conditions: Sequence[JsonObject]) -> None:
        """Raise ConflictError if the pod is no longer as given: it may have been bound meanwhile."""

    def record_event(self, pod: JsonObject, reason: str, message: str) -> None:
        """Best effort; returns at once."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    managed_resources: frozenset[str]
    scheduler_name: str = "default-scheduler"
    extender_weight: int = 100
    seed: int = 0


@dataclass(slots=True)
class SchedulerState:
    """What the watches fill and the loop reads. `changed` wakes an idle loop."""

    queue: SchedulingQueue = field(default_factory=SchedulingQueue)
    cache: ClusterCache = field(default_factory=ClusterCache)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class SchedulerLoop:
    def __init__(
        self,
        state: SchedulerState,
        api: ClusterApi,
        extender: Extender,
        settings: SchedulerSettings,
        clock: Clock,
    ) -> None:
        self._state = state
        self._api = api
        self._extender = extender
        self._settings = settings
        self._clock = clock
        self._rng = random.Random(settings.seed)
        self._bind_slots = asyncio.Semaphore(MAX_BINDS_AT_ONCE)

    async def run(self) -> None:
        """Until cancelled; binds under way are cancelled with it, as when a scheduler dies."""
        async with asyncio.TaskGroup() as binds:
            while True:
                self._state.changed.clear()
                entry = self._state.queue.pop(self._clock.monotonic())
                if entry is None:
                    due_s = self._state.queue.next_due_s()
                    timeout_s = None if due_s is None else due_s - self._clock.monotonic()
                    await wait_changed(self._state.changed, self._clock, timeout_s)
                    continue
                node = await self._try(entry)
                # It may have been deleted, or been seen bound, while the extender was asked.
                if node is not None and entry.pod.uid in self._state.queue:
                    self._state.cache.assume(entry.pod, node)
                    await self._bind_slots.acquire()
                    binds.create_task(self._bind(entry, node))

    async def _try(self, entry: QueuedPod) -> str | None:
        """The node for the pod; None if there is none now, and the pod is told why."""
        pod = entry.pod
        try:
            feasible, reasons = self._filter_in_tree(pod)
            managed = not self._settings.managed_resources.isdisjoint(pod.requests)
            if managed and feasible:
                answer = await self._extender.filter(pod.raw, feasible)
                reasons += [text for node, text in answer.refused.items() if node not in answer.nodes]
                feasible = list(answer.nodes)
            if not feasible:
                self._state.queue.unschedulable(pod.uid, self._clock.monotonic())
                message = unschedulable_message(self._state.cache.node_count(), reasons)
                await self._tell(entry, UNSCHEDULABLE, message)
                return None
            return await self._choose(pod, feasible, managed=managed)
        except ExtenderError as error:
            self._state.queue.failed(pod.uid, self._clock.monotonic())
            await self._tell(entry, SCHEDULER_ERROR, str(error))
            return None

    def _filter_in_tree(self, pod: SchedulablePod) -> tuple[list[str], list[str]]:
        feasible: list[str] = []
        reasons: list[str] = []
        neighbours = self._state.cache.neighbours(pod)
        for node, use in self._state.cache.nodes():
            refused = refusals(pod, node, use)
            if not refused and neighbours is not None:
                refused = neighbours.refusals(node)
            reasons += refused
            if not refused:
                feasible.append(node.name)
        return feasible, reasons

    async def _choose(self, pod: SchedulablePod, feasible: list[str], *, managed: bool) -> str:
        if len(feasible) == 1:
            return feasible[0]
        built_in = {}
        for name in feasible:
            node = self._state.cache.node(name)
            built_in[name] = 0 if node is None else least_allocated(pod, node, self._state.cache.use_of(name))
        extra: dict[str, int] = {}
        if managed:
            try:
                extra = await self._extender.prioritize(pod.raw, feasible)
            except ExtenderError as error:
                _log.warning("priorities ignored", extra={"pod": str(pod), "error": str(error)})
        return choose(total_scores(built_in, extra, self._settings.extender_weight), self._rng)

    async def _bind(self, entry: QueuedPod, node: str) -> None:
        pod = entry.pod
        ref = PodRef(pod.namespace, pod.name, pod.uid)
        managed = not self._settings.managed_resources.isdisjoint(pod.requests)
        try:
            if managed:
                await self._extender.bind(ref, node)
            else:
                await self._api.bind(ref, node)
        except GpuloomError as error:
            await self._bind_failed(entry, str(error))
            return
        finally:
            self._bind_slots.release()
        # The pod leaves the queue when it is seen bound. If it never is, it stays pending, as in reality.
        self._api.record_event(pod.raw, "Scheduled", f"Successfully assigned {pod} to {node}")

    async def _bind_failed(self, entry: QueuedPod, error: str) -> None:
        now_s, uid = self._clock.monotonic(), entry.pod.uid
        if self._state.cache.forget_assumed(uid):
            # What was assumed is free again: that is news for pods that found no room.
            self._state.queue.wake_all(now_s)
        self._state.queue.failed(uid, now_s)
        self._state.changed.set()
        await self._tell(entry, SCHEDULER_ERROR, f"binding rejected: {error}")

    async def _tell(self, entry: QueuedPod, reason: str, message: str) -> None:
        """The event every time, the condition only if it is news. Failing to tell changes nothing."""
        pod = entry.pod
        self._api.record_event(pod.raw, "FailedScheduling", message)
        known = (pod.raw.get("status") or {}).get("conditions") or ()
        conditions = pod_scheduled_condition(reason, message, format_time(self._clock.now()), known)
        if conditions is None or pod.uid not in self._state.queue:
            return
        try:
            await self._api.write_conditions(pod.raw, conditions)
        except GpuloomError as error:
            _log.info("pod condition not written", extra={"pod": str(pod), "error": str(error)})
