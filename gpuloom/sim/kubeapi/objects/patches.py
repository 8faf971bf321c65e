"""The three patch formats. Pure: each takes an object and a patch and returns a new object.

Nothing given in is ever changed; unchanged parts are shared with the result.
Strategic merge knows the list keys below and treats every other list as one value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gpuloom.sim.kubeapi.status import ApiError, bad_request

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
MAX_JSON_PATCH_OPERATIONS = 10_000

_LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    "addresses": ("type",),
    "conditions": ("type",),
    "containers": ("name",),
    "containerStatuses": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "taints": ("key", "effect"),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
_PRIMITIVE_SETS = frozenset({"finalizers"})
_ORDER, _DELETE_PRIMITIVES = "$setElementOrder/", "$deleteFromPrimitiveList/"


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch body and its content type."""

    body: Any
    content_type: str = MERGE


def apply_patch(target: dict[str, Any], patch: Patch) -> dict[str, Any]:
    """Raise 400 for a malformed patch, 415 for an unknown format, 422 when a JSON patch does not apply."""
    if patch.content_type == JSON:
        return json_patch(target, patch.body)
    if patch.content_type not in (MERGE, STRATEGIC):
        accepted = ", ".join((JSON, MERGE, STRATEGIC))
        raise ApiError(
            415,
            f"the body of the request was in an unknown format - accepted media types include: {accepted}",
        )
    if not isinstance(patch.body, dict):
        raise bad_request("the patch must be a JSON object")
    merged = (merge if patch.content_type == MERGE else strategic_merge)(target, patch.body)
    return dict(merged)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, an object merges, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic_merge(target: Any, patch: dict[str, Any]) -> dict[str, Any]:
    directive = patch.get("$patch")
    if directive == "delete":
        return {}
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    retained = patch.get("$retainKeys")
    if isinstance(retained, list):
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key.startswith(_DELETE_PRIMITIVES):
            _drop_primitives(result, key.removeprefix(_DELETE_PRIMITIVES), value)
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = _strategic_value(key, result.get(key), value)
    for key, order in patch.items():
        if key.startswith(_ORDER):
            _reorder(result, key.removeprefix(_ORDER), order)
    return result


def json_patch(target: dict[str, Any], operations: Any) -> dict[str, Any]:
    """RFC 6902's add, replace, remove and test."""
    if not isinstance(operations, list) or not all(isinstance(one, dict) for one in operations):
        raise bad_request("a JSON patch must be a list of operations")
    if len(operations) > MAX_JSON_PATCH_OPERATIONS:
        raise ApiError(413, f"a JSON patch may have at most {MAX_JSON_PATCH_OPERATIONS} operations")
    root = {"": orjson.loads(orjson.dumps(target))}
    for operation in operations:
        _apply_operation(root, operation)
    if not isinstance(root[""], dict):
        raise _rejected("the patched object is not a JSON object")
    return root[""]


def _strategic_value(field: str, old: Any, new: Any) -> Any:
    if isinstance(new, dict):
        return strategic_merge(old, new)
    if not isinstance(new, list):
        return new
    if field in _PRIMITIVE_SETS and isinstance(old, list):
        return [*old, *(item for item in new if item not in old)]
    keys = _list_keys(field, new)
    if keys is None:
        return new
    return _merge_by_key(old if isinstance(old, list) else [], new, keys)


def _merge_by_key(old: list[Any], patch: list[Any], keys: tuple[str, ...]) -> list[Any]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    merged: dict[tuple[Any, ...], Any] = {
        _identity(item, keys): item for item in old if isinstance(item, dict)
    }
    for item in patch:
        identity = _identity(item, keys)
        if item.get("$patch") == "delete":
            merged.pop(identity, None)
        else:
            merged[identity] = strategic_merge(merged.get(identity), item)
    return list(merged.values())


def _list_keys(field: str, items: list[Any]) -> tuple[str, ...] | None:
    """How items of this list are told apart, or None if the list is replaced whole."""
    if not all(isinstance(item, dict) for item in items):
        return None
    if field == "ports":
        return ("containerPort",) if any("containerPort" in item for item in items) else ("port",)
    return _LIST_KEYS.get(field)


def _identity(item: dict[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(str(item.get(key, "")) for key in keys)


def _reorder(result: dict[str, Any], field: str, order: Any) -> None:
    items = result.get(field)
    if not isinstance(items, list) or not isinstance(order, list):
        return
    keys = _list_keys(field, order)
    if keys is None:
        wanted = {str(item): place for place, item in enumerate(order)}
        result[field] = sorted(items, key=lambda item: wanted.get(str(item), len(wanted)))
        return
    places = {_identity(item, keys): place for place, item in enumerate(order)}
    result[field] = sorted(items, key=lambda item: places.get(_identity(item, keys), len(places)))


def _drop_primitives(result: dict[str, Any], field: str, unwanted: Any) -> None:
    items = result.get(field)
    if isinstance(items, list) and isinstance(unwanted, list):
        result[field] = [item for item in items if item not in unwanted]


def _apply_operation(root: dict[str, Any], operation: dict[str, Any]) -> None:
    kind, path = operation.get("op"), operation.get("path")
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise bad_request(f"JSON patch: path {path!r} must be empty or begin with a slash")
    if kind != "remove" and "value" not in operation:
        raise bad_request(f"JSON patch: {kind!r} at {path!r} needs a value")
    steps = [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")]
    parent = _walk(root, steps[:-1], path)
    last = steps[-1]
    if kind == "add":
        _add(parent, last, operation["value"], path)
    elif kind == "replace":
        parent[_existing(parent, last, path)] = operation["value"]
    elif kind == "remove":
        del parent[_existing(parent, last, path)]
    elif kind == "test":
        if parent[_existing(parent, last, path)] != operation["value"]:
            raise _rejected(f"testing value at {path!r} failed")
    else:
        raise bad_request(f"JSON patch: operation {kind!r} is not one of add, replace, remove, test")


def _walk(root: dict[str, Any], steps: list[str], path: str) -> Any:
    node: Any = root
    for step in steps:
        node = node[_existing(node, step, path)]
    return node


def _existing(parent: Any, step: str, path: str) -> Any:
    if isinstance(parent, dict) and step in parent:
        return step
    if isinstance(parent, list) and _is_index(step) and int(step) < len(parent):
        return int(step)
    raise _rejected(f"there is nothing at {path!r}")


def _add(parent: Any, step: str, value: Any, path: str) -> None:
    if isinstance(parent, dict):
        parent[step] = value
    elif isinstance(parent, list) and step == "-":
        parent.append(value)
    elif isinstance(parent, list) and _is_index(step) and int(step) <= len(parent):
        parent.insert(int(step), value)
    else:
        raise _rejected(f"{path!r} is no place to add to")


def _is_index(step: str) -> bool:
    return len(step) <= 9 and step.isascii() and step.isdigit()


def _rejected(why: str) -> ApiError:
    return ApiError(422, f"the server rejected our request due to an error in our request: {why}")
