"""Mode adaptive: need by work, guards, what starts counts, what is held, and the way to zero and back."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.policies import AdaptiveSettings, InferenceMode, InferencePolicySpec
from services.autoscaler.inference.core.adaptive import OCCUPANCY, Demand, Learned
from services.autoscaler.inference.core.decision import decide
from services.autoscaler.inference.core.foresight import Habit, NeedHistory, learn
from services.autoscaler.inference.core.pace import Memory
from services.autoscaler.inference.core.readings import Reading
from tests.unit.autoscaler.inference.builders import START, a_reading, a_situation, a_spec, at, decided

WORK = Demand(rate=8.0, service_s=2.0, running=16.0, waiting=0.0, places=4.0, ready=5, settled=5)
"""16 requests at once, 4 in a replica that is filled to 80 %: 5 replicas."""
UTILIZATION = Reading("gpu-utilization", 80.0, 100.0, saturates=True)


def adaptive(**changes: object) -> InferencePolicySpec:
    return a_spec(InferenceMode.ADAPTIVE, cooldown_s=0, **changes)


def test_it_is_the_most_of_what_comes_and_what_is_there() -> None:
    assert decided(adaptive(), 5, demand=WORK).replicas == 5
    assert decided(adaptive(), 5, demand=replace(WORK, rate=12.0)).replicas == 8
    assert decided(adaptive(), 5, demand=replace(WORK, waiting=8.0)).replicas == 8


def test_f15_replicas_that_start_are_not_asked_for_again() -> None:
    """Three rounds under the same load, while what was asked for loads its model."""
    waiting, current = replace(WORK, waiting=8.0), 5
    asked = []
    for starting in (0, 3, 3):
        demand = replace(waiting, starting=starting)
        current = decided(adaptive(), current, a_reading(400.0), demand=demand).replicas
        asked.append(current)

    assert asked == [10, 10, 10]
    assert decided(adaptive(), 8, demand=replace(waiting, starting=3)).replicas == 8


def test_f16_overload_that_leaves_no_replica_ready_takes_none_away() -> None:
    demand = Demand(ready=0, settled=0, starting=6)

    assert decided(adaptive(), 6, a_reading(50.0), demand=demand).replicas == 6
    assert decided(adaptive(), 6, a_reading(None), demand=demand).replicas == 6


def test_f17_utilization_at_its_maximum_says_at_least_and_work_says_how_much() -> None:
    """100 % of 80 % would be a quarter more, whatever is missing."""
    blind = Demand(ready=4, settled=4)

    assert decided(adaptive(), 4, UTILIZATION, demand=blind).replicas == 8
    assert decided(adaptive(), 4, replace(UTILIZATION, value=90.0), demand=blind).replicas == 5
    busy = replace(WORK, rate=16.0, running=32.0, ready=5)
    assert decided(adaptive(max_replicas=50), 5, UTILIZATION, demand=busy).replicas == 10


def test_f18_an_empty_queue_at_equilibrium_is_no_reason_to_leave() -> None:
    """Nothing waits because there are enough; what runs still needs them."""
    queue = a_reading(0.0, 10.0, "request-queue-depth")

    assert decided(adaptive(), 5, queue, demand=WORK).replicas == 5
    assert decided(a_spec(), 5, queue).replicas == 1


def test_f20_without_a_replica_only_the_signal_counts() -> None:
    """There are no metrics of what is not there."""
    spec = adaptive(min_replicas=0, adaptive=AdaptiveSettings(activation_query="gateway"))
    none = Demand()

    assert decided(spec, 0, demand=replace(none, activation=3.0)).replicas == 1
    assert decided(spec, 0, demand=replace(none, activation=0.0)).replicas == 0
    assert decided(spec, 0, demand=none).replicas == 0


def test_it_goes_to_zero_only_when_idle_for_the_hold_time_and_something_would_wake_it() -> None:
    spec = adaptive(min_replicas=0, adaptive=AdaptiveSettings(activation_query="gateway"))
    idle = Demand(
        rate=0.0, service_s=2.0, running=0.0, waiting=0.0, places=4.0, ready=2, settled=2, activation=0.0
    )

    assert decided(spec, 2, demand=idle).replicas == 0
    assert decided(spec, 2, demand=idle, learned=Learned(held=0.4)).replicas == 1
    assert decided(spec, 2, demand=replace(idle, activation=1.0)).replicas == 1
    assert decided(spec, 2, demand=replace(idle, activation=None)).replicas == 1
    assert decided(adaptive(min_replicas=0), 2, demand=idle).replicas == 1
    assert decided(spec, 2, a_reading(None), demand=idle).replicas == 2


def test_a_fifth_less_is_taken_only_once_it_was_not_needed_for_an_hour() -> None:
    """Most small dips are followed by a rise; what stays low is not paid for for ever."""
    spec = adaptive(max_replicas=50)
    need = replace(WORK, rate=0.0, running=8 * 4.0 * OCCUPANCY)

    assert decided(spec, 10, demand=need, learned=Learned(lately=9.0)).replicas == 10
    assert decided(spec, 10, demand=need, learned=Learned(lately=8.0)).replicas == 8
    assert decided(spec, 11, demand=need, learned=Learned(lately=9.0)).replicas == 8
    history = NeedHistory(15.0)
    for number in range(241):
        history.add(9.0 if number == 0 else 8.0)
    assert history.learned(60.0).lately == 8.0


def test_f19_the_cooldown_holds_what_is_taken_away_and_not_what_is_needed() -> None:
    spec, memory = adaptive(), Memory(last_scale=START)
    spec = replace(spec, cooldown_s=300)

    more = decided(spec, 5, demand=replace(WORK, rate=12.0), memory=memory, now=at(10))
    less = decided(spec, 9, demand=WORK, memory=memory, now=at(10))

    assert more.replicas == 8
    assert (less.replicas, less.held) == (9, "the cooldown lasts another 290 s")


@given(
    st.integers(1, 10),
    st.lists(st.none() | st.floats(0, 1e4), max_size=3),
    st.builds(
        Demand,
        rate=st.none() | st.floats(0, 100),
        service_s=st.none() | st.floats(0, 10),
        running=st.none() | st.floats(0, 100),
        waiting=st.none() | st.floats(0, 100),
        places=st.none() | st.floats(1, 64),
        ready=st.integers(0, 10),
        settled=st.integers(0, 10),
    ),
)
def test_f13_what_is_missing_never_takes_away(
    current: int, values: list[float | None], demand: Demand
) -> None:
    found = [a_reading(value, 100.0, f"m{n}") for n, value in enumerate([*values, None])]

    assert decided(adaptive(), current, *found, demand=demand).replicas >= current


def test_no_numbers_however_large_are_more_than_the_maximum() -> None:
    """Queries are a tenant's: their product may be no number any more."""
    huge = replace(WORK, rate=1e200, service_s=1e200)

    assert decided(adaptive(max_replicas=9), 5, demand=replace(huge, running=None)).replicas == 5
    assert decided(adaptive(max_replicas=9), 5, demand=replace(huge, waiting=1e300)).replicas == 9
    assert Reading("custom", 1e-300, 1e300).told().ratio is None


@given(st.lists(st.floats(0, 40), min_size=1, max_size=120), st.floats(30, 600))
def test_a_forecast_only_raises_and_never_ends_below_what_is_needed(
    needs: list[float], cold_start_s: float
) -> None:
    history = NeedHistory(15.0)
    for need in needs:
        history.add(need)

    learned = history.learned(cold_start_s)
    demand = replace(WORK, running=needs[-1] * 4.0 * OCCUPANCY, rate=0.0)
    spec = adaptive(max_replicas=10_000)

    wanted = decided(spec, 1, demand=demand, learned=learned).replicas
    assert wanted >= math.ceil(needs[-1] - 1e-6)
    assert learned.held >= needs[-1]
    assert learned.floor >= learned.held


def test_bursts_that_return_are_held_for_and_a_single_step_is_not() -> None:
    """A burst every five minutes that is shorter than the cold start can't be chased, only waited for."""
    burst = [8.0 if n % 20 < 4 else 1.0 for n in range(1200)]
    step = [8.0 if n < 40 else 1.0 for n in range(1200)]

    returning, single = (learn(np.asarray(needs), 15.0, 180.0) for needs in (burst, step))

    def held(habit: Habit, needs: list[float]) -> float:
        return max(needs[-round(habit.hold_s / 15.0) :]) + (habit.rise or 0.0)

    assert held(returning, burst) >= 8.0
    assert held(single, step) == pytest.approx(1.0)


def test_the_same_past_teaches_the_same() -> None:
    needs = np.asarray([float(n % 7) for n in range(400)])

    assert learn(needs, 15.0, 180.0) == learn(needs, 15.0, 180.0)


def test_every_decision_says_why() -> None:
    decision, _ = decide(a_situation(adaptive(), 5, demand=replace(WORK, waiting=8.0)))

    assert decision.explain() == (
        "5 to 8 replicas: 16 running + 8 waiting, 4 at once in a replica, need 7.50 replicas"
    )


def test_a_bound_that_is_reached_is_told() -> None:
    decision, _ = decide(a_situation(adaptive(max_replicas=6), 6, demand=replace(WORK, waiting=12.0)))

    assert decision.replicas == 6
    assert decision.explain().endswith("; 9 are wanted, and maxReplicas is 6")
