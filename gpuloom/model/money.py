"""Money as integer nano-USD, and how an amount is split so that the parts add up to it exactly.

A float can't carry a bill: sums depend on their order. Everything here is integers, so a year of a thousand
nodes adds up to the nano-dollar in any order.
"""

from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import TypeVar

NANO_PER_USD = 1_000_000_000
NANOSECONDS_PER_HOUR = 3_600_000_000_000
MAX_USD = Decimal(10) ** 12
"""Beyond this an amount is a mistake of whoever wrote it."""

Key = TypeVar("Key")


def nano_usd(amount: Decimal | str | int) -> int:
    """An amount in USD, to the nano-dollar, halves to even. Raise ValueError for what is no amount."""
    try:
        usd = Decimal(amount)
    except InvalidOperation:
        raise ValueError(f"{str(amount)[:40]!r} is not an amount of money") from None
    if not usd.is_finite():
        raise ValueError(f"{usd} is not an amount of money")
    # Without the context of arithmetic, in which a monstrous exponent is an error of its own.
    if usd.copy_abs() > MAX_USD:
        raise ValueError(f"an amount of more than {MAX_USD:,} USD is not believed")
    return int((usd * NANO_PER_USD).to_integral_value(ROUND_HALF_EVEN))


def usd(nano: int) -> Decimal:
    """Exactly that amount in USD."""
    return Decimal(nano).scaleb(-9)


def cost_nano_usd(nano_usd_per_hour: int, duration_ns: int) -> int:
    """What so long costs at this price, rounded half to even."""
    return _rounded(nano_usd_per_hour * duration_ns, NANOSECONDS_PER_HOUR)


def split(amount: int, weights: Mapping[Key, int]) -> dict[Key, int]:
    """The amount in proportion to the weights, by largest remainder; the parts add up to it.

    Of equal remainders the first key in the mapping's order gets its unit first, so callers sort. Weights are
    not negative. Without any weight there is nobody to give it to: raise ValueError, unless there is nothing
    to give.
    """
    if any(weight < 0 for weight in weights.values()):
        raise ValueError("a weight must not be negative")
    parts = split_by(amount, list(weights.values()))
    return dict(zip(weights, parts, strict=True))


def split_by(amount: int, weights: Sequence[int]) -> list[int]:
    """The same by place."""
    total = sum(weights)
    if total == 0:
        if amount:
            raise ValueError("an amount can't be split among nobody")
        return [0] * len(weights)
    # Of a negative amount (a credit) the floor is further from zero: remainders are never negative.
    shares = [divmod(amount * weight, total) for weight in weights]
    parts = [whole for whole, _ in shares]
    left = amount - sum(parts)
    by_remainder = sorted(range(len(weights)), key=lambda place: -shares[place][1])
    for place in by_remainder[:left]:
        parts[place] += 1
    return parts


def _rounded(numerator: int, denominator: int) -> int:
    whole, rest = divmod(numerator, denominator)
    twice = 2 * rest
    if twice > denominator or (twice == denominator and whole % 2):
        return whole + 1
    return whole
