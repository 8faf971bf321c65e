"""Watches: who hears of which change, as what, and when a watch ends.

Each change is encoded once for all watchers of the same representation. A watcher has a bounded queue; one
that does not keep up is cut off, so that it never delays the others. Writing to sockets is not done here.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubeapi.endpoints.representation import Representation
from gpuloom.sim.kubeapi.resources import CRD_KEY, Resource
from gpuloom.sim.kubeapi.selectors import EVERYTHING, Selector, field_text
from gpuloom.sim.kubeapi.status import ApiError
from gpuloom.sim.kubeapi.storage.collection import Entry, Event
from gpuloom.sim.kubeapi.storage.paging import ListQuery
from gpuloom.sim.kubeapi.verbs.store import Store

MAX_QUEUED_EVENTS = 10_000
MAX_WATCHES = 20_000
_CHUNK_BYTES = 256 * 1024

# A watch that fixes one of these fields is only asked about changes of objects that have (or had) its value.
_DISPATCH_PATHS = (("metadata", "name"), ("spec", "nodeName"))

Bucket = tuple[str, tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """`since` None asks for the present state first, as ADDED events."""

    resource: Resource
    representation: Representation
    namespace: str = ""
    selector: Selector = EVERYTHING
    since: int | None = None
    bookmarks: bool = False


class Watch:
    """One watcher's view: what it is to be sent, until it ends."""

    def __init__(self, request: WatchRequest, first: Iterator[bytes], max_queued: int) -> None:
        self.request = request
        self.cut_off = False
        self.is_connected: Callable[[], bool] = lambda: True
        self.abort: Callable[[], None] = lambda: None
        self._first = first
        self._queue: deque[bytes] = deque()
        self._max_queued = max_queued
        self._marked_version = request.since or 0
        self._ended = False
        self._wake = asyncio.Event()

    def offer(self, event: Event) -> None:
        if self.request.namespace and event.key[0] != self.request.namespace:
            return
        # A watch from a version that is still to come is silent until then, as on a real server.
        if event.version <= (self.request.since or 0):
            return
        seen = visible_change(event, self.request.selector)
        if seen is not None:
            self._push(_event_line(event, *seen, self.request.representation))

    def bookmark(self, version: int) -> None:
        """As long as nothing happens anywhere a real server is silent too."""
        if self.request.bookmarks and version > self._marked_version:
            self._marked_version = version
            self._push(_bookmark_line(self.request, version))

    def end(self) -> None:
        """No more events; what is queued is still sent."""
        self._ended = True
        self._wake.set()

    def cut(self) -> None:
        """End now, without sending what is queued and without a proper end of the answer."""
        self.cut_off = True
        self._queue.clear()
        self.end()
        self.abort()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Lines of JSON in pieces worth one write, until the watch ends."""
        for chunk in _chunked(self._first):
            if self.cut_off:
                return
            yield chunk
        while True:
            if self._queue:
                yield self._take()
            elif self._ended:
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    def _push(self, line: bytes) -> None:
        if self._ended:
            return
        if len(self._queue) >= self._max_queued:
            self.cut()
            return
        self._queue.append(line)
        self._wake.set()

    def _take(self) -> bytes:
        lines, size = [], 0
        while self._queue and size < _CHUNK_BYTES:
            line = self._queue.popleft()
            lines.append(line)
            size += len(line)
        return b"".join(lines)


class WatchHub:
    """All watches of one store."""

    def __init__(self, store: Store, clock: Clock, *, bookmark_interval_s: float) -> None:
        self._store = store
        self._clock = clock
        self._bookmark_interval_s = bookmark_interval_s
        self._watches: dict[Bucket, dict[Watch, None]] = {}
        self._count = 0
        store.listen(self._dispatch)

    def __len__(self) -> int:
        return self._count

    def open(self, request: WatchRequest, *, max_queued: int = MAX_QUEUED_EVENTS) -> Watch:
        """Raise 410 if the asked version is too old, 429 if there are too many watches."""
        if self._count >= MAX_WATCHES:
            raise ApiError(429, f"more than {MAX_WATCHES} watches are open")
        watch = Watch(request, self._first_lines(request), max_queued)
        self._watches.setdefault(_bucket(request), {})[watch] = None
        self._count += 1
        return watch

    def close(self, watch: Watch) -> None:
        bucket = _bucket(watch.request)
        watches = self._watches.get(bucket, {})
        if watch in watches:
            del watches[watch]
            self._count -= 1
            if not watches:
                del self._watches[bucket]
        watch.end()

    def expire(self, watch: Watch) -> None:
        """End a watch whose time is up; its last word is how far it came."""
        watch.bookmark(self._store.database.version)
        watch.end()

    def end_all(self) -> None:
        for watch in self._all():
            watch.end()

    def cut_all(self) -> None:
        for watch in self._all():
            watch.cut()

    async def run(self) -> None:
        """Send bookmarks, and end the watches whose client has gone, for ever."""
        while True:
            await self._clock.sleep(self._bookmark_interval_s)
            version = self._store.database.version
            for watch in self._all():
                if watch.is_connected():
                    watch.bookmark(version)
                else:
                    watch.cut()

    def _all(self) -> list[Watch]:
        return [watch for watches in self._watches.values() for watch in watches]

    def _first_lines(self, request: WatchRequest) -> Iterator[bytes]:
        """What precedes live events: the state of here and now, as lines that are made when they are sent."""
        if request.since is None:
            query = ListQuery(request.namespace, request.selector)
            entries = self._store.page(request.resource, query).entries
            return (_line("ADDED", request.representation.encode_entry(entry)) for entry in entries)
        return _replayed(request, self._store.events_since(request.resource, request.since))

    def _dispatch(self, event: Event) -> None:
        for bucket in _buckets_of(event):
            for watch in list(self._watches.get(bucket, ())):
                watch.offer(event)
        if event.resource.key == CRD_KEY and event.new is None:
            # The resource is gone with its definition, which bears its name.
            for watch in self._all():
                if watch.request.resource.key == event.key[1]:
                    watch.end()


def visible_change(event: Event, selector: Selector) -> tuple[str, Entry] | None:
    """The change as a watcher with this selector sees it: objects enter its view, leave it, or change."""
    after = event.new if event.new is not None and selector.matches(event.new.obj) else None
    before = event.old if event.old is not None and selector.matches(event.old.obj) else None
    if after is not None:
        return ("ADDED" if before is None else "MODIFIED"), after
    return ("DELETED", event.last()) if before is not None else None


def error_line(error: ApiError) -> bytes:
    return _line("ERROR", orjson.dumps(error.status()))


def _replayed(request: WatchRequest, events: Iterable[Event]) -> Iterator[bytes]:
    for event in events:
        if request.namespace and event.key[0] != request.namespace:
            continue
        seen = visible_change(event, request.selector)
        if seen is not None:
            yield _event_line(event, *seen, request.representation)


def _event_line(event: Event, kind: str, entry: Entry, representation: Representation) -> bytes:
    key = (kind, representation.name)
    line = event.lines.get(key)
    if line is None:
        line = event.lines[key] = _line(kind, representation.encode_entry(entry))
    return line


def _bookmark_line(request: WatchRequest, version: int) -> bytes:
    mark: dict[str, Any] = {
        "kind": request.resource.kind,
        "apiVersion": request.representation.api_version,
        "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
    }
    return _line("BOOKMARK", orjson.dumps(mark))


def _line(kind: str, encoded: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), encoded)


def _chunked(lines: Iterator[bytes]) -> Iterator[bytes]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= _CHUNK_BYTES:
            yield b"".join(batch)
            batch, size = [], 0
    if batch:
        yield b"".join(batch)


def _bucket(request: WatchRequest) -> Bucket:
    for path in _DISPATCH_PATHS:
        value = request.selector.exact(path)
        if value is not None:
            return request.resource.key, path, value
    return request.resource.key, (), ""


def _buckets_of(event: Event) -> set[Bucket]:
    """Where the watches are that may see this change: by what the object is now, and by what it was."""
    buckets: set[Bucket] = {(event.resource.key, (), "")}
    for path in _DISPATCH_PATHS:
        for entry in (event.old, event.new):
            if entry is not None:
                buckets.add((event.resource.key, path, field_text(entry.obj, path)))
    return buckets
