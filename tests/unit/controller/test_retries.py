from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.workload import RetryPolicy
from services.controller.core.retries import retry_delay_s


@given(st.integers(1, 3600), st.integers(0, 100), st.text(max_size=40))
def test_a_retry_comes_after_the_printed_formula_capped_at_five_minutes_last(
    base_s: int, attempt: int, uid: str
) -> None:
    policy = RetryPolicy(backoff_s=base_s)

    delay_s = retry_delay_s(policy, attempt, uid)

    exact_s = base_s * 2.0 ** min(attempt, 32)
    assert min(300.0, exact_s) <= delay_s <= min(300.0, exact_s * 1.1)
    assert delay_s == retry_delay_s(policy, attempt, uid)


def test_workloads_that_failed_together_are_not_tried_together() -> None:
    delays = {retry_delay_s(RetryPolicy(backoff_s=30), 1, f"uid-{number}") for number in range(100)}

    assert len(delays) > 90
