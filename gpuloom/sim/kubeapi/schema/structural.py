"""Pruning and defaulting by a structural schema. Pure: nothing given in is changed."""

import copy
from typing import Any

Object = dict[str, Any]

PRESERVE = "x-kubernetes-preserve-unknown-fields"
_OF_EVERY_OBJECT = frozenset({"apiVersion", "kind", "metadata"})


def pruned(obj: Object, schema: Object) -> tuple[Object, list[str]]:
    """The object with only what the schema knows, and the paths of what it does not."""
    unknown: list[str] = []
    head = {key: value for key, value in obj.items() if key in _OF_EVERY_OBJECT}
    body = {key: value for key, value in obj.items() if key not in _OF_EVERY_OBJECT}
    return {**head, **_pruned(body, schema, "", unknown)}, unknown


def with_defaults(value: Any, schema: Object) -> Any:
    """Absent fields filled in, also inside of what was filled in; a null that may not be one is absent.

    A whole number is an integer, also if it was written as 2.0.
    """
    if isinstance(value, dict):
        known = schema.get("properties") or {}
        filled = {key: one for key, one in value.items() if not _is_absent(one, known.get(key))}
        for key, one in known.items():
            if key not in filled and "default" in one:
                filled[key] = copy.deepcopy(one["default"])
        return {key: with_defaults(one, schema_of(schema, key)) for key, one in filled.items()}
    if isinstance(value, list):
        return [with_defaults(one, schema.get("items") or {}) for one in value]
    if schema.get("type") == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def schema_of(schema: Object, key: str) -> Object:
    """The schema of an object's field; empty where nothing is said."""
    found = (schema.get("properties") or {}).get(key)
    if found is None:
        found = schema.get("additionalProperties")
    return found if isinstance(found, dict) else {}


def _pruned(value: Any, schema: Object, path: str, unknown: list[str]) -> Any:
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [_pruned(one, items, f"{path}[{index}]", unknown) for index, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    known, others = schema.get("properties") or {}, schema.get("additionalProperties")
    kept: Object = {}
    for key, one in value.items():
        place = f"{path}.{key}".lstrip(".")
        if key in known or isinstance(others, dict):
            kept[key] = _pruned(one, schema_of(schema, key), place, unknown)
        elif schema.get(PRESERVE) or others is True:
            kept[key] = one
        else:
            unknown.append(place)
    return kept


def _is_absent(value: Any, schema: Object | None) -> bool:
    return value is None and schema is not None and not schema.get("nullable")
