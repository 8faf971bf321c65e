from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.placement.stock import MICRO_PER_GPU, linear_values, share_values
from tests.effort import examples


def test_without_demand_a_rest_is_worth_its_size() -> None:
    values = share_values({})

    assert list(values[[0, 1, 500, 1000]]) == [0, 1000, 500_000, MICRO_PER_GPU]
    assert (values == linear_values()).all()


def test_a_rest_that_nobody_can_use_is_worth_nothing() -> None:
    values = share_values({470: 10, 320: 5, 810: 10})

    assert values[190] == 0
    assert values[320] == pytest.approx(MICRO_PER_GPU / 3, abs=1)
    assert values[470] == MICRO_PER_GPU // 2
    assert values[810] == MICRO_PER_GPU


def test_thirds_and_quarters_are_exact() -> None:
    values = share_values({333: 1, 250: 1})

    assert values[332] == MICRO_PER_GPU // 4
    assert values[333] == pytest.approx(MICRO_PER_GPU / 3, abs=1)
    assert values[749] == pytest.approx(2 * MICRO_PER_GPU / 3, abs=1)


def test_sizes_that_are_none_are_ignored() -> None:
    assert (share_values({0: 5, 1000: 3, -4: 1, 300: 0.0}) == linear_values()).all()


@settings(max_examples=examples(60))
@given(st.dictionaries(st.integers(1, 999), st.floats(0.01, 100), min_size=1, max_size=40))
def test_values_rise_from_nothing_to_a_card(demand: dict[int, float]) -> None:
    values = share_values(demand)

    assert values.shape == (1001,)
    assert values[0] == 0
    assert values[1000] == MICRO_PER_GPU
    assert (np.diff(values) >= 0).all()


@settings(max_examples=examples(60))
@given(st.dictionaries(st.integers(200, 999), st.floats(0.1, 10), min_size=1, max_size=4))
def test_the_prices_are_dual_to_the_fewest_cards(demand: dict[int, float]) -> None:
    values = share_values(demand)

    price = {size: values[size] / MICRO_PER_GPU for size in demand}
    for count in range(1, 6):
        for pieces in combinations_with_replacement(sorted(demand), count):
            if sum(pieces) <= 1000:
                assert sum(price[size] for size in pieces) <= 1 + 1e-5
    # Weak duality against what any fractional packing needs at least: the sum of sizes.
    cards = sum(weight * price[size] for size, weight in demand.items())
    assert cards >= sum(weight * size / 1000 for size, weight in demand.items()) - 1e-4
