import random
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from services.optimizer.core.predict import (
    LEAST_RUNS,
    MAX_RUNS,
    History,
    Outcome,
    conformal_high,
    predict,
)
from services.optimizer.core.sketch import extended, merged, quantile_of
from tests.unit.optimizer.builders import NOON, a_run, a_workload


def outcomes(amounts: list[float]) -> list[Outcome]:
    return [
        Outcome(f"uid-{place}", NOON + timedelta(hours=place), amount, 0.5, 600.0)
        for place, amount in enumerate(amounts)
    ]


def a_history(amounts: list[float], name: str = "serve-1") -> History:
    history = History()
    for outcome in outcomes(amounts):
        history.add(a_workload(name).signature, outcome)
    return history


def test_nine_of_ten_next_runs_need_no_more_than_predicted() -> None:
    rng, covered, tries = random.Random(5), 0, 3000
    for _ in range(tries):
        past = sorted(rng.lognormvariate(8, 0.5) for _ in range(rng.randrange(LEAST_RUNS, 40)))
        high = conformal_high(past)
        assert high is not None
        covered += rng.lognormvariate(8, 0.5) <= high

    assert 0.89 <= covered / tries <= 0.95


@given(st.lists(st.floats(0, 1e6), max_size=30))
def test_a_prediction_is_made_of_what_was_seen(amounts: list[float]) -> None:
    prediction = predict(a_workload(), a_history(amounts), {})

    if len(amounts) < LEAST_RUNS:
        assert prediction.memory_mib is None
        assert str(LEAST_RUNS) in prediction.reason
    else:
        assert prediction.memory_mib is not None
        assert min(amounts) <= prediction.memory_mib.median <= prediction.memory_mib.high <= max(amounts)
    assert prediction.runs == len(amounts)


def test_the_narrowest_basis_with_enough_runs_is_used() -> None:
    history = a_history([1000.0] * 20)
    share = a_workload(resources={"gpuloom.dev/gpu-milli": "500"})
    for outcome in outcomes([7.0] * 3):
        history.add(share.signature, outcome)

    assert predict(a_workload(), history, {}).basis == "signature"
    assert predict(share, history, {}).basis == "owner"


def test_a_pod_whose_last_windows_came_late_counts_once() -> None:
    history = a_history([1000.0] * LEAST_RUNS)
    late = Outcome("uid-0", NOON + timedelta(days=1), 9000.0, 0.9, 60.0)

    history.add(a_workload().signature, late)

    assert list(history.own(a_workload().signature)) == outcomes([1000.0] * LEAST_RUNS)


def test_a_workload_that_changed_is_predicted_by_what_it_has_become() -> None:
    prediction = predict(a_workload(), a_history([1000.0] * 200 + [5000.0] * MAX_RUNS), {})

    assert prediction.memory_mib is not None
    assert prediction.memory_mib.median == 5000.0


def test_pods_that_run_for_long_count_as_well() -> None:
    running = {f"uid-{number}": a_run([0.5] * 12, uid=f"uid-{number}") for number in range(LEAST_RUNS)}

    prediction = predict(a_workload(), History(), running)

    assert prediction.memory_mib is not None
    assert prediction.duration_s is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_sketches_of_parts_say_what_the_sketch_of_the_whole_says(values: list[float]) -> None:
    half = len(values) // 2

    whole = extended(None, values)
    parts = merged([extended(None, values[:half]), extended(None, values[half:])])

    for sketch in (whole, parts):
        median = quantile_of(sketch, 0.5)
        assert median is not None
        below = sum(value <= median for value in values) / len(values)
        assert below >= 0.4
    assert quantile_of(extended(None, []), 0.5) is None
