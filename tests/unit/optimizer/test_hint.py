from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.optimization import Classification, ClassSource, Prediction, Quantity, WorkloadClass
from services.optimizer.core.hint import Neighbours, hint, neighbourhood_of
from tests.unit.optimizer.builders import a_workload

EMPTY, HALF, FULL = Neighbours(0.0, 0.0), Neighbours(0.5, 0.3), Neighbours(0.9, 0.9)
NODES = {"empty": EMPTY, "half": HALF, "full": FULL}


def a_class(found: WorkloadClass, confidence: float = 0.9) -> Classification:
    return Classification(found, confidence, ClassSource.MODEL)


def points(found: WorkloadClass, prediction: Prediction | None = None) -> dict[str, float]:
    return dict(
        hint(a_workload(), a_class(found), prediction or Prediction(), neighbourhood_of(NODES)).points
    )


def test_training_prefers_quiet_nodes_and_inference_used_ones() -> None:
    training, inference = points(WorkloadClass.TRAINING), points(WorkloadClass.INFERENCE)

    # An empty node is worth more empty; among the others it is the quiet one.
    assert training.get("half", 0.0) > training["full"]
    assert "empty" not in training
    assert inference["full"] > inference.get("half", 0.0) > inference["empty"]


def test_work_that_ends_goes_where_others_end_at_the_same_time() -> None:
    nodes = {"soon": Neighbours(0.5, 0.5, (590.0,)), "late": Neighbours(0.5, 0.5, (90_000.0,))}
    prediction = Prediction(duration_s=Quantity(600.0, 900.0))

    found = dict(hint(a_workload(), a_class(WorkloadClass.BATCH), prediction, neighbourhood_of(nodes)).points)

    assert found["soon"] > found["late"]


def test_in_doubt_or_by_wish_there_is_no_opinion_but_a_reason() -> None:
    doubt = hint(a_workload(), a_class(WorkloadClass.TRAINING, 0.4), Prediction(), neighbourhood_of(NODES))
    workload = a_workload(**{"gpu-autoscaler.io/optimize": "false"})
    out = hint(workload, a_class(WorkloadClass.TRAINING), Prediction(), neighbourhood_of(NODES))

    assert (doubt.points, out.points) == ((), ())
    assert doubt.reason
    assert out.reason


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=3),
        st.builds(
            Neighbours,
            st.floats(0, 1),
            st.one_of(st.none(), st.floats(0, 1)),
            st.lists(st.floats(0, 1e7), max_size=3).map(sorted).map(tuple),
        ),
    ),
    st.sampled_from(WorkloadClass),
    st.one_of(st.none(), st.floats(1, 1e7)),
)
def test_points_are_bounded_whatever_is_there(
    nodes: dict[str, Neighbours], found: WorkloadClass, lasts_s: float | None
) -> None:
    prediction = Prediction(duration_s=None if lasts_s is None else Quantity(lasts_s, lasts_s))

    answer = hint(a_workload(), a_class(found), prediction, neighbourhood_of(nodes))

    assert all(-1 <= amount <= 1 for _, amount in answer.points)
    assert {name for name, _ in answer.points} <= set(nodes)
