import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.errors import DeadlineError
from gpuloom.rpc.deadline import DEFAULT_TIMEOUT_S, HOP_MARGIN_S, stream_timeout_s, unary_timeout_s

Seconds = st.floats(min_value=0.1, max_value=1000.0)


@given(own_s=st.none() | Seconds, left_s=Seconds)
def test_a_further_call_never_outlives_the_call_being_served(own_s: float | None, left_s: float) -> None:
    unary_s = unary_timeout_s(own_s, left_s)
    stream_s = stream_timeout_s(own_s, left_s)

    assert 0 < unary_s < left_s
    assert stream_s is not None
    assert 0 < stream_s < left_s


def test_outside_a_call_only_the_own_timeout_counts() -> None:
    assert unary_timeout_s(3.0, None) == stream_timeout_s(3.0, None) == 3.0
    assert unary_timeout_s(None, None) == DEFAULT_TIMEOUT_S
    assert stream_timeout_s(None, None) is None


@pytest.mark.parametrize("left_s", [HOP_MARGIN_S, 0.0, -1.0])
def test_a_call_that_could_not_be_answered_in_time_is_not_made(left_s: float) -> None:
    with pytest.raises(DeadlineError):
        unary_timeout_s(None, left_s)
