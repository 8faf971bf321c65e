"""Random objects that a definition's schema accepts, and the places of a schema."""

import re
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Object = dict[str, Any]

_TIMES = st.datetimes().map(lambda moment: moment.strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0"))
_WORDS = st.sampled_from(["a", "train-0", "ü", "x" * 20, "two words"])
_LARGEST = 10**6


def accepted_by(schema: Object) -> st.SearchStrategy[Any]:
    """Values that are right each by itself; rules about several fields are not looked at."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    made_by = {
        "object": _objects,
        "array": _lists,
        "string": _texts,
        "boolean": lambda _: st.booleans(),
        "integer": _integers,
        "number": _numbers,
    }
    return made_by[schema["type"]](schema)


def places(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Every field below a schema with its path; `[]` stands for the items of a list."""
    for key, one in (schema.get("properties") or {}).items():
        place = f"{path}.{key}".lstrip(".")
        yield place, one
        yield from places(one, place)
    if "items" in schema:
        yield f"{path}[]", schema["items"]
        yield from places(schema["items"], f"{path}[]")


def _objects(schema: Object) -> st.SearchStrategy[Any]:
    if "properties" not in schema:
        values = accepted_by(schema.get("additionalProperties") or {"type": "boolean"})
        return st.dictionaries(_WORDS, values, max_size=3)
    needed = set(schema.get("required") or ())
    fields = {key: accepted_by(one) for key, one in schema["properties"].items()}
    return st.fixed_dictionaries(
        {key: one for key, one in fields.items() if key in needed},
        optional={key: one for key, one in fields.items() if key not in needed},
    )


def _lists(schema: Object) -> st.SearchStrategy[Any]:
    keys = schema.get("x-kubernetes-list-map-keys") or ()

    def identity(item: Any) -> Any:
        return tuple(item[key] for key in keys) if keys else repr(item)

    return st.lists(accepted_by(schema["items"]), max_size=3, unique_by=identity)


def _integers(schema: Object) -> st.SearchStrategy[int]:
    return st.integers(schema.get("minimum", -_LARGEST), schema.get("maximum", _LARGEST))


def _numbers(schema: Object) -> st.SearchStrategy[float]:
    low, high = schema.get("minimum", -_LARGEST), schema.get("maximum", _LARGEST)
    above = 1 if schema.get("exclusiveMinimum") else 0
    return st.integers(round(low * 100) + above, round(high * 100)).map(lambda hundredths: hundredths / 100)


def _texts(schema: Object) -> st.SearchStrategy[str]:
    if schema.get("format") == "date-time":
        return _TIMES
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength", 100)
    if "pattern" not in schema:
        return _WORDS.filter(lambda word: len(word) <= longest)
    texts = st.from_regex(re.compile(schema["pattern"][:-1] + r"\Z", re.ASCII))
    return texts.filter(lambda text: shortest <= len(text) <= longest)
