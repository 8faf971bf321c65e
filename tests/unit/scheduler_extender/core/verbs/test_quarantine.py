"""Who is held back after failed binds, for how long, and when nobody is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler_extender.core.verbs.quarantine import (
    FREE_FAILURES,
    MAX_REMEMBERED,
    Quarantine,
    QuarantineTimes,
    Workload,
    workload_of,
)
from tests.unit.scheduler_extender.builders import a_pod

TIMES = QuarantineTimes()
ALONE = Workload("uid-pod")
FIRST, SECOND = Workload("uid-1", "uid-set"), Workload("uid-2", "uid-set")
OTHER = Workload("uid-other")


def fail_until_held(quarantine: Quarantine, workload: Workload, now_s: float = 0.0) -> None:
    for _ in range(FREE_FAILURES + 1):
        quarantine.failed(workload, now_s, refused=True)


def test_a_few_failures_are_left_to_kube_scheduler() -> None:
    quarantine = Quarantine()

    began = [quarantine.failed(ALONE, 0.0, refused=True) for _ in range(FREE_FAILURES + 1)]

    assert began[:-1] == [None] * FREE_FAILURES
    assert began[-1] is not None
    assert began[-1].until_s == TIMES.first_s
    assert quarantine.held_count(0.0) == 1


def test_each_further_failure_doubles_the_time_up_to_the_cap() -> None:
    quarantine, now_s, lengths = Quarantine(), 0.0, []

    for _ in range(FREE_FAILURES + 7):
        hold = quarantine.failed(ALONE, now_s, refused=True)
        if hold is not None:
            lengths.append(hold.until_s - now_s)
            now_s = hold.until_s

    assert lengths == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]


@given(st.floats(0.0, 1.0))
def test_chance_shortens_the_time_by_half_at_most(chance: float) -> None:
    quarantine = Quarantine(chance=lambda: chance)
    fail_until_held(quarantine, ALONE)

    hold = quarantine.hold(ALONE, 0.0)

    assert hold is not None
    assert TIMES.first_s / 2 <= hold.until_s <= TIMES.first_s


def test_it_is_tried_again_when_the_time_is_over_and_its_end_is_told_once() -> None:
    quarantine = Quarantine()
    fail_until_held(quarantine, ALONE)

    during = quarantine.hold(ALONE, TIMES.first_s - 0.1), quarantine.take_released(TIMES.first_s - 0.1)
    after = quarantine.hold(ALONE, TIMES.first_s), quarantine.take_released(TIMES.first_s)

    assert during[0] is not None
    assert not during[1]
    assert after == (None, True)
    assert not quarantine.take_released(TIMES.first_s + 1.0)


def test_pods_of_one_controller_are_held_together_and_others_are_not() -> None:
    quarantine = Quarantine()
    quarantine.failed(FIRST, 0.0, refused=True)
    quarantine.failed(SECOND, 0.0, refused=True)
    quarantine.failed(FIRST, 0.0, refused=True)

    replaced = quarantine.hold(Workload("uid-3", "uid-set"), 1.0)

    assert replaced is not None
    assert replaced.whole_controller
    assert quarantine.hold(OTHER, 1.0) is None


def test_all_replicas_failing_at_once_is_one_failure() -> None:
    quarantine = Quarantine()
    for number in range(100):
        quarantine.failed(Workload(f"uid-{number}", "uid-set"), 0.0, refused=True)

    hold = quarantine.hold(Workload("uid-1", "uid-set"), 0.0)

    assert hold is not None
    assert hold.until_s == TIMES.first_s


def test_a_success_forgets_pod_and_controller() -> None:
    quarantine = Quarantine()
    fail_until_held(quarantine, FIRST)

    quarantine.succeeded(FIRST, 20.0)

    assert quarantine.failed(FIRST, 21.0, refused=True) is None
    assert quarantine.hold(FIRST, 21.0) is None


def test_a_failing_replica_is_held_alone_while_the_others_succeed() -> None:
    quarantine = Quarantine()
    for now_s in range(FREE_FAILURES + 1):
        quarantine.succeeded(SECOND, float(now_s))
        quarantine.failed(FIRST, float(now_s), refused=True)

    hold = quarantine.hold(FIRST, 3.0)

    assert hold is not None
    assert not hold.whole_controller
    assert quarantine.hold(SECOND, 3.0) is None


def test_after_a_long_quiet_time_the_count_starts_over() -> None:
    quarantine = Quarantine()
    fail_until_held(quarantine, ALONE)

    later_s = TIMES.first_s + TIMES.quiet_s + 1.0

    assert quarantine.failed(ALONE, later_s, refused=True) is None


def test_while_most_workloads_fail_nobody_is_held() -> None:
    quarantine = Quarantine()
    fail_until_held(quarantine, ALONE)
    quarantine.failed(FIRST, 1.0, refused=True)
    quarantine.failed(OTHER, 1.0, refused=True)

    general = quarantine.hold(ALONE, 1.0), quarantine.held_count(1.0)
    for number in range(4):
        quarantine.succeeded(Workload(f"uid-fine-{number}"), 2.0)

    assert general == (None, 0)
    assert quarantine.hold(ALONE, 2.0) is not None


def test_binds_without_an_answer_count_only_if_others_get_theirs() -> None:
    lonely, among_others = Quarantine(), Quarantine()

    for now_s in range(6):
        lonely.failed(ALONE, float(now_s), refused=False)
        among_others.succeeded(OTHER, float(now_s))
        among_others.failed(ALONE, float(now_s), refused=False)

    assert lonely.hold(ALONE, 6.0) is None
    assert among_others.hold(ALONE, 6.0) is not None


def test_what_is_remembered_is_bounded() -> None:
    quarantine = Quarantine()

    for number in range(MAX_REMEMBERED + 100):
        quarantine.failed(Workload(f"uid-{number}"), 100.0 * number, refused=True)
    records = len(quarantine._records)
    for number in range(MAX_REMEMBERED + 100):
        quarantine.succeeded(Workload(f"uid-fine-{number}"), 1e6)

    assert records == MAX_REMEMBERED
    assert len(quarantine._attempts) == MAX_REMEMBERED


@given(
    st.lists(
        st.tuples(
            st.sampled_from([ALONE, FIRST, SECOND, OTHER]),
            st.sampled_from(["refused", "silent", "fine"]),
            st.floats(0.0, 400.0),
        ),
        max_size=60,
    )
)
def test_no_hold_lasts_beyond_the_cap_and_a_success_always_frees(
    steps: list[tuple[Workload, str, float]],
) -> None:
    quarantine, now_s = Quarantine(), 0.0

    for workload, outcome, wait_s in steps:
        now_s += wait_s
        if outcome == "fine":
            quarantine.succeeded(workload, now_s)
            assert quarantine.hold(workload, now_s) is None
        else:
            quarantine.failed(workload, now_s, refused=outcome == "refused")
        hold = quarantine.hold(workload, now_s)
        assert hold is None or now_s < hold.until_s <= now_s + TIMES.cap_s


@pytest.mark.parametrize(
    ("owners", "controller"),
    [
        ([{"uid": "u", "controller": True}], "u"),
        ([{"uid": "a"}, {"uid": "b", "controller": True}], "b"),
        ([{"uid": "a", "controller": False}], ""),
        ([{"uid": 7, "controller": True}], ""),
        (["x", None], ""),
        ("x", ""),
        (None, ""),
    ],
)
def test_the_controller_is_the_owner_that_says_so(owners: object, controller: str) -> None:
    pod = a_pod()
    pod["metadata"]["ownerReferences"] = owners

    assert workload_of(pod) == Workload("uid-pod", controller)
