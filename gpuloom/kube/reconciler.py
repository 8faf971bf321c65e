"""A control loop over one kind of object: observe, take one bounded step, observe again.

Several workers, but one at a time for each object. A step acts only on a state that is at least as new as
this loop's own last write of the object, so it never repeats itself on an old picture. A failure is tried
again after a delay that grows, and not before the time that the server names; what can never work waits
until the object changes. An error that is none of ours ends the loop, and with it the process, which
Kubernetes starts again.

Whoever takes over goes through everything, the newest first and behind whatever changes meanwhile: a new
object does not wait until thousands were found to be as they should.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError
from gpuloom.kube.cache import Change
from gpuloom.kube.errors import retry_after_s
from gpuloom.kube.objects import JsonObject, ObjectKey, is_older_version, key_of, resource_version_of, uid_of
from gpuloom.kube.work_queue import WorkQueue
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock, deadline

_log = logging.getLogger(__name__)

_LONGEST_TOLD_S = 60.0
"""No server keeps us from an object for longer, whatever it says."""

_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Observed(Protocol):
    """Objects of one kind as last observed; an Informer is one."""

    def get(self, name: str, namespace: str = "") -> JsonObject | None: ...

    def objects(self) -> list[JsonObject]: ...


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did. `wrote` is the object as the server answered it to the step's last write, if any.

    `again_after_s`: when to come back though nothing changes; None: when something does.
    """

    wrote: JsonObject | None = None
    again_after_s: float | None = None


Reconcile = Callable[[ObjectKey, JsonObject | None], Awaitable[Step]]
"""The object as observed, None if it is gone. Raise InvalidRequestError for what only a change can mend."""


@dataclass(frozen=True, slots=True)
class ReconcilerOptions:
    workers: int = 4
    step_timeout_s: float = 30.0
    stuck_after_s: float = 120.0
    """With keys waiting and no step ended for so long, the loop is stuck, and /healthz says so."""
    retry_cap_s: float = 300.0
    """The longest delay after failures in a row."""


class Reconciler:
    """`name` is part of metric names: gpuloom_<name>_…"""

    def __init__(
        self,
        name: str,
        observed: Observed,
        reconcile: Reconcile,
        clock: Clock,
        registry: CollectorRegistry,
        options: ReconcilerOptions | None = None,
    ) -> None:
        self._name = name
        self._observed = observed
        self._reconcile = reconcile
        self._clock = clock
        self._options = options or ReconcilerOptions()
        self.queue = WorkQueue(
            clock,
            lambda: [key_of(obj) for obj in observed.objects()],
            new_backoff=lambda: Backoff(0.5, self._options.retry_cap_s),
        )
        self._written: dict[ObjectKey, tuple[str, str]] = {}
        """UID and version of our last write of each object, until it was observed."""
        self._ended_s = clock.monotonic()
        self._running = False
        self._metrics = _Metrics(name, self._depth, registry)

    def observe(self, change: Change) -> None:
        """For the informer of these objects."""
        self.queue.add(change.key)

    def observe_dependent(self, change: Change, kind: str) -> None:
        """For the informer of objects whose controller is one of these: their owner gets a step."""
        for obj in (change.old, change.new):
            owner = controller_of(obj or {}, kind)
            if owner is not None:
                self.queue.add(owner)

    async def run(self) -> None:
        """Until cancelled. Starts with every object there is."""
        self.queue.add_behind(map(key_of, sorted(self._observed.objects(), key=_version, reverse=True)))
        self._ended_s = self._clock.monotonic()
        self._running = True
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._options.workers):
                    group.create_task(self._work(), name=f"{self._name} worker {number}")
        finally:
            self._running = False

    def stuck_reason(self) -> str | None:
        """The liveness check."""
        idle_s = self._clock.monotonic() - self._ended_s
        due = self.queue.due_count
        if due and idle_s > self._options.stuck_after_s:
            return f"{self._name}: {due} objects are due, and no step has ended for {idle_s:.0f} s"
        return None

    def _depth(self) -> float:
        """Of a replica that stands by nothing is due: it only notes what it would go through."""
        return float(self.queue.due_count) if self._running else 0.0

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self._step(key)
            finally:
                self.queue.done(key)
                self._ended_s = self._clock.monotonic()
            # A step that had nothing to do waited for nothing, and informers and the lease need their turn.
            await asyncio.sleep(0)

    async def _step(self, key: ObjectKey) -> None:
        namespace, name = key
        obj = self._observed.get(name, namespace)
        if not self._has_caught_up(key, obj):
            # The observation of our own write adds the key again.
            self._metrics.steps.labels("waited").inc()
            return
        started_s = self._clock.monotonic()
        try:
            async with deadline(self._clock, self._options.step_timeout_s):
                step = await self._reconcile(key, obj)
        except InvalidRequestError as error:
            self._give_up(key, error)
        except ConflictError as error:
            # Somebody wrote in between; the next try reads what he wrote.
            self._try_again(key, error, "conflict")
        except (GpuloomError, TimeoutError) as error:
            self._try_again(key, error, "failed")
        else:
            self._succeed(key, step)
        self._metrics.duration.observe(self._clock.monotonic() - started_s)

    def _has_caught_up(self, key: ObjectKey, obj: JsonObject | None) -> bool:
        written = self._written.get(key)
        if written is None:
            return True
        uid, version = written
        # Gone, or another object of that name: what we wrote is history.
        is_history = obj is None or uid_of(obj) != uid
        caught_up = is_history or not is_older_version(resource_version_of(obj or {}), version)
        if caught_up:
            del self._written[key]
        return caught_up

    def _succeed(self, key: ObjectKey, step: Step) -> None:
        self.queue.forget_failures(key)
        self._metrics.steps.labels("done").inc()
        if step.wrote is not None:
            self._written[key] = uid_of(step.wrote), resource_version_of(step.wrote)
        if step.again_after_s is not None:
            self.queue.add_after(key, step.again_after_s)

    def _try_again(self, key: ObjectKey, error: Exception, result: str) -> None:
        told_s = min(retry_after_s(error) or 0.0, _LONGEST_TOLD_S)
        delay_s = self.queue.add_after_failure(key, told_s)
        self._metrics.steps.labels(result).inc()
        fields = {"loop": self._name, "object": _shown(key), "delay_s": round(delay_s, 1)}
        _log.warning("step failed, trying again", extra={**fields, "error": str(error) or "timed out"})

    def _give_up(self, key: ObjectKey, error: InvalidRequestError) -> None:
        self.queue.forget_failures(key)
        self._metrics.steps.labels("invalid").inc()
        fields = {"loop": self._name, "object": _shown(key), "error": str(error)}
        _log.warning("object can't be reconciled until it changes", extra=fields)


def controller_of(obj: JsonObject, kind: str) -> ObjectKey | None:
    """The key of the object of that kind that controls this one, in the same namespace."""
    metadata = obj.get("metadata") or {}
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == kind:
            return metadata.get("namespace") or "", owner.get("name") or ""
    return None


def _version(obj: JsonObject) -> int:
    """Higher means written later, as Kubernetes has it."""
    told = resource_version_of(obj)
    return int(told) if told.isascii() and told.isdigit() else 0


def _shown(key: ObjectKey) -> str:
    return "/".join(filter(None, key))


class _Metrics:
    def __init__(self, name: str, depth: Callable[[], float], registry: CollectorRegistry) -> None:
        gauge = Gauge(f"gpuloom_{name}_queue_depth", "Objects that are due for a step", registry=registry)
        gauge.set_function(depth)
        self.steps = Counter(
            f"gpuloom_{name}_steps_total", "Steps by how they ended", ["result"], registry=registry
        )
        self.duration = Histogram(
            f"gpuloom_{name}_step_duration_seconds", "Time of a step", buckets=_BUCKETS_S, registry=registry
        )
