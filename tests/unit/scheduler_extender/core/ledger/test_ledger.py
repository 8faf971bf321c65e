"""Who owns what: observed pods, attempts, releases and holders, together."""

from dataclasses import replace

import pytest

from gpuloom.model.ledger import EntryState
from gpuloom.model.snapshot import ClosedGpu
from services.scheduler_extender.core.ledger.attempts import Attempt
from services.scheduler_extender.core.ledger.ledger import Ledger
from tests.unit.scheduler_extender.builders import (
    JsonObject,
    a_gpu,
    a_holder,
    a_pod,
    a_ref,
    an_allocation,
    an_observed_pod,
    given,
    gpuloom_share,
    nvidia_cards,
    some_facts,
)

POD = a_ref("pod")
OTHER = a_ref("other")
SETTLE_S = 30.0
CARDS = (a_gpu("GPU-0", 0), a_gpu("GPU-1", 1))
FREE = some_facts("node", *CARDS)


def a_ledger() -> Ledger:
    ledger = Ledger(SETTLE_S)
    ledger.observe_node("node", "uid-node")
    ledger.observe_facts("uid-node", FREE, 0.0)
    ledger.take_touched()
    ledger.take_reopened()
    return ledger


def an_attempt(pod: str = "pod", node: str = "node", uuid: str = "GPU-0", advisory: bool = False) -> Attempt:
    ref = a_ref(pod)
    allocation = an_allocation(ref, given(uuid), node_uid=f"uid-{node}", advisory=advisory)
    return Attempt(ref, node, allocation)


def owners(ledger: Ledger, node: str = "node") -> dict[str, set[str]]:
    """Pod name to the UUIDs it claims; an empty set if it is not known which."""
    return {
        claim.pod.name: {item.device.gpu_uuid for item in claim.devices or ()}
        for claim in ledger.claims(node)
    }


def bound(uuid: str = "GPU-0", advisory: bool = False, phase: str = "Running") -> JsonObject:
    allocation = an_allocation(POD, given(uuid), advisory=advisory)
    resources = nvidia_cards(1) if advisory else None
    return a_pod(POD, resources, node="node", phase=phase, allocation=allocation)


def test_an_attempt_holds_from_before_it_is_sent() -> None:
    ledger = a_ledger()

    ledger.begin(an_attempt())

    assert owners(ledger) == {"pod": {"GPU-0"}}
    assert ledger.take_touched() == {"node"}


def test_an_unbound_sight_of_the_pod_ends_no_attempt() -> None:
    ledger = a_ledger()
    ledger.begin(an_attempt())

    ledger.observe_pod(an_observed_pod(a_pod(POD)), 1.0)

    assert owners(ledger) == {"pod": {"GPU-0"}}


def test_a_pod_that_is_bound_exactly_as_attempted_touches_nothing() -> None:
    for advisory in (False, True):
        ledger = a_ledger()
        ledger.begin(an_attempt(advisory=advisory))
        ledger.observe_pod(an_observed_pod(a_pod(POD)), 0.5)
        ledger.take_touched()

        confirms = ledger.observe_pod(an_observed_pod(bound(advisory=advisory)), 1.0)

        (claim,) = ledger.claims("node")
        assert confirms
        assert ledger.take_touched() == set()
        assert (ledger.take_confirmed(), ledger.take_confirmed()) == ({"node"}, set())
        assert (claim.state, ledger.has_attempt(POD.uid)) == (EntryState.OBSERVED, False)


@pytest.mark.parametrize(
    "observed",
    [
        bound("GPU-1"),
        bound(advisory=True),
        bound(phase="Succeeded"),
        a_pod(POD, node="node"),
        a_pod(POD, node="node", allocation="forged"),
        a_pod(POD, {}, node="node", allocation=an_allocation(POD, given("GPU-0"))),
        a_pod(POD, {**gpuloom_share(1000), "cpu": "1"}, node="node", allocation=an_attempt().allocation),
        a_pod(POD, {**gpuloom_share(1000), "memory": "1"}, node="node", allocation=an_attempt().allocation),
    ],
    ids=("card", "advisory", "ended", "no record", "forged", "no request", "cpu", "memory"),
)
def test_a_pod_that_differs_from_its_attempt_touches_its_node(observed: JsonObject) -> None:
    ledger = a_ledger()
    ledger.begin(an_attempt())
    ledger.take_touched()

    confirms = ledger.observe_pod(an_observed_pod(observed), 1.0)

    assert not confirms
    assert ledger.take_touched() == {"node"}


def test_a_pod_with_a_problem_confirms_nothing() -> None:
    ledger = a_ledger()
    ledger.begin(an_attempt())

    assert not ledger.observe_pod(replace(an_observed_pod(bound()), problem="in doubt"), 1.0)


@pytest.mark.parametrize(("node", "uid"), [("node", "uid-new"), ("renamed", "uid-node")])
def test_a_bind_to_another_name_or_machine_than_its_pod_is_on_is_not_confirmed(node: str, uid: str) -> None:
    ledger = a_ledger()
    ledger.begin(an_attempt())
    ledger.observe_node(node, uid)
    pod = a_pod(POD, node=node, allocation=an_attempt().allocation)

    assert not ledger.observe_pod(an_observed_pod(pod), 1.0)


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_an_attempt_of_a_pod_that_was_there_before_is_not_confirmed(phase: str) -> None:
    ledger = a_ledger()
    ledger.observe_pod(an_observed_pod(bound("GPU-1", phase=phase)), 0.0)
    ledger.begin(an_attempt())

    assert not ledger.observe_pod(an_observed_pod(bound()), 1.0)


def test_an_attempt_of_a_pod_that_is_still_released_there_is_not_confirmed() -> None:
    ledger = a_ledger()
    ledger.begin(an_attempt(uuid="GPU-1"))
    ledger.observe_gone(POD.uid, 0.0)
    ledger.begin(an_attempt())

    assert not ledger.observe_pod(an_observed_pod(bound()), 1.0)


def test_a_node_that_is_forgotten_is_no_longer_among_the_confirmed() -> None:
    ledger = a_ledger()
    ledger.begin(an_attempt())
    ledger.observe_pod(an_observed_pod(bound()), 1.0)

    ledger.forget_node("node")

    assert ledger.take_confirmed() == set()


def test_claims_come_by_pod_whatever_their_state() -> None:
    """So that one which is confirmed keeps its place, on which what is predicted for others depends."""
    ledger = a_ledger()
    for name in ("a", "pod", "z"):
        ledger.begin(an_attempt(name, advisory=True))

    before = [claim.pod.name for claim in ledger.claims("node")]
    ledger.observe_pod(an_observed_pod(bound(advisory=True)), 1.0)
    after = [claim.pod.name for claim in ledger.claims("node")]

    assert before == after == ["a", "pod", "z"]


def test_a_pod_has_one_attempt_on_a_name_that_another_machine_took() -> None:
    ledger = a_ledger()
    ledger.begin(an_attempt())
    ledger.observe_node("node", "uid-new")
    again = an_allocation(POD, given("GPU-0"), node_uid="uid-new")
    ledger.begin(Attempt(POD, "node", again))
    ledger.begin(an_attempt("other"))

    assert sorted(attempt.pod.name for attempt in ledger.attempts_on("node")) == ["other", "pod"]
    assert [attempt.pod.name for attempt in ledger.attempts_on("node", POD.uid)] == ["other"]


def test_only_the_very_attempt_that_was_refused_ends() -> None:
    ledger = a_ledger()
    first, equal = an_attempt(), an_attempt()
    ledger.begin(first)
    ledger.refused(first)
    ledger.begin(equal)

    ledger.refused(first)

    assert owners(ledger) == {"pod": {"GPU-0"}}


def test_a_refused_attempt_reopens_its_node() -> None:
    ledger = a_ledger()
    attempt = an_attempt()
    ledger.begin(attempt)

    ledger.refused(attempt)

    assert owners(ledger) == {}
    assert ledger.take_reopened() == {"node"}


def test_a_deletion_timestamp_frees_nothing() -> None:
    ledger = a_ledger()
    going = bound()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    ledger.observe_pod(an_observed_pod(going), 0.0)

    assert owners(ledger) == {"pod": {"GPU-0"}}


def test_an_ended_pod_holds_while_its_node_lists_it_and_is_free_when_it_does_not() -> None:
    ledger = a_ledger()
    ledger.observe_facts("uid-node", some_facts("node", *CARDS, holders=[a_holder(POD, "GPU-0")]), 0.0)

    ledger.observe_pod(an_observed_pod(bound(phase="Succeeded")), 1.0)
    while_listed = owners(ledger)
    ledger.observe_facts("uid-node", FREE, 2.0)

    assert while_listed == {"pod": {"GPU-0"}}
    assert owners(ledger) == {}
    assert ledger.take_reopened() == {"node"}


def test_an_ended_pod_holds_while_nothing_can_be_concluded_from_its_nodes_facts() -> None:
    ledger = a_ledger()
    ledger.observe_facts("uid-node", some_facts("node", *CARDS, untrusted="silent"), 0.0)

    ledger.observe_pod(an_observed_pod(bound(phase="Succeeded")), 1.0)

    assert owners(ledger) == {"pod": {"GPU-0"}}


def test_a_finished_pod_that_is_deleted_later_holds_nothing_again() -> None:
    ledger = a_ledger()
    ledger.observe_pod(an_observed_pod(bound(phase="Failed")), 0.0)

    ledger.observe_gone(POD.uid, 1.0)

    assert owners(ledger) == {}
    assert not ledger._releases.finished(POD.uid)


def test_a_vanished_pod_holds_until_time_has_passed() -> None:
    ledger = a_ledger()
    ledger.observe_pod(an_observed_pod(bound()), 0.0)

    ledger.observe_gone(POD.uid, 0.0)
    at_first = owners(ledger)
    ledger.tick(SETTLE_S)

    assert at_first == {"pod": {"GPU-0"}}
    assert owners(ledger) == {}


def test_the_prediction_of_a_vanished_pod_stays_a_prediction() -> None:
    """On two cards: the other pod turns out to have the predicted one, so the vanished has the second."""
    ledger = a_ledger()
    ledger.observe_pod(an_observed_pod(bound(advisory=True)), 0.0)

    ledger.observe_gone(POD.uid, 0.0)

    (claim,) = ledger.claims("node")
    assert claim.advisory


def test_attempts_of_a_vanished_pod_hold_until_their_nodes_show_them_free() -> None:
    ledger = a_ledger()
    ledger.begin(an_attempt(advisory=True))

    ledger.observe_gone(POD.uid, 0.0)
    (claim,) = ledger.claims("node")
    ledger.tick(SETTLE_S)

    assert claim.advisory
    assert owners(ledger) == {}


def test_a_late_unbound_sight_of_a_vanished_pod_does_not_hide_its_release() -> None:
    ledger = a_ledger()
    ledger.begin(an_attempt())
    ledger.observe_gone(POD.uid, 0.0)

    ledger.observe_pod(an_observed_pod(a_pod(POD)), 1.0)

    assert owners(ledger) == {"pod": {"GPU-0"}}


def test_a_pod_that_is_seen_alive_after_all_is_not_released_by_time() -> None:
    ledger = a_ledger()
    ledger.begin(an_attempt())
    ledger.observe_gone(POD.uid, 0.0)

    ledger.observe_pod(an_observed_pod(bound()), 1.0)
    ledger.tick(SETTLE_S + 1.0)

    assert owners(ledger) == {"pod": {"GPU-0"}}


def test_pods_of_a_node_that_is_gone_leave_nothing_to_wait_for() -> None:
    ledger = a_ledger()
    ledger.observe_pod(an_observed_pod(bound()), 0.0)
    ledger.forget_node("node")

    ledger.observe_gone(POD.uid, 1.0)

    assert ledger._releases.waiting_nodes() == []


def test_another_machine_under_the_same_name_is_closed_by_pods_of_the_old_one() -> None:
    ledger = a_ledger()
    ledger.observe_pod(an_observed_pod(bound()), 0.0)

    ledger.observe_node("node", "uid-new")

    (claim,) = ledger.claims("node")
    assert claim.devices is None
    assert claim.problem == "its allocation names another node"


def test_facts_that_come_before_their_node_are_kept_for_it() -> None:
    ledger = Ledger(SETTLE_S)

    ledger.observe_facts("uid-node", FREE, 0.0)
    ledger.observe_node("node", "uid-node")

    assert ledger.facts("node") == FREE


def test_holders_without_a_pod_count_until_the_node_no_longer_shows_them() -> None:
    ledger = a_ledger()

    ledger.observe_facts("uid-node", some_facts("node", *CARDS, holders=[a_holder(OTHER, "GPU-1")]), 0.0)
    held = owners(ledger)
    ledger.observe_facts("uid-node", FREE, 1.0)

    assert held == {"other": {"GPU-1"}}
    assert owners(ledger) == {}


def test_a_pods_own_attempts_are_left_out_for_itself_alone() -> None:
    ledger = a_ledger()
    ledger.begin(an_attempt("pod", uuid="GPU-0"))
    ledger.begin(an_attempt("other", uuid="GPU-1"))

    seen = {claim.pod.name for claim in ledger.claims("node", without_pod=POD.uid)}

    assert seen == {"other"}


def test_trust_regained_and_a_holder_gone_reopen_a_node_but_a_new_holder_does_not() -> None:
    ledger = a_ledger()
    reopened = []
    for facts in (
        some_facts("node", *CARDS, untrusted="silent"),
        FREE,
        some_facts("node", *CARDS, holders=[a_holder(OTHER, "GPU-1")]),
        FREE,
    ):
        ledger.observe_facts("uid-node", facts, 0.0)
        reopened.append(bool(ledger.take_reopened()))

    assert reopened == [False, True, False, True]


def test_a_gpu_that_is_no_longer_closed_reopens_its_node() -> None:
    ledger = a_ledger()
    closed = replace(FREE, closed_gpus=(ClosedGpu("GPU-0", "a GPU has two owners"),))
    ledger.observe_facts("uid-node", FREE, 0.0)
    ledger.take_reopened()

    reopened = []
    for facts in (closed, FREE):
        ledger.observe_facts("uid-node", facts, 0.0)
        reopened.append(bool(ledger.take_reopened()))

    assert reopened == [False, True]


def test_entries_come_by_node_and_pod() -> None:
    ledger = a_ledger()
    ledger.observe_node("a-node", "uid-a-node")
    ledger.begin(an_attempt("pod"))
    ledger.begin(an_attempt("other", uuid="GPU-1"))
    ledger.begin(an_attempt("pod", node="a-node"))

    order = [(entry.node_name, entry.pod.name) for entry in ledger.entries()]

    assert order == [("a-node", "pod"), ("node", "other"), ("node", "pod")]
