"""Mode ratio: the printed formula, to the letter, and what holds it."""

import math
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.clients.prometheus import MAX_QUERY
from gpuloom.codec.custom.inference import inference_policy
from gpuloom.model.policies import (
    CustomMetric,
    InferenceMetrics,
    LatencyMetric,
    ScalingBehavior,
    ScalingLimit,
    ScalingUnit,
    TargetMetric,
)
from services.autoscaler.inference.core.decision import decide
from services.autoscaler.inference.core.measures import Answer, Replicas, questions, readings
from services.autoscaler.inference.core.pace import Memory
from services.autoscaler.inference.core.queries import MOST_NAMES, Pods
from services.autoscaler.inference.core.readings import Combination, combined
from tests.unit.autoscaler.inference.builders import (
    START,
    a_reading,
    a_situation,
    a_spec,
    a_window,
    at,
    decided,
)

EXAMPLES = Path(__file__).parents[4] / "examples" / "inference"
PODS = ("llm-server-1-aaaaa", "llm-server-1-bbbbb", "llm-server-1-ccccc", "llm-server-1-ddddd")

finite = st.floats(0, 1e6, allow_nan=False)
some_readings = st.lists(st.tuples(finite, st.floats(0.5, 1e4)), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("file", "answer", "wanted"),
    [
        ("latency.yaml", {"latency-p99": Answer(100.0)}, 4),
        ("latency.yaml", {"latency-p99": Answer(101.0)}, 5),
        ("latency.yaml", {"latency-p99": Answer(250.0)}, 10),
        ("latency.yaml", {"latency-p99": Answer(30.0)}, 2),
        ("gpu-utilization.yaml", {"gpu-utilization": Answer(pods=dict.fromkeys(PODS, 80.0))}, 4),
        ("gpu-utilization.yaml", {"gpu-utilization": Answer(pods=dict.fromkeys(PODS, 81.0))}, 5),
        ("queue-depth.yaml", {"request-queue-depth": Answer(pods=dict.fromkeys(PODS, 10.0))}, 4),
        ("queue-depth.yaml", {"request-queue-depth": Answer(pods=dict.fromkeys(PODS, 11.0))}, 5),
        ("queue-depth.yaml", {"request-queue-depth": Answer(pods=dict.fromkeys(PODS, 0.0))}, 1),
    ],
)
def test_the_printed_examples_scale_as_printed(file: str, answer: dict[str, Answer], wanted: int) -> None:
    policy = yaml.safe_load((EXAMPLES / file).read_text())
    policy["metadata"] |= {"namespace": "default", "uid": "u"}
    spec = inference_policy(policy).spec

    found = readings(spec, Replicas(current=4, ready=PODS, names=PODS), answer)

    assert decided(spec, 4, *found).replicas == wanted


@given(st.integers(1, 1000), some_readings)
def test_it_is_the_ceiling_of_current_times_the_largest_ratio_clamped(
    current: int, values: list[tuple[float, float]]
) -> None:
    spec = a_spec(min_replicas=2, max_replicas=500)
    found = [a_reading(value, target, f"m{n}") for n, (value, target) in enumerate(values)]

    decision = decided(spec, current, *found)

    exact = max(
        math.ceil(current * Fraction(repr(value)) / Fraction(repr(target))) for value, target in values
    )
    assert decision.replicas == min(500, max(2, exact))


def test_no_replica_is_added_by_the_rounding_of_binary_fractions() -> None:
    assert decided(a_spec(max_replicas=99), 10, a_reading(1.1, 1.0)).replicas == 11


@given(st.integers(1, 10), st.lists(st.none() | finite, min_size=1, max_size=4))
def test_f13_while_a_metric_is_missing_nothing_is_taken_away_but_others_may_add(
    current: int, values: list[float | None]
) -> None:
    found = [a_reading(value, 100.0, f"m{n}") for n, value in enumerate([*values, None])]

    decision = decided(a_spec(), current, *found)

    known = [math.ceil(current * Fraction(repr(one)) / 100) for one in values if one is not None]
    assert decision.replicas == min(10, max([current, *known]))
    assert decision.missing


def test_f13_an_hour_without_metrics_changes_nothing_and_their_return_is_no_spike() -> None:
    memory = Memory.begun(START, 6, None)
    for minute in range(60):
        situation = a_situation(a_spec(cooldown_s=0), 6, a_reading(None), memory=memory, now=at(60 * minute))
        decision, memory = decide(situation)
        assert (decision.replicas, decision.none_known) == (6, True)

    back, _ = decide(a_situation(a_spec(), 6, a_reading(100.0), memory=memory, now=at(3601)))

    assert back.replicas == 6


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), None])
def test_f14_one_bad_pod_stops_nothing_and_a_majority_of_them_holds(broken: float | None) -> None:
    bad = {} if broken is None else {PODS[0]: broken}
    three = bad | dict.fromkeys(PODS[1:], 30.0)

    assert combined(three, PODS, Combination.SUM)[0] == 120.0
    assert combined(three, PODS, Combination.MEAN)[0] == 30.0
    assert combined({PODS[1]: 30.0} | bad, PODS, Combination.MEAN) == (
        None,
        "1 of 4 ready replicas told a fresh value",
    )


def test_pods_that_are_not_ready_do_not_count() -> None:
    assert combined(dict.fromkeys(PODS, 30.0), PODS[:2], Combination.SUM)[0] == 60.0
    assert combined(dict.fromkeys(PODS, 30.0), (), Combination.SUM) == (None, "no replica is ready")


def test_no_number_of_pods_makes_a_query_that_is_too_long_to_be_asked() -> None:
    """A metric that can't be asked holds the number, just when there are many replicas."""
    metrics = InferenceMetrics(
        latency=LatencyMetric(p99_ms=100, p95_ms=50),
        gpu_utilization=TargetMetric(target=80),
        gpu_memory=TargetMetric(target=80),
        queue_depth=TargetMetric(target=10),
    )
    for count in (MOST_NAMES, MOST_NAMES + 1):
        pods = Pods("n" * 63, [f"{number:05}".rjust(63, "p") for number in range(count)], "t" * 63)

        asked = questions(a_spec(metrics=metrics), pods)

        assert len(asked) == 10
        assert max(len(one.query) for one in asked.values()) <= MAX_QUERY


def test_a_custom_metric_of_a_built_in_name_is_told_apart() -> None:
    """Kubernetes refuses a status that has one name twice."""
    mine = CustomMetric("request-queue-depth", "sum(mine)", 5.0)
    metrics = InferenceMetrics(queue_depth=TargetMetric(target=10), custom=(mine,))
    answers = {
        "request-queue-depth": Answer(pods=dict.fromkeys(PODS, 20.0)),
        "custom request-queue-depth": Answer(10.0),
    }

    found = readings(a_spec(metrics=metrics), Replicas(4, PODS, names=PODS), answers)

    assert [(one.name, one.value) for one in found] == [
        ("request-queue-depth", 20.0),
        ("custom request-queue-depth", 10.0),
    ]


def test_f19_the_cooldown_is_between_two_changes_in_either_direction_and_says_how_long() -> None:
    memory = Memory(last_scale=START)

    for value in (300.0, 10.0):
        early = decided(a_spec(), 4, a_reading(value), memory=memory, now=at(299))
        late = decided(a_spec(), 4, a_reading(value), memory=memory, now=at(300))

        assert (early.replicas, early.held) == (4, "the cooldown lasts another 1 s")
        assert late.changes


def test_after_a_clock_was_set_back_windows_and_cooldown_begin_now() -> None:
    """They do not wait until the clock is again where it was, nor are they forgotten."""
    hour = at(3600)
    limits = (ScalingLimit(ScalingUnit.PODS, 2, 60),)
    spec = a_spec(scale_up=ScalingBehavior(limits=limits), scale_down=a_window(120))
    memory = Memory(((hour, 3), (hour, 4)), ((hour, 1),), last_scale=hour)

    early, memory = decide(a_situation(spec, 4, a_reading(50.0), memory=memory, now=at(0)))
    late, memory = decide(a_situation(spec, 4, a_reading(500.0), memory=memory, now=at(301)))

    assert (early.wanted, early.replicas) == (2, 4)
    assert late.replicas == 6


def test_the_window_for_down_takes_the_most_and_that_for_up_the_least() -> None:
    memory = Memory(wanted=((at(0), 8), (at(100), 2), (at(200), 3)))
    spec = a_spec(cooldown_s=0, scale_up=a_window(150), scale_down=a_window(250))

    assert decided(spec, 8, a_reading(25.0), memory=memory, now=at(240)).replicas == 8
    assert decided(spec, 8, a_reading(25.0), memory=memory, now=at(251)).replicas == 3
    assert decided(spec, 2, a_reading(400.0), memory=memory, now=at(240)).replicas == 2
    assert decided(spec, 2, a_reading(400.0), memory=memory, now=at(300)).replicas == 3


def test_policies_bound_the_change_of_a_period_and_the_one_that_allows_most_counts() -> None:
    up = ScalingBehavior(
        limits=(ScalingLimit(ScalingUnit.PERCENT, 100, 60), ScalingLimit(ScalingUnit.PODS, 4, 60))
    )
    down = ScalingBehavior(limits=(ScalingLimit(ScalingUnit.PODS, 1, 60),))
    spec = a_spec(cooldown_s=0, max_replicas=100, scale_up=up, scale_down=down)
    grown = Memory(changes=((at(0), 3),), wanted=((at(0), 5),))

    assert decided(spec, 2, a_reading(5000.0)).replicas == 6
    assert decided(spec, 5, a_reading(5000.0), memory=grown, now=at(30)).replicas == 6
    assert decided(spec, 5, a_reading(5000.0), memory=grown, now=at(61)).replicas == 10
    assert decided(spec, 5, a_reading(1.0), memory=Memory(), now=at(61)).replicas == 4
    shrunk = Memory(changes=((at(0), -1),))
    assert decided(spec, 4, a_reading(1.0), memory=shrunk, now=at(30)).replicas == 4


def test_whoever_takes_over_waits_the_window_before_he_takes_away() -> None:
    spec = a_spec(cooldown_s=0, scale_down=a_window(300))

    decision = decided(spec, 8, a_reading(10.0), memory=Memory.begun(START, 8, None), now=at(10))

    assert decision.replicas == 8
    assert decision.held == "stabilizationWindowSeconds of scaleDown is 300"


def test_f16_overload_that_leaves_no_replica_ready_takes_none_away() -> None:
    found = readings(a_spec(), Replicas(current=4, ready=(), starting=4, names=PODS), {})

    assert decided(a_spec(), 4, *found).replicas == 4
