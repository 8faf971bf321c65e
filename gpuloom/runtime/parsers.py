"""From the text of an environment variable to a value, or a ValueError that says what would be right.

Each message completes the sentence "GPULOOM_SOMETHING …". Apart from `existing_file`, which looks at the
disk, these are pure functions.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
S = TypeVar("S", bound=str)

LONGEST_QUOTE = 60
HIGHEST_PORT = 65535

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ms|s|m|h)?")
_ADDRESS = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[0-9A-Za-z]+)?)\]|(?P<name>[A-Za-z0-9._-]+)):(?P<port>[^:]+)"
)
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where to connect or listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def text(raw: str) -> str:
    stripped = raw.strip()
    if not stripped:
        raise ValueError("must not be empty")
    return stripped


def integer(minimum: int, maximum: int) -> Callable[[str], int]:
    """A parser of whole numbers in [minimum, maximum]."""

    def parse(raw: str) -> int:
        stripped = raw.strip()
        if _INTEGER.fullmatch(stripped) and minimum <= int(stripped) <= maximum:
            return int(stripped)
        raise ValueError(f"must be a whole number from {minimum} to {maximum}, not {quoted(raw)}")

    return parse


def port(raw: str) -> int:
    """A TCP port; 0 stands for any free one."""
    return integer(0, HIGHEST_PORT)(raw)


def seconds(raw: str) -> float:
    """A positive duration: `30`, `30s`, `500ms`, `2m`, `1h`."""
    match = _DURATION.fullmatch(raw.strip().lower())
    duration_s = _in_seconds(float(match[1]), match[2]) if match else 0.0
    if duration_s <= 0:
        raise ValueError(f"must be a positive duration such as 30s, 500ms or 2m, not {quoted(raw)}")
    return duration_s


def _in_seconds(amount: float, unit: str | None) -> float:
    match unit:
        case "ms":
            return amount / 1000
        case "m":
            return amount * 60
        case "h":
            return amount * 3600
        case _:
            return amount


def boolean(raw: str) -> bool:
    word = raw.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(f"must be true or false, not {quoted(raw)}")
    return word in _TRUE


def choice(*options: S) -> Callable[[str], S]:
    """A parser that accepts one of the options (strings or members of a StrEnum), in any letter case."""
    by_word = {str(option).casefold(): option for option in options}

    def parse(raw: str) -> S:
        option = by_word.get(raw.strip().casefold())
        if option is None:
            raise ValueError(f"must be one of {', '.join(options)}, not {quoted(raw)}")
        return option

    return parse


def existing_file(raw: str) -> Path:
    path = Path(text(raw))
    if not path.is_file():
        raise ValueError(f"must name an existing file, and {quoted(raw)} is none")
    if not os.access(path, os.R_OK):
        raise ValueError(f"names {quoted(raw)}, which this process may not read")
    return path


def address(raw: str) -> Address:
    """`host:port`, or `[ipv6]:port`."""
    match = _ADDRESS.fullmatch(raw.strip())
    if match is None:
        raise ValueError(f"must be host:port or [ipv6]:port, not {quoted(raw)}")
    try:
        return Address(match["ipv6"] or match["name"], port(match["port"]))
    except ValueError:
        raise ValueError(
            f"must be host:port with a port from 0 to {HIGHEST_PORT}, not {quoted(raw)}"
        ) from None


def comma_list(parse_item: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """A parser of `a,b,c`; each item goes through parse_item."""

    def parse(raw: str) -> tuple[T, ...]:
        items = raw.split(",")
        if not all(item.strip() for item in items):
            raise ValueError(f"must be a list like a,b,c without empty items, not {quoted(raw)}")
        return tuple(parse_item(item) for item in items)

    return parse


def quoted(raw: str) -> str:
    """The value as a person typed it, on one line and not endless."""
    return repr(raw if len(raw) <= LONGEST_QUOTE else raw[:LONGEST_QUOTE] + "…")


def usd(raw: str) -> float:
    try:
        amount = float(raw)
    except ValueError:
        amount = 0.0
    if not 0 < amount < 10_000:
        raise ValueError("must be a price in USD above 0, such as 2.5")
    return amount
