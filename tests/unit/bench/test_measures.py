import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.measures import Spread, durations, percentile, pods_per_second, ratios, spread

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)


def test_the_99th_percentile_of_a_hundred_values_is_the_99th() -> None:
    values = [float(value) for value in range(100, 0, -1)]

    assert percentile(values, 99) == 99.0
    assert percentile(values, 50) == 50.0
    assert percentile(values, 100) == 100.0


def test_a_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 values"):
        percentile([], 50)


@given(VALUES, st.floats(0.1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(
    values: list[float], percent: float
) -> None:
    found = percentile(values, percent)

    assert found in values
    assert 100 * sum(value <= found for value in values) >= percent * len(values) - 1e-6
    assert 100 * sum(value < found for value in values) < percent * len(values) + 1e-6


def test_a_spread_is_the_middle_and_both_ends() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([]) is None


def test_durations_are_told_in_milliseconds() -> None:
    took = durations([0.001] * 99 + [0.5])

    assert took is not None
    assert (took.count, took.p50_ms, took.p99_ms, took.highest_ms) == (100, 1.0, 1.0, 500.0)
    assert durations([]) is None


def test_a_round_is_compared_with_the_baseline_of_the_same_round_only() -> None:
    ours = {1: 50.0, 2: 90.0, 4: 10.0}
    bare = {1: 100.0, 2: 100.0, 3: 1.0}

    assert ratios(ours, bare) == [0.5, 0.9]


def test_the_rate_counts_what_came_after_the_first_binding() -> None:
    assert pods_per_second([10.0, 10.5, 12.0]) == 1.0
    assert pods_per_second([10.0]) is None
    assert pods_per_second([]) is None
