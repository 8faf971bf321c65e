"""One resource's objects and its recent history. Decides what a past state was; never assigns versions.

Objects in entries are shared with readers, watchers and history: whoever holds one must not change it.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from gpuloom.sim.kubeapi.resources import Resource
from gpuloom.sim.kubeapi.selectors import Selector, field_text
from gpuloom.sim.kubeapi.status import expired

Object = dict[str, Any]
Key = tuple[str, str]  # namespace ("" for cluster-wide kinds), name

# Kubelets ask for the pods of one node: without an index a thousand of them would scan all pods each.
INDEXED_FIELDS: dict[str, tuple[str, ...]] = {"pods": ("spec", "nodeName")}


@dataclass(slots=True)
class Entry:
    """An object at one version, with its JSON made at most once."""

    obj: Object
    version: int
    written_s: float
    _encoded: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def key(self) -> Key:
        metadata = self.obj["metadata"]
        return metadata.get("namespace", ""), metadata["name"]

    def encoded(self) -> bytes:
        if self._encoded is None:
            self._encoded = orjson.dumps(self.obj)
        return self._encoded


@dataclass(slots=True)
class Event:
    """One change: `old` is absent for a creation, `new` for a removal."""

    version: int
    resource: Resource
    key: Key
    old: Entry | None
    new: Entry | None
    # What watchers were sent, by event type and representation, so that it is encoded once for all of them.
    lines: dict[tuple[str, str], bytes] = field(default_factory=dict, repr=False, compare=False)
    _last: Entry | None = field(default=None, repr=False, compare=False)

    def last(self) -> Entry:
        """The old object as a DELETED event carries it: with the version of the change that removed it."""
        if self._last is None:
            if self.old is None:
                raise ValueError("a creation has no last state")
            self._last = Entry(with_version(self.old.obj, self.version), self.version, self.old.written_s)
        return self._last


class Collection:
    def __init__(self, resource: Resource, history: int, compacted: int) -> None:
        self.resource = resource
        self.compacted = compacted  # states before this version are no longer known
        self.events: deque[Event] = deque()
        self._history = history
        self._by_namespace: dict[str, dict[str, Entry]] = {}
        self._index_path = INDEXED_FIELDS.get(resource.key)
        self._index: dict[str, dict[Key, Entry]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_namespace.values()))

    def has_namespace(self, namespace: str) -> bool:
        return namespace in self._by_namespace

    def get(self, key: Key) -> Entry | None:
        return self._by_namespace.get(key[0], {}).get(key[1])

    def apply(self, event: Event, *, remember: bool = True) -> None:
        self._put(event.key, event.old, event.new)
        if not remember:
            return
        if len(self.events) >= self._history:
            self.compacted = self.events.popleft().version
        self.events.append(event)

    def compact(self, version: int) -> None:
        self.events.clear()
        self.compacted = version

    def entries(self, namespace: str = "", selector: Selector | None = None) -> Iterator[Entry]:
        """Present entries of a namespace ("": all), unordered. The selector only narrows the search."""
        node = selector.exact(self._index_path) if selector and self._index_path else None
        if node is not None:
            found = self._index.get(node, {})
            yield from (entry for key, entry in found.items() if not namespace or key[0] == namespace)
        elif namespace:
            yield from self._by_namespace.get(namespace, {}).values()
        else:
            for entries in self._by_namespace.values():
                yield from entries.values()

    def entries_at(self, version: int, namespace: str = "") -> list[Entry]:
        """All entries as they were after `version`; raise 410 if that is no longer known."""
        if version < self.compacted:
            raise expired(version, self.compacted)
        state = {entry.key: entry for entry in self.entries(namespace)}
        for event in reversed(self.events):
            if event.version <= version:
                break
            if namespace and event.key[0] != namespace:
                continue
            if event.old is None:
                state.pop(event.key, None)
            else:
                state[event.key] = event.old
        return list(state.values())

    def events_since(self, version: int) -> list[Event]:
        """Every change after `version`, oldest first; raise 410 if some are no longer known."""
        if version < self.compacted:
            raise expired(version, self.compacted)
        recent: list[Event] = []
        for event in reversed(self.events):
            if event.version <= version:
                break
            recent.append(event)
        recent.reverse()
        return recent

    def _put(self, key: Key, old: Entry | None, new: Entry | None) -> None:
        namespace, name = key
        if new is None:
            names = self._by_namespace[namespace]
            del names[name]
            if not names:
                del self._by_namespace[namespace]
        else:
            self._by_namespace.setdefault(namespace, {})[name] = new
        if self._index_path is not None:
            self._reindex(key, old, new)

    def _reindex(self, key: Key, old: Entry | None, new: Entry | None) -> None:
        assert self._index_path is not None  # noqa: S101 (only called when there is an index)
        if old is not None:
            value = field_text(old.obj, self._index_path)
            found = self._index[value]
            del found[key]
            if not found:
                del self._index[value]
        if new is not None:
            self._index.setdefault(field_text(new.obj, self._index_path), {})[key] = new


def with_version(obj: Object, version: int) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}
