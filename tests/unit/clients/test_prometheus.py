"""Answers of any shape: a caller gets numbers, or an error that says what is wrong, and nothing else."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.clients.prometheus import _samples, _series
from gpuloom.errors import GpuloomError, InvalidRequestError

HISTOGRAM = {"count": "3", "sum": "0.7", "buckets": [[0, "0", "1", "3"]]}
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    leaves, lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(max_size=5), of, max_size=3)
)
pairs = st.tuples(st.floats() | st.integers(), st.text(max_size=5) | st.just("1.5")).map(list) | anything
items = st.fixed_dictionaries(
    {}, optional={"metric": anything, "value": pairs, "values": st.lists(pairs, max_size=3) | anything}
)
answers = st.fixed_dictionaries(
    {
        "resultType": st.sampled_from(["vector", "matrix", "scalar", "string"]) | anything,
        "result": st.lists(items | anything, max_size=3) | pairs,
    }
)


@given(answers)
def test_an_answer_of_another_shape_is_an_error_and_never_a_crash(data: dict[str, Any]) -> None:
    with suppress(GpuloomError):
        assert all(isinstance(one.labels, dict) for one in _samples(data))
    with suppress(GpuloomError):
        assert all(isinstance(one.labels, dict) for one in _series(data))


def test_native_histograms_are_refused_with_what_to_do_about_them() -> None:
    """As Prometheus answers for a query that gives such series, alone or beside others."""
    instant = {"resultType": "vector", "result": [{"metric": {}, "histogram": [1, HISTOGRAM]}]}
    over_time = {"resultType": "matrix", "result": [{"metric": {}, "histograms": [[1, HISTOGRAM]]}]}

    with pytest.raises(InvalidRequestError, match="histogram_quantile"):
        list(_samples(instant))
    with pytest.raises(InvalidRequestError, match="histogram_quantile"):
        list(_series(over_time))


def test_what_is_no_number_is_left_out() -> None:
    told = [{"metric": {"gpu": str(n)}, "value": [1.5, text]} for n, text in enumerate(["2", "NaN", "+Inf"])]

    (sample,) = _samples({"resultType": "vector", "result": told})

    assert (sample.labels, sample.value) == ({"gpu": "0"}, 2.0)
