"""Remembered outcomes are those of evaluate, whatever changed in between."""

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.placement.score import ScoreWeights, evaluate
from services.scheduler_extender.outcomes import MAX_REQUESTS, Outcomes
from tests.unit.placement.builders import a_card, a_node, a_share, whole

REQUESTS = [a_share(250), a_share(750), whole(1), whole(2)]


@given(
    asked=st.lists(
        st.tuples(st.sampled_from(REQUESTS), st.sampled_from("ab"), st.integers(0, 1000)), max_size=30
    )
)
def test_an_outcome_is_never_that_of_an_earlier_state_of_the_node(
    asked: list[tuple[object, str, int]],
) -> None:
    outcomes = Outcomes(ScoreWeights())

    for request, name, free_milli in asked:
        view = a_node(a_card(free_milli=free_milli), a_card(), name=name)

        for _ in range(2):
            assert outcomes.of(request)(view) == evaluate(request, view)  # type: ignore[arg-type]


def test_only_the_requests_asked_last_are_remembered() -> None:
    outcomes = Outcomes(ScoreWeights())
    view = a_node(a_card())

    for milli in range(1, MAX_REQUESTS + 50):
        outcomes.of(a_share(milli))(view)

    assert len(outcomes._by_request) == MAX_REQUESTS
