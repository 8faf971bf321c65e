"""How fields of a custom resource are read: each by a reader that knows its type and its bounds.

A reader takes a value and the path it was found at, and returns it typed or raises InvalidRequestError with
that path. Whatever the JSON holds, there is no other error, and the work and the error's text are bounded.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from gpuloom.codec.fields import JsonObject, as_object, shown
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.parse import format_time, parse_time

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Reader = Callable[[object, str], T]
Json = dict[str, Any]

MAX_NAME = 253
MAX_LABEL = 63
MAX_QUERY = 4096
MAX_MESSAGE = 32_768
MAX_INTEGER = 2**53
MAX_DEPTH = 64
_SHOWN_PATH = 200

MIG_PROFILE_PATTERN = re.compile(r"[0-9]{1,2}g\.[0-9]{1,4}gb([+-][a-z]+([.+][a-z]+)*)?")


class Fields:
    """An object's fields. Absent and null are the same, as the API server treats them."""

    __slots__ = ("_values", "where")

    def __init__(self, values: object, where: str) -> None:
        self._values = as_object(values, bounded(where) or "the object")
        self.where = where

    def get(self, key: str, read: Reader[T]) -> T | None:
        value = self._values.get(key)
        return None if value is None else read(value, f"{self.where}.{key}" if self.where else key)

    def get_or(self, key: str, read: Reader[T], default: T) -> T:
        value = self.get(key, read)
        return default if value is None else value

    def need(self, key: str, read: Reader[T]) -> T:
        value = self.get(key, read)
        if value is None:
            raise InvalidRequestError(f"{bounded(f'{self.where}.{key}')} is needed")
        return value


def part(parse: Callable[[Fields], T]) -> Reader[T]:
    """An object with fields of its own."""

    def read(value: object, where: str) -> T:
        return parse(Fields(value, where))

    return read


def each(read: Reader[T], most: int) -> Reader[tuple[T, ...]]:
    """A list."""

    def read_all(value: object, where: str) -> tuple[T, ...]:
        if not isinstance(value, list | tuple):
            raise InvalidRequestError(f"{bounded(where)} must be a list")
        if len(value) > most:
            raise InvalidRequestError(f"{bounded(where)} must have at most {most} entries, not {len(value)}")
        return tuple(read(one, f"{where}[{index}]") for index, one in enumerate(value))

    return read_all


def whole(low: int, high: int = MAX_INTEGER) -> Reader[int]:
    def read(value: object, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _refusal(where, f"a whole number from {low} to {high}", value)
        return value

    return read


def number(low: float = -math.inf, high: float = math.inf) -> Reader[float]:
    def read(value: object, where: str) -> float:
        # Beyond 2^1023 an integer has no float.
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
            raise _refusal(where, "a number", value)
        if not low <= value <= high:
            raise _refusal(where, f"a number from {low:g} to {high:g}", value)
        return float(value)

    return read


def text(longest: int, *, shortest: int = 0, pattern: re.Pattern[str] | None = None) -> Reader[str]:
    def read(value: object, where: str) -> str:
        if not isinstance(value, str):
            raise _refusal(where, "text", value)
        if not shortest <= len(value) <= longest:
            raise _refusal(where, f"text of {shortest} to {longest} characters", value)
        if pattern is not None and not pattern.fullmatch(value):
            raise _refusal(where, f"text of the form {pattern.pattern}", value)
        return value

    return read


def one_of(kind: type[E], allowed: Collection[E] = ()) -> Reader[E]:
    known = {member.value: member for member in allowed or kind}

    def read(value: object, where: str) -> E:
        member = known.get(value) if isinstance(value, str) else None
        if member is None:
            raise _refusal(where, f"one of {', '.join(known)}", value)
        return member

    return read


def flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise _refusal(where, "true or false", value)
    return value


def moment(value: object, where: str) -> datetime:
    try:
        return parse_time(value) if isinstance(value, str) else parse_time("")
    except ValueError:
        raise _refusal(where, "a time such as 2026-01-31T09:30:00Z", value) from None


def text_map(
    most: int, longest: int = MAX_LABEL, pattern: re.Pattern[str] | None = None
) -> Reader[Mapping[str, str]]:
    read_value = text(longest, pattern=pattern)

    def read(value: object, where: str) -> Mapping[str, str]:
        entries = as_object(value, bounded(where))
        if len(entries) > most:
            raise InvalidRequestError(
                f"{bounded(where)} must have at most {most} entries, not {len(entries)}"
            )
        return {key: read_value(one, f"{where}.{key}") for key, one in entries.items()}

    return read


def any_object(value: object, where: str) -> JsonObject:
    """An object whose content is not ours to read, and which can be copied and written again."""
    found = as_object(value, bounded(where))
    level: list[object] = [found]
    for _ in range(MAX_DEPTH):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return found
    raise InvalidRequestError(f"{bounded(where)} must be nested at most {MAX_DEPTH} levels deep")


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def name(longest: int = MAX_NAME) -> Reader[str]:
    return text(longest, shortest=1)


mig_profile = text(32, pattern=MIG_PROFILE_PATTERN)
share = number(0.0, 1.0)
"""A part of a whole, 0 to 1."""


def time_text(time: datetime | None) -> str | None:
    """For JSON; None stays None, which a merge patch takes as absent."""
    return None if time is None else format_time(time)


def bounded(where: str) -> str:
    return where if len(where) <= _SHOWN_PATH else where[: _SHOWN_PATH - 1] + "…"


def _refusal(where: str, wanted: str, value: object) -> InvalidRequestError:
    return InvalidRequestError(f"{bounded(where)} must be {wanted}, not {shown(value)}")
