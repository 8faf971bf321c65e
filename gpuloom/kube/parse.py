"""Text forms of Kubernetes values: quantities and times.

Decides what a quantity or a timestamp means. Raises ValueError for anything else, and never spends more
than a few microseconds on hostile text: length and exponent are bounded before any arithmetic.
"""

import math
import re
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from functools import lru_cache
from typing import TypeGuard

MAX_QUANTITY_LENGTH = 64
MAX_QUANTITY_EXPONENT = 64
# Kubernetes caps a quantity here; a request that large is a mistake, so it is refused instead.
MAX_QUANTITY = 2**63 - 1
_REMEMBERED = 1024

_SUFFIXES: dict[str, Fraction] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,4})|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)"
)
_TIME = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})T(?P<clock>[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]{1,9}))?(?:Z|(?P<sign>[+-])(?P<hours>[0-9]{2}):(?P<minutes>[0-9]{2}))"
)


def parse_quantity(text: str | float) -> Fraction:
    """The exact value of a quantity such as "1500m", "2Gi", "1e3" or 4."""
    if isinstance(text, str):
        if len(text) > MAX_QUANTITY_LENGTH:
            raise ValueError(f"a quantity has at most {MAX_QUANTITY_LENGTH} characters, not {len(text)}")
        return _parse_text(text)
    if isinstance(text, bool) or not isinstance(text, int | float):
        raise ValueError(f"a quantity is text or a number, not {type(text).__name__}")
    return _bounded(Fraction(text), "the number") if isinstance(text, int) else _parse_text(repr(text))


def quantity_milli(text: str | float) -> int:
    """In thousandths, rounded up as Kubernetes does: CPU as millicores."""
    return _text_milli(text) if _is_short(text) else math.ceil(parse_quantity(text) * 1000)


def quantity_value(text: str | float) -> int:
    """In whole units, rounded up as Kubernetes does: memory as bytes."""
    return _text_value(text) if _is_short(text) else math.ceil(parse_quantity(text))


def parse_time(text: str) -> datetime:
    """An RFC 3339 time (metav1.Time or MicroTime) in UTC; digits beyond microseconds are dropped."""
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f'{_shown(text)} is not a time; write e.g. "2026-01-31T09:30:00Z"')
    micros = (match["fraction"] or "").ljust(6, "0")[:6]
    try:
        local = datetime.fromisoformat(f"{match['date']}T{match['clock']}.{micros}")
        return local.replace(tzinfo=_zone(match)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{_shown(text)} is not a time: {error}") from None


def format_time(moment: datetime) -> str:
    """metav1.Time: whole seconds in UTC, e.g. 2026-01-31T09:30:00Z."""
    return _in_utc(moment).isoformat(timespec="seconds").removesuffix("+00:00") + "Z"


def format_micro_time(moment: datetime) -> str:
    """metav1.MicroTime, as Leases and Events carry it, e.g. 2026-01-31T09:30:00.000000Z."""
    return _in_utc(moment).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def _is_short(text: str | float) -> TypeGuard[str]:
    """Whether it may be remembered: a number would be taken for another that equals it, as 1 for True."""
    return isinstance(text, str) and len(text) <= MAX_QUANTITY_LENGTH


# The pods of a cluster share a few hundred texts, and every pod is read several times.
@lru_cache(maxsize=_REMEMBERED)
def _text_milli(text: str) -> int:
    return math.ceil(_parse_text(text) * 1000)


@lru_cache(maxsize=_REMEMBERED)
def _text_value(text: str) -> int:
    return math.ceil(_parse_text(text))


@lru_cache(maxsize=_REMEMBERED)
def _parse_text(written: str) -> Fraction:
    match = _QUANTITY.fullmatch(written)
    if match is None or not (match["whole"] or match["part"]):
        raise ValueError(f'{written!r} is not a quantity; write e.g. "2", "500m", "1.5", "4Gi" or "1e3"')
    digits, part = match["whole"] or "", match["part"] or ""
    value = Fraction(int(digits + part), 10 ** len(part)) * _scale(
        match["exponent"], match["suffix"], written
    )
    return _bounded(-value if match["sign"] == "-" else value, repr(written))


def _scale(exponent: str | None, suffix: str | None, written: str) -> Fraction:
    if exponent is None:
        return _SUFFIXES[suffix or ""]
    power = int(exponent)
    if abs(power) > MAX_QUANTITY_EXPONENT:
        raise ValueError(f"{written!r} has an exponent beyond {MAX_QUANTITY_EXPONENT}")
    return Fraction(10) ** power


def _bounded(value: Fraction, shown: str) -> Fraction:
    if abs(value) > MAX_QUANTITY:
        raise ValueError(f"{shown} is larger than any quantity Kubernetes can hold (2^63-1)")
    return value


def _zone(match: re.Match[str]) -> timezone:
    if match["sign"] is None:
        return UTC
    hours, minutes = int(match["hours"]), int(match["minutes"])
    if hours > 23 or minutes > 59:
        raise ValueError("its offset is out of range")
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if match["sign"] == "-" else offset)


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a time without a zone cannot be written; use UTC")
    return moment.astimezone(UTC)


def _shown(text: object) -> str:
    return repr(text)[:MAX_QUANTITY_LENGTH]
