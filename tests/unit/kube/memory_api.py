"""An API in memory that the informer follows: a numbered history, watches that can be cut, compaction."""

import asyncio
from collections.abc import AsyncGenerator

from gpuloom.errors import UnavailableError
from gpuloom.kube.errors import GoneError
from gpuloom.kube.listing import EventType, Listing, Selection, WatchEvent
from gpuloom.kube.objects import JsonObject, key_of, resource_version_of
from gpuloom.kube.resources import Resource


class MemoryApi:
    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], JsonObject] = {}
        self.version = 100
        self._lists_to_fail = 0
        self._uids = 0
        self._history: list[WatchEvent] = []
        self._compacted = 0
        self._streams: list[asyncio.Queue[WatchEvent | Exception | None]] = []

    def put(self, name: str, color: str = "red") -> None:
        """Create it, or change it if it is there."""
        known = self.objects.get(("default", name))
        uid = known["metadata"]["uid"] if known else self._next_uid()
        self._write(EventType.MODIFIED if known else EventType.ADDED, self._object(name, uid, color))

    def remove(self, name: str) -> None:
        known = self.objects.pop(("default", name), None)
        if known is not None:
            self._write(EventType.DELETED, self._object(name, known["metadata"]["uid"], known["color"]))

    def recreate(self, name: str) -> None:
        self.remove(name)
        self.put(name)

    def fail_lists(self, how_many: int) -> None:
        self._lists_to_fail = how_many

    def repeat(self, how_far_back: int) -> None:
        """Send one of the last events once more."""
        for event in self._history[-how_far_back:][:1]:
            self._send(event)

    def bookmark(self) -> None:
        self._send(WatchEvent(EventType.BOOKMARK, {"metadata": {"resourceVersion": str(self.version)}}))

    def cut(self, how: Exception | None = None) -> None:
        """End all watches: politely, or with an error."""
        for stream in self._streams:
            stream.put_nowait(how)
        self._streams.clear()

    def compact(self) -> None:
        self._compacted = self.version
        self._history.clear()

    async def list(self, resource: Resource, selection: Selection) -> Listing:
        await asyncio.sleep(0)
        if self._lists_to_fail > 0:
            self._lists_to_fail -= 1
            raise UnavailableError("no connection")
        items = self.objects.values()
        return Listing(tuple(map(selection.keep or dict, items)), str(self.version))

    async def watch(
        self,
        resource: Resource,
        resource_version: str,
        selection: Selection,
        *,
        duration_s: float,
        idle_timeout_s: float,
    ) -> AsyncGenerator[WatchEvent, None]:
        await asyncio.sleep(0)
        if int(resource_version) < self._compacted:
            raise GoneError("too old")
        # Bounded by the test, which sends a handful of events.
        stream: asyncio.Queue[WatchEvent | Exception | None] = asyncio.Queue()
        for event in self._history:
            if int(resource_version_of(event.object)) > int(resource_version):
                stream.put_nowait(event)
        self._streams.append(stream)
        while (event_or_end := await stream.get()) is not None:
            if isinstance(event_or_end, Exception):
                raise event_or_end
            yield event_or_end

    def _object(self, name: str, uid: str, color: str) -> JsonObject:
        self.version += 1
        return {
            "metadata": {
                "namespace": "default",
                "name": name,
                "uid": uid,
                "resourceVersion": str(self.version),
                "managedFields": [{"manager": "test"}],
            },
            "color": color,
        }

    def _next_uid(self) -> str:
        self._uids += 1
        return f"uid-{self._uids}"

    def _write(self, kind: EventType, obj: JsonObject) -> None:
        if kind is not EventType.DELETED:
            self.objects[key_of(obj)] = obj
        event = WatchEvent(kind, obj)
        self._history.append(event)
        self._send(event)

    def _send(self, event: WatchEvent) -> None:
        for stream in self._streams:
            stream.put_nowait(event)
