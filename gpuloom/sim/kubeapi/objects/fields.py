"""An object as its single fields, by path, in the notation of managedFields. Pure; changes nothing given in.

A step is `f:name` for a field, `k:{…}` for the item of a list with these keys, `v:…` for a member of a set.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

Object = dict[str, Any]
Path = tuple[str, ...]
Leaves = dict[Path, Any]

# As the real schemas have it; every other list is one value.
_LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
_SETS = frozenset({"finalizers"})


def leaves(obj: Any, *, keyed: bool = True) -> Leaves:
    """Every value that is owned as a whole. Without `keyed`, lists of objects are such values, too."""
    return dict(_leaves(obj, (), keyed))


def path_text(path: Path) -> str:
    """As conflicts name it: .spec.containers[name="main"].image"""
    text = ""
    for step in path:
        kind, rest = step[:1], step[2:]
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            keys = orjson.loads(rest)
            text += "[" + ",".join(f"{key}={_shown(value)}" for key, value in keys.items()) + "]"
        else:
            text += f"[={rest}]"
    return text


def set_at(node: Any, path: Path, value: Any) -> Any:
    if not path:
        # An empty map that is owned as such must not empty what others have put into it.
        return node if value == {} and isinstance(node, dict) else value
    step, rest = path[0], path[1:]
    if step.startswith("f:"):
        parent = dict(node) if isinstance(node, dict) else {}
        parent[step[2:]] = set_at(parent.get(step[2:]), rest, value)
        return parent
    items = list(node) if isinstance(node, list) else []
    place = _place(items, step)
    new = set_at(items[place] if place is not None else _seed(step), rest, value)
    if place is None:
        return [*items, new]
    items[place] = new
    return items


def remove_at(node: Any, path: Path) -> Any:
    """Maps, lists and items that are empty afterwards go as well: nobody else has anything in them."""
    step, rest = path[0], path[1:]
    if step.startswith("f:"):
        if not isinstance(node, dict) or step[2:] not in node:
            return node
        below = remove_at(node[step[2:]], rest) if rest else _of_others(node[step[2:]])
        others = {name: value for name, value in node.items() if name != step[2:]}
        return others if below in (None, {}, []) else {**node, step[2:]: below}
    place = _place(node, step) if isinstance(node, list) else None
    if place is None:
        return node
    below = remove_at(node[place], rest) if rest else None
    kept = [] if below in (None, {}) else [below]
    return [*node[:place], *kept, *node[place + 1 :]]


def _leaves(value: Any, path: Path, keyed: bool) -> Iterator[tuple[Path, Any]]:
    name = path[-1][2:] if path else ""
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _leaves(below, (*path, f"f:{key}"), keyed)
    elif isinstance(value, list) and name in _SETS:
        for member in value:
            yield (*path, f"v:{orjson.dumps(member).decode()}"), member
    elif isinstance(value, list) and keyed and _has_keys(name, value):
        for item in value:
            keys = {key: item[key] for key in _LIST_KEYS[name]}
            yield from _leaves(item, (*path, f"k:{orjson.dumps(keys).decode()}"), keyed)
    elif value is not None and path:
        yield path, value


def _has_keys(name: str, items: list[Any]) -> bool:
    keys = _LIST_KEYS.get(name)
    return keys is not None and all(
        isinstance(item, dict) and all(key in item for key in keys) for item in items
    )


def _place(items: list[Any], step: str) -> int | None:
    wanted = orjson.loads(step[2:])
    for place, item in enumerate(items):
        if step.startswith("v:"):
            if item == wanted:
                return place
        elif isinstance(item, dict) and all(item.get(key) == value for key, value in wanted.items()):
            return place
    return None


def _seed(step: str) -> Any:
    return orjson.loads(step[2:])


def _of_others(value: Any) -> Any:
    """What stays of a removed field: a map has fields of its own, which are removed by their own paths."""
    return value if isinstance(value, dict) else None


def _shown(value: Any) -> str:
    return orjson.dumps(value).decode()
