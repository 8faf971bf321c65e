"""Kubernetes quantities ("500m", "2Gi", "1e3") as exact numbers. Pure."""

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
_MAX_CHARACTERS = 64


def amounts_as_text(amounts: Mapping[str, Any]) -> dict[str, Any]:
    """Amounts as the API shows them: text, even where a manifest had a plain number."""
    return {name: str(value) if _is_number(value) else value for name, value in amounts.items()}


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
