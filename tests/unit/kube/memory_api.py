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
        self._backup: tuple[dict[tuple[str, str], JsonObject], int] = {}, self.version
        self._streams: list[tuple[int, asyncio.Queue[WatchEvent | Exception | None]]] = []
        """Each with the version it was begun at: a server sends nothing that is not newer."""

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
            self._send(event, again=True)

    def bookmark(self) -> None:
        mark = {"metadata": {"resourceVersion": str(self.version)}}
        self._send(WatchEvent(EventType.BOOKMARK, mark), again=True)

    def cut(self, how: Exception | None = None) -> None:
        """End all watches: politely, or with an error."""
        for _, stream in self._streams:
            stream.put_nowait(how)
        self._streams.clear()

    def snapshot(self) -> None:
        """Make a backup."""
        self._backup = dict(self.objects), self.version

    def restore(self, bump: int = 0, polite: bool = False) -> None:
        """Go back to the last backup. All watches break, unless `polite`; no earlier history is known.

        `bump`: the version is set forward by so much, as etcdutl does on request.
        """
        self.objects, self.version = dict(self._backup[0]), self._backup[1]
        self.version += bump
        self.compact()
        if not polite:
            self.cut(UnavailableError("the server ended"))

    def repeat_restored(self, name: str) -> None:
        """Send the object as it is, however old."""
        self._send(WatchEvent(EventType.MODIFIED, self.objects["default", name]), again=True)

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

    async def newest_version(self, resource: Resource, namespace: str | None) -> str:
        await asyncio.sleep(0)
        return str(self.version)

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
        self._streams.append((int(resource_version), stream))
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

    def _send(self, event: WatchEvent, again: bool = False) -> None:
        for begun_at, stream in self._streams:
            if again or int(resource_version_of(event.object)) > begun_at:
                stream.put_nowait(event)
