"""Typed reading of decoded JSON: a field of the wrong type is an InvalidRequestError that names its path."""

from collections.abc import Mapping, Sequence

from gpuloom.errors import InvalidRequestError

JsonObject = Mapping[str, object]

_SHOWN_LENGTH = 80
_SHOWN_BITS = 256


def object_field(parent: JsonObject, key: str, where: str) -> JsonObject:
    """Absent and null read as empty, as Kubernetes treats them."""
    value = as_object(parent, where).get(key)
    if value is None:
        return {}
    # Called dozens of times for each pod, so the path is written only where it is told.
    return value if isinstance(value, dict) else as_object(value, f"{where}.{key}")


def list_field(parent: JsonObject, key: str, where: str) -> Sequence[object]:
    """Absent and null read as empty."""
    value = parent.get(key)
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidRequestError(f"{where}.{key} must be a list")
    return value


def text_field(parent: JsonObject, key: str, where: str) -> str:
    """Absent and null read as the empty text."""
    value = parent.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequestError(f"{where}.{key} must be text")
    return value


def as_object(value: object, where: str) -> JsonObject:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{where} must be an object")
    return value


def shown(value: object) -> str:
    """A caller's value as it may appear in an error: quoted and short."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        # Python refuses to write numbers of thousands of digits.
        return f"a number of {value.bit_length()} bits"
    written = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return written if len(written) <= _SHOWN_LENGTH else written[: _SHOWN_LENGTH - 1] + "…"
