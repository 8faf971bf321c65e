"""Kubernetes Events about what we did: deduplicated, rate-limited, best effort.

Recording never blocks and never raises; `run` writes in the background. An event that can't be written or
does not fit the bound is dropped and counted.
"""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter

from gpuloom.errors import DeadlineError, GpuloomError, NotFoundError, NotReadyError, UnavailableError
from gpuloom.kube.errors import AlreadyExistsError
from gpuloom.kube.objects import JsonObject, key_of, resource_version_of, uid_of
from gpuloom.kube.resources import EVENTS, Resource
from gpuloom.runtime.clock import Clock

_log = logging.getLogger(__name__)

# The API server's own limits, in bytes.
_MAX_REASON, _MAX_MESSAGE, _MAX_NAME = 128, 1024, 230
_WRITES_A_ROUND = 50
_MAX_ATTEMPTS = 3


class EventKind(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class EventApi(Protocol):
    """What the recorder needs of an API; KubeClient gives it."""

    async def create(self, resource: Resource, obj: JsonObject) -> JsonObject: ...

    async def patch(
        self, resource: Resource, name: str, namespace: str | None, patch: JsonObject
    ) -> JsonObject: ...


@dataclass(frozen=True, slots=True)
class EventSettings:
    interval_s: float = 10.0
    """At most one write per distinct event in this time."""
    round_s: float = 1.0
    """How often what is due is written."""
    capacity: int = 1024
    """Distinct events remembered; the longest unheard ones make room."""


@dataclass(slots=True)
class _Entry:
    about: JsonObject
    kind: EventKind
    reason: str
    message: str
    first: datetime
    last: datetime
    count: int = 0
    is_dirty: bool = False
    attempts: int = 0
    written_s: float | None = None
    name: str | None = None
    once: bool = False


class EventRecorder:
    """`component` says who speaks (a service), `instance` which of its replicas."""

    def __init__(
        self,
        client: EventApi,
        component: str,
        instance: str,
        clock: Clock,
        settings: EventSettings | None = None,
        *,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._clock = clock
        self._settings = settings or EventSettings()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.dropped = 0
        self._dropped_total = Counter(
            "gpuloom_kube_events_dropped", "Events that could not be written or kept.", registry=registry
        )

    def normal(self, obj: JsonObject, reason: str, message: str) -> None:
        self.record(obj, EventKind.NORMAL, reason, message)

    def warning(self, obj: JsonObject, reason: str, message: str) -> None:
        self.record(obj, EventKind.WARNING, reason, message)

    def warn_once(self, obj: JsonObject, reason: str, message: str) -> None:
        """Written once while the server keeps it, by whichever replica comes first; never counted up."""
        entry = self.record(obj, EventKind.WARNING, reason, message)
        entry.once = True
        entry.is_dirty = entry.written_s is None

    async def write_once(self, obj: JsonObject, kind: EventKind, reason: str, told: tuple[str, str]) -> bool:
        """Write it now; False if it was written before and is still kept. Raise GpuloomError if it can't be.

        `told` is what the event is about, by which it is known again, and its message, which may differ.
        """
        topic, message = told
        about, now = _reference(obj), self._clock.now()
        reason, message = _cut(reason, _MAX_REASON), _cut(message, _MAX_MESSAGE)
        key = _digest(about["kind"], *key_of(obj), about["uid"], kind, reason, topic)
        entry = _Entry(about, kind, reason, message, now, now, count=1, once=True)
        try:
            await self._client.create(EVENTS, self._event(key, entry))
        except AlreadyExistsError:
            return False
        return True

    def record(self, obj: JsonObject, kind: EventKind, reason: str, message: str) -> _Entry:
        """About `obj`, which needs apiVersion, kind and metadata. The same again counts up the first one."""
        about = _reference(obj)
        reason, message = _cut(reason, _MAX_REASON), _cut(message, _MAX_MESSAGE)
        key = _digest(about["kind"], *key_of(obj), about["uid"], kind, reason, message)
        now = self._clock.now()
        entry = self._entries.get(key)
        if entry is None:
            self._make_room()
            entry = self._entries[key] = _Entry(about, kind, reason, message, now, now)
        entry.count += 1
        entry.last = now
        entry.is_dirty = True
        self._entries.move_to_end(key)
        return entry

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._clock.sleep(self._settings.round_s)
            await self.write_due()

    async def write_due(self) -> None:
        """One round: what is new, and what counted up and waited its interval. Also for the last word."""
        for key in list(self._due())[:_WRITES_A_ROUND]:
            # It may have had to make room while another was being written.
            entry = self._entries.get(key)
            if entry is not None:
                await self._write(key, entry)

    def _due(self) -> Iterator[str]:
        now_s = self._clock.monotonic()
        for key, entry in self._entries.items():
            waited = entry.written_s is None or now_s - entry.written_s >= self._settings.interval_s
            if entry.is_dirty and waited:
                yield key

    async def _write(self, key: str, entry: _Entry) -> None:
        entry.is_dirty = False
        try:
            await self._create_or_count_up(key, entry)
        except (DeadlineError, NotReadyError, UnavailableError) as error:
            entry.is_dirty = True
            entry.attempts += 1
            if entry.attempts >= _MAX_ATTEMPTS:
                self._drop(key, entry, error)
        except GpuloomError as error:
            self._drop(key, entry, error)
        else:
            entry.attempts = 0
            entry.written_s = self._clock.monotonic()

    async def _create_or_count_up(self, key: str, entry: _Entry) -> None:
        if entry.name is not None:
            patch: JsonObject = {"count": entry.count, "lastTimestamp": _time_text(entry.last)}
            try:
                await self._client.patch(EVENTS, entry.name, _event_namespace(entry.about), patch)
            except NotFoundError:
                # The server keeps events for an hour or so; then the story starts anew.
                entry.first, entry.count = entry.last, 1
            else:
                return
        event = self._event(key, entry)
        try:
            created = await self._client.create(EVENTS, event)
        except AlreadyExistsError:
            # Its name says all that is in it, so another replica, or an earlier run, has told it.
            if not entry.once:
                raise
        else:
            entry.name = key_of(created)[1]

    def _event(self, key: str, entry: _Entry) -> JsonObject:
        told_by = () if entry.once else (self._instance, self._clock.now().isoformat(), str(entry.attempts))
        suffix = _digest(key, *told_by)[:16]
        return {
            "metadata": {
                "namespace": _event_namespace(entry.about),
                "name": f"{entry.about['name'][:_MAX_NAME].rstrip('-.')}.{suffix}",
            },
            "involvedObject": entry.about,
            "type": entry.kind.value,
            "reason": entry.reason,
            "message": entry.message,
            "count": entry.count,
            "firstTimestamp": _time_text(entry.first),
            "lastTimestamp": _time_text(entry.last),
            "source": {"component": self._component, "host": self._instance},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }

    def _make_room(self) -> None:
        while len(self._entries) >= self._settings.capacity:
            _, oldest = self._entries.popitem(last=False)
            if oldest.is_dirty:
                self._count_dropped()

    def _drop(self, key: str, entry: _Entry, error: GpuloomError) -> None:
        self._entries.pop(key, None)
        self._count_dropped()
        _log.warning("event dropped", extra={"reason": entry.reason, "error": str(error)})

    def _count_dropped(self) -> None:
        self.dropped += 1
        self._dropped_total.inc()


def _reference(obj: JsonObject) -> JsonObject:
    namespace, name = key_of(obj)
    return {
        "apiVersion": obj.get("apiVersion") or "v1",
        "kind": obj.get("kind") or "",
        "namespace": namespace,
        "name": name,
        "uid": uid_of(obj),
        "resourceVersion": resource_version_of(obj),
    }


def _event_namespace(about: JsonObject) -> str:
    """Events of cluster-scoped objects live in the default namespace."""
    return about["namespace"] or "default"


def _cut(text: str, max_bytes: int) -> str:
    return text.encode(errors="replace")[:max_bytes].decode(errors="ignore")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()


def _time_text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
