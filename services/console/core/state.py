"""Everything that the page shows, and what of it changed since any version. Pure.

A version is a number that grows with each change. Nothing is queued for a reader: it says which version it
has, and gets what differs from it now, so that whoever is slow skips what lay between. What is gone is
remembered within a bound, with its namespace, because its key may name it; a reader from before that begins
anew. The namespace of an item does not change while its key stays.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Any
Items = Mapping[str, Json]
Mask = Callable[[str, str, Json], Json]
"""(section, key, value) to what somebody may see of it; None: nothing."""

MOST_GONE = 20_000
_GONE = object()


@dataclass(slots=True)
class Delta:
    """What differs between two versions: what is set by section and key, and which keys are gone."""

    after: int
    version: int
    changed: dict[str, dict[str, Json]] = field(default_factory=dict)
    gone: dict[str, list[str]] = field(default_factory=dict)


class State:
    """Sections of items by key. Values are never changed in place, only replaced."""

    def __init__(self, most_gone: int = MOST_GONE) -> None:
        self.version = 0
        self._items: dict[str, dict[str, Json]] = {}
        self._order: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._most_gone = most_gone
        self._gone: dict[tuple[str, str], str] = {}
        """Namespaces of what is gone; empty where it had none."""
        self._complete_after = 0

    def replace(self, sections: Mapping[str, Items]) -> bool:
        """Each section given has exactly these items from now on. False if that is what it had."""
        version = self.version + 1
        changed = False
        for section, items in sections.items():
            changed |= self._replace(section, items, version)
        if changed:
            self.version = version
            self._forget()
        return changed

    def section(self, name: str) -> Items:
        return self._items.get(name, {})

    def values(self) -> Iterator[Json]:
        for items in self._items.values():
            yield from items.values()

    def full(self, mask: Mask | None = None) -> dict[str, dict[str, Json]]:
        if mask is None:
            return {section: dict(items) for section, items in self._items.items()}
        shown: dict[str, dict[str, Json]] = {}
        for section, items in self._items.items():
            seen = ((key, mask(section, key, value)) for key, value in items.items())
            shown[section] = {key: value for key, value in seen if value is not None}
        return shown

    def since(self, after: int, mask: Mask | None = None) -> Delta | None:
        """None: that version is too old, or none of ours; the reader needs everything."""
        if not self._complete_after <= after <= self.version:
            return None
        delta = Delta(after, self.version)
        for (section, key), version in reversed(self._order.items()):
            if version <= after:
                break
            gone = (section, key) in self._gone
            value = {"namespace": self._gone[section, key]} if gone else self._items[section][key]
            shown = value if mask is None else mask(section, key, value)
            if gone and shown is not None:
                delta.gone.setdefault(section, []).append(key)
            elif shown is not None or mask is None:
                delta.changed.setdefault(section, {})[key] = shown
        return delta

    def _replace(self, section: str, items: Items, version: int) -> bool:
        present = self._items.setdefault(section, {})
        touched = [key for key, value in items.items() if not _same(present.get(key, _GONE), value)]
        gone = [key for key in present if key not in items]
        for key in touched:
            self._gone.pop((section, key), None)
            present[key] = items[key]
        for key in gone:
            self._gone[section, key] = _namespace(present.pop(key))
        for key in (*touched, *gone):
            self._order[section, key] = version
            self._order.move_to_end((section, key))
        return bool(touched or gone)

    def _forget(self) -> None:
        if len(self._gone) <= self._most_gone:
            return
        for (section, key), version in list(self._order.items()):
            if key in self._items[section]:
                continue
            del self._order[section, key]
            del self._gone[section, key]
            self._complete_after = max(self._complete_after, version)
            # Down to half, so that this walk is rare.
            if len(self._gone) <= self._most_gone // 2:
                return


def _same(old: Json, new: Json) -> bool:
    return old is new or bool(old == new)


def _namespace(value: Json) -> str:
    named = value.get("namespace") if isinstance(value, Mapping) else None
    return named if isinstance(named, str) else ""
