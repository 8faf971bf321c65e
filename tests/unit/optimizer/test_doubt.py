"""History that is new, constant, poisoned or of another time: every answer is neutral, and says why."""

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.optimization import Prediction, WorkloadClass
from gpuloom.model.usage import UsageWindow
from services.optimizer.core.advise import advise, kin_of
from services.optimizer.core.classify import classify
from services.optimizer.core.hint import Neighbours, hint, neighbourhood_of
from services.optimizer.core.offers import Need, Offers, smallest_fit
from services.optimizer.core.predict import LEAST_RUNS, History, Outcome, outcome_of, predict
from services.optimizer.core.run import Run, add_window, begin_run
from services.optimizer.core.waste import WasteRule, observe
from services.optimizer.core.workload import Workload, workload_of
from tests.unit.optimizer.builders import NOON, S, a_pod, a_run, a_usage, a_workload

NODES = neighbourhood_of({"used": Neighbours(0.5, 0.2, (60.0,)), "empty": Neighbours(0.0, None)})
OFFERS = Offers(40_960, 40_960)
ANY = st.floats(allow_nan=True, allow_infinity=True)


def hinted(workload: Workload, run: Run | None, prediction: Prediction) -> Any:
    return hint(workload, classify(workload, run, None), prediction, NODES)


def a_history(*outcomes: Outcome) -> History:
    history = History()
    for outcome in outcomes:
        history.add(a_workload("thing").signature, outcome)
    return history


def test_of_a_new_workload_or_after_a_database_was_wiped_nothing_is_said_with_a_reason() -> None:
    pod = a_pod("thing")
    pod["spec"]["containers"][0]["image"] = "registry.example.com/thing:1"
    workload = workload_of(pod)
    assert workload is not None

    prediction = predict(workload, History(), {})
    classification = classify(workload, None, None)
    advice = advise(workload, kin_of("owner", (), ()), OFFERS)

    assert (prediction.memory_mib, prediction.smallest_fit) == (None, "")
    assert "0 runs like it" in prediction.reason
    assert (classification.workload_class, classification.confidence) == (WorkloadClass.UNKNOWN, 0.0)
    assert "nothing was measured" in classification.reason
    assert hinted(workload, None, prediction).points == ()
    assert "nothing was measured" in hinted(workload, None, prediction).reason
    assert (advice.milli, advice.utilization_ratio) == (0, None)


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
def test_a_constant_history_predicts_that_constant(ratio: float) -> None:
    outcomes = [outcome_of(a_run([ratio] * 20, uid=f"uid-{n}"), ended=True) for n in range(20)]

    prediction = predict(a_workload("thing"), a_history(*outcomes), {})

    assert prediction.memory_mib is not None
    assert prediction.memory_mib.median == prediction.memory_mib.high == outcomes[0].memory_mib
    assert prediction.utilization is not None
    assert prediction.utilization.high >= ratio


@given(st.lists(st.tuples(ANY, ANY, ANY), max_size=30))
def test_what_is_no_number_is_not_predicted_from(poison: list[tuple[float, float, float]]) -> None:
    outcomes = [Outcome(f"uid-{n}", NOON, *amounts) for n, amounts in enumerate(poison)]

    prediction = predict(a_workload("thing"), a_history(*outcomes), {})

    for quantity in (prediction.memory_mib, prediction.utilization, prediction.duration_s):
        assert quantity is None or (math.isfinite(quantity.median) and math.isfinite(quantity.high))
    assert prediction.memory_mib is not None or prediction.runs < LEAST_RUNS or not finite(poison)
    assert math.isfinite(hinted(a_workload("thing"), None, prediction).confidence)


def finite(poison: list[tuple[float, float, float]]) -> bool:
    """Whether enough runs needed an amount that a device can have needed."""
    return sum(math.isfinite(memory) and memory >= 0 for memory, _, _ in poison) >= LEAST_RUNS


@given(st.lists(st.tuples(ANY, ANY), min_size=1, max_size=20), st.integers(1, 20))
def test_poisoned_runs_never_advise_less_than_others_needed(
    poison: list[tuple[float, float]], honest: int
) -> None:
    good = Outcome("honest", NOON, 30_000.0, 0.9, 3600.0, 0.8)
    bad = [Outcome(f"uid-{n}", NOON, memory, used, 3600.0, used) for n, (memory, used) in enumerate(poison)]

    advice = advise(a_workload("thing"), kin_of("owner", [*[good] * (honest + len(bad)), *bad], ()), OFFERS)

    assert advice.milli == 0 or advice.milli > 900
    assert advice.utilization_ratio is None or 0 <= advice.utilization_ratio <= 1


@given(st.lists(st.integers(-7200, 7200), min_size=2, max_size=40))
def test_a_clock_that_jumps_makes_no_waste_of_what_was_busy(jumps_s: list[int]) -> None:
    run = begin_run("uid", "signature", NOON)
    for number, jump_s in enumerate(jumps_s):
        start = NOON + timedelta(seconds=60 * number + jump_s)
        run = add_window(run, UsageWindow(number + 1, "node", start, 60 * S), [a_usage(0.9, 60 * S)])

    assert observe(run, WasteRule(), run.seen_until) is None
    assert run.duration_s == 60 * len(jumps_s)
    assert run.mean_ratio == pytest.approx(0.9)


@given(ANY, ANY)
def test_a_need_that_is_no_number_fits_nothing_smaller(used: float, memory_mib: float) -> None:
    fit = smallest_fit(a_workload("thing").request, Need(used, memory_mib), OFFERS, may_share=True)

    if not (math.isfinite(used) and math.isfinite(memory_mib)):
        assert fit is None
