"""Amounts of money add up, however they are split."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.model.money import NANO_PER_USD, NANOSECONDS_PER_HOUR, cost_nano_usd, nano_usd, split, usd
from tests.effort import examples

AMOUNTS = st.integers(-(10**20), 10**20)
WEIGHTS = st.dictionaries(st.text(max_size=3), st.integers(0, 10**12), min_size=1, max_size=12).filter(
    lambda weights: sum(weights.values()) > 0
)


@given(amount=AMOUNTS, weights=WEIGHTS)
@settings(max_examples=examples(500))
def test_parts_add_up_and_each_is_within_one_unit_of_its_share(amount: int, weights: dict[str, int]) -> None:
    parts = split(amount, weights)

    total = sum(weights.values())
    assert sum(parts.values()) == amount
    for key, weight in weights.items():
        assert abs(parts[key] * total - amount * weight) < total
        if not weight:
            assert parts[key] == 0


@given(
    amount=AMOUNTS,
    weights=WEIGHTS,
    factor=st.integers(1, 1000),
)
@settings(max_examples=examples(200))
def test_only_the_proportion_of_weights_counts(amount: int, weights: dict[str, int], factor: int) -> None:
    scaled = {key: weight * factor for key, weight in weights.items()}

    assert split(amount, weights) == split(amount, scaled)


def test_the_largest_remainder_gets_the_unit_and_equals_go_by_order() -> None:
    assert split(10, {"a": 1, "b": 1, "c": 1}) == {"a": 4, "b": 3, "c": 3}
    assert split(1, {"small": 1, "large": 2}) == {"small": 0, "large": 1}


def test_nothing_is_split_among_nobody_and_something_is_not() -> None:
    assert split(0, {"a": 0}) == {"a": 0}
    with pytest.raises(ValueError, match="among nobody"):
        split(1, {"a": 0})
    with pytest.raises(ValueError, match="negative"):
        split(1, {"a": -1, "b": 2})


@pytest.mark.parametrize("amount", ["NaN", "Infinity", "-Infinity", "", "12 USD", "1e13", "1" * 100])
def test_what_is_no_amount_is_refused(amount: str) -> None:
    with pytest.raises(ValueError, match=r"amount"):
        nano_usd(amount)


def test_amounts_are_exact_to_the_nano_dollar() -> None:
    assert nano_usd("3.06") == 3_060_000_000
    assert nano_usd(Decimal("0.0000000005")) == 0
    assert nano_usd(Decimal("0.0000000015")) == 2
    assert str(usd(3_060_000_001)) == "3.060000001"


def test_an_hour_costs_its_price_and_time_adds_up_to_within_rounding() -> None:
    price = nano_usd("32.7726")

    assert cost_nano_usd(price, NANOSECONDS_PER_HOUR) == price
    assert cost_nano_usd(NANO_PER_USD, 1) == 0
    seconds = sum(cost_nano_usd(price, 1_000_000_000) for _ in range(3600))
    assert abs(seconds - price) <= 3600
