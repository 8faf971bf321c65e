"""Kubernetes quantities ("500m", "2Gi", "1e3") as exact numbers. Pure."""

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

_QUANTITY = re.compile(
    r"([+-]?)(\d+\.?\d*|\.\d+)(?:(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)|[eE]([+-]?\d{1,2}))?"
)
_SUFFIXES = {
    **{
        suffix: Fraction(1024) ** power
        for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
    },
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    "m": Fraction(1, 10**3),
    "u": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_EXPONENTS = ("e-9", "e-6", "e-3", "", "e3", "e6", "e9", "e12", "e15", "e18")
_MAX_CHARACTERS = 64


def amounts_as_text(amounts: Mapping[str, Any]) -> dict[str, Any]:
    """Amounts as the API shows them: text in its shortest form, even where a manifest had a plain number.

    What is no quantity stays as it is, for validation to refuse.
    """
    return {name: canonical_quantity(value) for name, value in amounts.items()}


def canonical_quantity(value: Any) -> Any:
    """8000 is shown as 8k, 1024Gi as 1Ti, 2000m as 2: the largest suffix that leaves a whole number."""
    number = parse_quantity(value)
    match = _QUANTITY.fullmatch(str(value))
    if number is None or match is None:
        return value
    suffix, exponent = match[3], match[4]
    if suffix in _BINARY and abs(number) >= 1024:
        return _with_suffix(number, 1024, _BINARY)
    return _with_suffix(number * 10**9, 1000, _DECIMAL if exponent is None else _EXPONENTS)


def _with_suffix(number: Fraction, step: int, suffixes: tuple[str, ...]) -> str:
    """Fractions of the smallest unit are rounded away from zero, as the API does."""
    amount = math.ceil(number) if number >= 0 else math.floor(number)
    place = 0 if amount else suffixes.index("")
    while amount and amount % step == 0 and place < len(suffixes) - 1:
        amount //= step
        place += 1
    return f"{amount}{suffixes[place]}"


def parse_quantity(value: object) -> Fraction | None:
    """The number, or None if it is not a quantity."""
    if not isinstance(value, str) and not _is_number(value):
        return None
    return _parse_text(str(value))


@lru_cache(maxsize=4096)  # a cluster's pods ask for the same few amounts again and again
def _parse_text(text: str) -> Fraction | None:
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_CHARACTERS else None
    if match is None:
        return None
    sign, digits, suffix, exponent = match.groups()
    number = Fraction(digits.rstrip(".") if digits.endswith(".") else digits)
    scale = Fraction(10) ** int(exponent) if exponent else _SUFFIXES.get(suffix, Fraction(1))
    return -number * scale if sign == "-" else number * scale


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
