"""The newest decisions, each told once."""

from datetime import UTC, datetime

from gpuloom.model.ledger import Decision, Verdict
from services.scheduler_extender.inquiries.decisions import (
    EXPLAINED_PODS,
    KEPT_DECISIONS,
    KEPT_PER_POD,
    REMEMBERED_PODS,
    DecisionLog,
)
from tests.unit.scheduler_extender.builders import HandClock, a_ref

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def refused(pod: str = "pod", reason: str = "full") -> Decision:
    return Decision(NOW, a_ref(pod), Verdict.REFUSED, reason=reason)


def bound(pod: str = "pod") -> Decision:
    return Decision(NOW, a_ref(pod), Verdict.BOUND, node_name="node")


def test_a_refusal_repeated_unchanged_is_told_once() -> None:
    log = DecisionLog(HandClock())

    told = [log.record(decision) for decision in (refused(), refused(), refused(reason="closed"), refused())]

    assert told == [True, False, True, True]
    assert len(log.newest()) == 3


def test_a_refusal_after_a_bind_is_news_again() -> None:
    log = DecisionLog(HandClock())

    told = [log.record(decision) for decision in (refused(), bound(), refused())]

    assert told == [True, True, True]


def test_refusals_of_different_pods_are_told_apart() -> None:
    log = DecisionLog(HandClock())

    assert log.record(refused("a"))
    assert log.record(refused("b"))


def test_what_is_kept_and_remembered_is_bounded() -> None:
    log = DecisionLog(HandClock())

    for number in range(REMEMBERED_PODS + 1):
        log.record(refused(f"pod-{number}"))

    assert len(log.newest()) == KEPT_DECISIONS
    assert log.newest()[-1].pod.name == f"pod-{REMEMBERED_PODS}"
    assert len(log._last_refusal) == REMEMBERED_PODS


def test_every_decision_that_is_told_moves_the_feed_on() -> None:
    log = DecisionLog(HandClock())

    for decision in (refused(), refused(), bound()):
        log.record(decision)

    assert log.feed.number == 2


def test_the_last_few_decisions_about_a_pod_outlive_those_about_others() -> None:
    log = DecisionLog(HandClock())
    for number in range(KEPT_PER_POD + 2):
        log.record(refused(reason=f"{number}"))
    for number in range(KEPT_DECISIONS + 1):
        log.record(bound(f"other-{number}"))

    kept = [decision.reason for decision in log.about("uid-pod")]

    assert kept == [str(number) for number in range(2, KEPT_PER_POD + 2)]
    assert log.about("uid-nobody") == ()


def test_pods_that_are_remembered_are_bounded() -> None:
    log = DecisionLog(HandClock())

    for number in range(EXPLAINED_PODS + 1):
        log.record(bound(f"pod-{number}"))

    assert log.about("uid-pod-0") == ()
    assert len(log.about(f"uid-pod-{EXPLAINED_PODS}")) == 1
