"""The objects of all resources under one growing resourceVersion, and the indexes that deletion needs.

Decides the order of changes: a change is handed to the journal first, then becomes visible, then listeners
hear of it. Knows nothing of verbs, defaults or validation, and does no I/O itself.
"""

import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubeapi.resources import CRD_KEY, Registry, Resource
from gpuloom.sim.kubeapi.status import from_the_future, not_found
from gpuloom.sim.kubeapi.storage.collection import Collection, Entry, Event, Key, Object, with_version

Listener = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Change:
    """What the journal keeps: an object's new JSON, or its removal, or (without a key) just a version."""

    version: int
    resource: str
    key: Key | None
    obj: Object | None = None
    encoded: bytes | None = None


Sink = Callable[[Change], None]


class Database:
    def __init__(self, clock: Clock, *, history: int, rng: random.Random, sink: Sink | None) -> None:
        self.registry = Registry()
        self.clock = clock
        self.rng = rng
        self._history = history
        self._sink = sink
        self._version = 0
        self._compacted = 0
        self._collections: dict[str, Collection] = {}
        self._listeners: list[Listener] = []
        self._uids: dict[str, tuple[str, Key]] = {}
        self._dependents: dict[str, set[tuple[str, Key]]] = {}

    @property
    def version(self) -> int:
        return self._version

    def listen(self, listener: Listener) -> None:
        """Call `listener` after every change, in order. It must not change the database."""
        self._listeners.append(listener)

    def timestamp(self) -> str:
        return format_time(self.clock.now())

    def timestamp_in(self, delay_s: float) -> str:
        return format_time(self.clock.now() + timedelta(seconds=delay_s))

    def new_uid(self) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def collection(self, resource: Resource) -> Collection:
        collection = self._collections.get(resource.key)
        if collection is None or collection.resource is not resource:
            return self._renewed(resource, collection)
        return collection

    def find(self, resource: Resource, key: Key) -> Entry | None:
        return self.collection(resource).get(key)

    def require(self, resource: Resource, key: Key) -> Entry:
        entry = self.find(resource, key)
        if entry is None:
            raise not_found(resource.key, key[1])
        return entry

    def require_known(self, version: int) -> None:
        """Raise 504 for a version this server has not reached: the client has seen another history."""
        if version > self._version:
            raise from_the_future(version, self._version)

    def put(self, resource: Resource, key: Key, obj: Object) -> Entry:
        version = self._version + 1
        entry = Entry(with_version(obj, version), version, self.clock.monotonic())
        self._journal(Change(version, resource.key, key, entry.obj, entry.encoded()))
        self._commit(Event(version, resource, key, self.find(resource, key), entry))
        return entry

    def remove(self, resource: Resource, key: Key) -> Entry:
        """Remove an object that is there; returns its last state, at the version of the removal."""
        version = self._version + 1
        event = Event(version, resource, key, self.require(resource, key), None)
        self._journal(Change(version, resource.key, key))
        self._commit(event)
        return event.last()

    def compact(self) -> None:
        """Forget all history. The version moves on, so that each one seen before is too old to watch from."""
        self._journal(Change(self._version + 1, "", None))
        self._version += 1
        self._compacted = self._version
        for collection in self._collections.values():
            collection.compact(self._version)

    def restore(self, changes: Iterable[Change]) -> None:
        """Replay a journal into this (empty) database. Nothing older than its end can be watched from."""
        for change in changes:
            self._version = max(self._version, change.version)
            if change.key is None:
                continue
            resource = self.registry.get(change.resource)
            old = self.find(resource, change.key)
            if change.obj is not None:
                entry = Entry(change.obj, change.version, self.clock.monotonic())
                self._apply(Event(change.version, resource, change.key, old, entry), remember=False)
            elif old is not None:
                self._apply(Event(change.version, resource, change.key, old, None), remember=False)
        self._compacted = self._version
        for collection in self._collections.values():
            collection.compact(self._version)

    def rewind(self, changes: Iterable[Change]) -> None:
        """Become the state of an earlier snapshot, as when etcd is restored from a backup.

        The version goes back with it, and nobody hears of it. The journal is the caller's business.
        """
        for name in [entry.key[1] for entry in self.collection(self.registry.get(CRD_KEY)).entries()]:
            self.registry.undefine(name)
        self._version = self._compacted = 0
        self._collections.clear()
        self._uids.clear()
        self._dependents.clear()
        self.restore(changes)

    def snapshot(self) -> Iterator[Change]:
        """The present state as changes that restore it; definitions first, as their resources need them."""
        collections = sorted(self._collections.values(), key=lambda one: one.resource.key != CRD_KEY)
        for collection in collections:
            for entry in collection.entries():
                encoded = entry.encoded()
                yield Change(entry.version, collection.resource.key, entry.key, entry.obj, encoded)
        yield Change(self._version, "", None)

    def owner_exists(self, uid: str) -> bool:
        return uid in self._uids

    def dependents(self, uid: str) -> list[tuple[Resource, Key]]:
        found = sorted(self._dependents.get(uid, ()))
        return [(self.registry.get(resource), key) for resource, key in found]

    def owned(self) -> list[tuple[Resource, Key]]:
        """Every object that names an owner."""
        found = sorted(set().union(*self._dependents.values()))
        return [(self.registry.get(resource), key) for resource, key in found]

    def content(self, namespace: str) -> list[tuple[Resource, Entry]]:
        return [
            (collection.resource, entry)
            for collection in self._collections.values()
            if collection.resource.namespaced
            for entry in collection.entries(namespace)
        ]

    def has_content(self, namespace: str) -> bool:
        return any(collection.has_namespace(namespace) for collection in self._collections.values())

    def _journal(self, change: Change) -> None:
        if self._sink is not None:
            self._sink(change)

    def _commit(self, event: Event) -> None:
        self._version = event.version
        self._apply(event, remember=True)
        for listener in self._listeners:
            listener(event)

    def _apply(self, event: Event, *, remember: bool) -> None:
        self.collection(event.resource).apply(event, remember=remember)
        place = (event.resource.key, event.key)
        if event.old is not None:
            self._uids.pop(event.old.obj["metadata"]["uid"], None)
            for uid in owner_uids(event.old.obj):
                self._forget_dependent(uid, place)
        if event.new is not None:
            self._uids[event.new.obj["metadata"]["uid"]] = place
            for uid in owner_uids(event.new.obj):
                self._dependents.setdefault(uid, set()).add(place)
        if event.resource.key == CRD_KEY:
            self._follow_definition(event)

    def _forget_dependent(self, uid: str, place: tuple[str, Key]) -> None:
        places = self._dependents.get(uid, set())
        places.discard(place)
        if not places:
            self._dependents.pop(uid, None)

    def _follow_definition(self, event: Event) -> None:
        if event.new is not None:
            self.registry.define(event.new.obj)
            return
        resource = self.registry.defined_by(event.key[1])
        self.registry.undefine(event.key[1])
        if resource is not None:
            self._collections.pop(resource.key, None)

    def _renewed(self, resource: Resource, old: Collection | None) -> Collection:
        """A collection for a new resource, or for one whose definition has changed but whose objects stay."""
        # An undefined and redefined resource must not answer for versions it has no memory of.
        compacted = self._version if old is None and resource.custom else self._compacted
        collection = Collection(resource, self._history, compacted)
        if old is not None:
            collection.compact(self._version)
            for entry in old.entries():
                moved = Event(entry.version, resource, entry.key, None, entry)
                collection.apply(moved, remember=False)
        self._collections[resource.key] = collection
        return collection


def owner_uids(obj: Object) -> list[str]:
    return [owner["uid"] for owner in obj["metadata"].get("ownerReferences") or ()]


def format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
