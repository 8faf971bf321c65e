"""Each value by itself against an OpenAPI v3 schema, by the jsonschema library.

Worded as the real server does it.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import orjson
from jsonschema import Draft4Validator, FormatChecker, ValidationError
from jsonschema import SchemaError as BadSchema
from jsonschema.validators import extend

from gpuloom.kube.parse import parse_time
from gpuloom.sim.kubeapi.schema.rules import SchemaError
from gpuloom.sim.kubeapi.status import FieldProblem

Object = dict[str, Any]

_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)
_SHOWN_LENGTH = 256
LIST_TYPE = "x-kubernetes-list-type"


def require_usable(schema: Object) -> None:
    try:
        Draft4Validator.check_schema(schema)
    except BadSchema as error:
        raise SchemaError(f"{_place(list(error.absolute_path))}: {error.message[:_SHOWN_LENGTH]}") from None


class Validator:
    def __init__(self, schema: Object) -> None:
        self._validator = _Kubernetes(schema, format_checker=_FORMATS)

    def problems(self, obj: Object) -> list[FieldProblem]:
        return [_problem(error) for error in self._validator.iter_errors(obj)]


def _problem(error: ValidationError) -> FieldProblem:
    place, keyword = _place(list(error.absolute_path)), str(error.validator)
    wording = _WORDINGS.get(keyword)
    if wording is None:
        shown = _shown(error.instance)
        return FieldProblem(place, f"Invalid value: {shown}: {place} in body {_bound(error)}")
    message, reason = wording
    return FieldProblem(place, message(place, error.instance, error.validator_value), reason)


def _unsupported(place: str, value: Any, wanted: Any) -> str:
    return f"Unsupported value: {_shown(value)}: supported values: {', '.join(map(_shown, wanted))}"


def _of_wrong_type(place: str, value: Any, wanted: Any) -> str:
    name = next((name for kind, name in _TYPES if isinstance(value, kind)), "null")
    return f'Invalid value: "{name}": {place} in body must be of type {wanted}: "{name}"'


def _of_wrong_format(place: str, value: Any, wanted: Any) -> str:
    return f"Invalid value: {_shown(value)}: {place} in body must be of type {wanted}: {_shown(value)}"


# By the keyword that a value breaks: how it is said, and Kubernetes' type of the cause.
_WORDINGS: dict[str, tuple[Callable[[str, Any, Any], str], str]] = {
    "required": (lambda *_: "Required value", "FieldValueRequired"),
    "enum": (_unsupported, "FieldValueNotSupported"),
    "type": (_of_wrong_type, "FieldValueTypeInvalid"),
    "format": (_of_wrong_format, "FieldValueTypeInvalid"),
    "maxLength": (
        lambda _, __, most: f"Too long: may not be more than {most} bytes",
        "FieldValueTooLong",
    ),
    "maxItems": (
        lambda _, value, most: f"Too many: {len(value)}: must have at most {most} items",
        "FieldValueTooMany",
    ),
    "maxProperties": (
        lambda _, value, most: f"Too many: {len(value)}: must have at most {most} items",
        "FieldValueTooMany",
    ),
    LIST_TYPE: (lambda _, value, __: f"Duplicate value: {_shown(value)}", "FieldValueDuplicate"),
}


def _bound(error: ValidationError) -> str:
    wanted, schema = error.validator_value, error.schema if isinstance(error.schema, dict) else {}
    more = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
    less = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
    wordings = {
        "minimum": f"should be {more} {wanted}",
        "maximum": f"should be {less} {wanted}",
        "minLength": f"should be at least {wanted} chars long",
        "minItems": f"should have at least {wanted} items",
        "pattern": f"should match '{wanted}'",
    }
    return wordings.get(str(error.validator), error.message[:_SHOWN_LENGTH])


def _place(path: list[Any]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _shown(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 1] + "…"


def _type(validator: Any, wanted: str, value: Any, schema: Object) -> Iterator[ValidationError]:
    if value is None and schema.get("nullable"):
        return
    if not validator.is_type(value, wanted):
        yield ValidationError("")


def _required(validator: Any, names: list[str], value: Any, schema: Object) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        yield from (ValidationError("", path=[name]) for name in names if name not in value)


def _pattern(validator: Any, pattern: str, value: Any, schema: Object) -> Iterator[ValidationError]:
    if isinstance(value, str) and not _compiled(pattern).search(value):
        yield ValidationError("")


def _int_or_string(validator: Any, on: bool, value: Any, schema: Object) -> Iterator[ValidationError]:
    if on and (isinstance(value, bool) or not isinstance(value, int | str)):
        yield ValidationError("must be an integer or a string")


def _list_type(validator: Any, kind: str, value: Any, schema: Object) -> Iterator[ValidationError]:
    """Entries of a set, and the keys of a map's entries, must differ."""
    if kind == "atomic" or not isinstance(value, list):
        return
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    seen: list[Any] = []
    for index, entry in enumerate(value):
        key = {name: entry.get(name) for name in keys} if kind == "map" and isinstance(entry, dict) else entry
        if key in seen:
            yield ValidationError("", path=[index], instance=key)
        seen.append(key)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # Python's "$" also matches before a last newline; that of the real server does not.
    return re.compile(pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern)


def _is_time(value: object) -> bool:
    if isinstance(value, str):
        parse_time(value)
    return True


_FORMATS = FormatChecker(formats=())
_FORMATS.checks("date-time", raises=ValueError)(_is_time)
_Kubernetes: Any = extend(  # type: ignore[no-untyped-call]
    Draft4Validator,
    {
        "type": _type,
        "required": _required,
        "pattern": _pattern,
        "x-kubernetes-int-or-string": _int_or_string,
        LIST_TYPE: _list_type,
    },
)
