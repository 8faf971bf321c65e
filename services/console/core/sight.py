"""Who sees what: namespaces, and what is left of a value for somebody who may not see them all. Pure.

A value names a namespace by the key `namespace`. Free texts may name pods, so whoever does not see every
namespace gets none of them where they could.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = Any
Rule = Callable[[Json, "Sight"], Json]
"""What of an item's value somebody sees; None: nothing."""


@dataclass(frozen=True, slots=True)
class Sight:
    """`namespaces` None: all, and what belongs to the whole cluster."""

    namespaces: frozenset[str] | None = None

    @property
    def whole(self) -> bool:
        return self.namespaces is None

    def sees(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


EVERYTHING = Sight()


def for_everybody(value: Json, _sight: Sight) -> Json:
    """There is no pod in it."""
    return value


def of_the_cluster(value: Json, sight: Sight) -> Json:
    """Only for those who see every namespace."""
    return value if sight.whole else None


def of_a_namespace(value: Json, sight: Sight) -> Json:
    return value if sight.sees(value.get("namespace", "")) else None


def without_foreign_pods(value: Json, sight: Sight) -> Json:
    """For everybody, but pods of other namespaces have no name, and texts that may name them are empty."""
    return value if sight.whole else _masked(value, sight)


_TEXTS = frozenset({"details", "note", "text", "problem"})
_NAMES = frozenset({"namespace", "name", "pod", "uid", "container", "reason"})


def _masked(value: Json, sight: Sight) -> Json:
    # One pass, and no call for a plain value: this runs on the event loop, for every node of the cluster.
    if isinstance(value, list):
        return [_masked(one, sight) if isinstance(one, dict | list) else one for one in value]
    if not isinstance(value, dict):
        return value
    hidden = isinstance(value.get("namespace"), str) and not sight.sees(value["namespace"])
    kept: dict[str, Json] = {}
    for key, one in value.items():
        if hidden and key in _NAMES:
            continue
        if key in _TEXTS:
            kept[key] = None if one is None else type(one)()
        else:
            kept[key] = _masked(one, sight) if isinstance(one, dict | list) else one
    if hidden:
        kept["hidden"] = True
    return kept


def namespaces_of(values: Iterable[Json]) -> frozenset[str]:
    """All that occur, however deep."""
    return frozenset(found for value in values for found in _namespaces(value) if found)


def _namespaces(value: Json) -> Iterator[str]:
    if isinstance(value, Mapping):
        named = value.get("namespace")
        if isinstance(named, str):
            yield named
        for one in value.values():
            if isinstance(one, dict | list):
                yield from _namespaces(one)
    elif isinstance(value, list):
        for one in value:
            if isinstance(one, dict | list):
                yield from _namespaces(one)
