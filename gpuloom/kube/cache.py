"""What is known of one resource, by name, UID and index, and what a listing or an event changes in it.

Pure: the planning functions only compare; `ObjectCache.commit` alone changes the cache, one change at a time,
so that whoever is told of a change finds exactly that change in the cache.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuloom.kube.listing import EventType
from gpuloom.kube.objects import JsonObject, ObjectKey, is_older_version, key_of, resource_version_of, uid_of

IndexFunction = Callable[[JsonObject], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Change:
    """(None, new): added. (old, new): modified, the same UID. (old, None): deleted."""

    old: JsonObject | None
    new: JsonObject | None

    @property
    def object(self) -> JsonObject:
        """The newest state known."""
        obj = self.new if self.new is not None else self.old
        if obj is None:
            raise ValueError("a change needs an object")
        return obj

    @property
    def key(self) -> ObjectKey:
        return key_of(self.object)


class ObjectCache:
    def __init__(self, indexes: Mapping[str, IndexFunction] | None = None) -> None:
        self._functions = dict(indexes or {})
        self._objects: dict[ObjectKey, JsonObject] = {}
        self._by_uid: dict[str, ObjectKey] = {}
        self._indexes: dict[str, dict[str, dict[ObjectKey, None]]] = {name: {} for name in self._functions}
        # Kept per object, so that leaving an index never depends on what a function says later.
        self._entries: dict[ObjectKey, list[tuple[str, str]]] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, name: str, namespace: str = "") -> JsonObject | None:
        return self._objects.get((namespace, name))

    def by_uid(self, uid: str) -> JsonObject | None:
        key = self._by_uid.get(uid)
        return self._objects[key] if key is not None else None

    def by_index(self, index: str, value: str) -> list[JsonObject]:
        """The objects for which that index's function gave that value. KeyError for an index that isn't."""
        return [self._objects[key] for key in self._indexes[index].get(value, ())]

    def objects(self) -> list[JsonObject]:
        return list(self._objects.values())

    def commit(self, change: Change) -> None:
        key = change.key
        # Asked first: if an index function raises, the cache is as it was.
        entries = self._entries_of(change.new) if change.new is not None else []
        self._forget(key)
        if change.new is None:
            return
        self._objects[key] = change.new
        if uid := uid_of(change.new):
            self._by_uid[uid] = key
        for index, value in entries:
            self._indexes[index].setdefault(value, {})[key] = None
        self._entries[key] = entries

    def _entries_of(self, obj: JsonObject) -> list[tuple[str, str]]:
        return [(index, value) for index, values in self._functions.items() for value in values(obj)]

    def _forget(self, key: ObjectKey) -> None:
        obj = self._objects.pop(key, None)
        if obj is None:
            return
        self._by_uid.pop(uid_of(obj), None)
        for index, value in self._entries.pop(key, ()):
            members = self._indexes[index].get(value, {})
            members.pop(key, None)
            if not members:
                self._indexes[index].pop(value, None)


def changes_of_listing(cache: ObjectCache, items: Sequence[JsonObject]) -> list[Change]:
    """What turns the cache into exactly these items: what is gone first, then the rest in their order."""
    listed = {key_of(item) for item in items}
    changes = [Change(obj, None) for obj in cache.objects() if key_of(obj) not in listed]
    for item in items:
        changes += _changes_to(cache, item)
    return changes


def gone_back(cache: ObjectCache, items: Sequence[JsonObject], version: str) -> JsonObject | None:
    """An item that the history which the cache has followed up to this version can't have, if there is one.

    It is older than what is known under its name, or nothing is and it should have been seen before.
    """
    for item in items:
        namespace, name = key_of(item)
        known = cache.get(name, namespace)
        seen = version if known is None else resource_version_of(known)
        shown = resource_version_of(item)
        if is_older_version(shown, seen) or (known is None and seen and shown == seen):
            return item
    return None


def changes_of_replacement(cache: ObjectCache, items: Sequence[JsonObject]) -> list[Change]:
    """As `changes_of_listing`, for items of another history: versions say nothing, contents are compared."""
    listed = {key_of(item) for item in items}
    changes = [Change(obj, None) for obj in cache.objects() if key_of(obj) not in listed]
    for item in items:
        namespace, name = key_of(item)
        known = cache.get(name, namespace)
        if known is None:
            changes.append(Change(None, item))
        elif uid_of(known) != uid_of(item):
            changes += [Change(known, None), Change(None, item)]
        elif known != item:
            changes.append(Change(known, item))
    return changes


def changes_of_event(cache: ObjectCache, kind: EventType, obj: JsonObject) -> list[Change]:
    if kind is EventType.BOOKMARK:
        return []
    if kind is not EventType.DELETED:
        return _changes_to(cache, obj)
    namespace, name = key_of(obj)
    known = cache.get(name, namespace)
    # A late word of the end of a namesake says nothing about the object that is there now; nor does one of
    # an object that left the selection and has come back since.
    if known is None or uid_of(known) != uid_of(obj) or _is_older(obj, known):
        return []
    return [Change(known, None)]


def _changes_to(cache: ObjectCache, obj: JsonObject) -> list[Change]:
    namespace, name = key_of(obj)
    known = cache.get(name, namespace)
    if known is None:
        return [Change(None, obj)]
    if resource_version_of(obj) == resource_version_of(known) or _is_older(obj, known):
        return []
    if uid_of(known) != uid_of(obj):
        # Its namesake's end was missed. Whoever follows by UID must hear of it before the new one comes.
        return [Change(known, None), Change(None, obj)]
    return [Change(known, obj)]


def _is_older(obj: JsonObject, than: JsonObject) -> bool:
    return is_older_version(resource_version_of(obj), resource_version_of(than))
