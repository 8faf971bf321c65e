"""When the devices of a pod that ended are free again."""

from dataclasses import replace

import pytest

from gpuloom.model.node import NodeState, PodPresence
from gpuloom.model.snapshot import NodeFacts
from services.scheduler_extender.core.ledger.releases import Release, Releases
from tests.unit.scheduler_extender.builders import a_gpu, a_holder, a_ref, given, some_facts

SETTLE_S = 30.0

POD = a_ref("pod")
CARD = a_gpu("GPU-0")
EMPTY = some_facts("node", CARD)
HELD = some_facts("node", CARD, holders=[a_holder(POD, "GPU-0")])
PRESENT = some_facts("node", CARD, present=PodPresence((POD.uid,), listed_at_ms=20))
OLDER = some_facts("node", CARD, present=PodPresence(listed_at_ms=10))
NEWER = some_facts("node", CARD, present=PodPresence(listed_at_ms=30))
BLIND = some_facts("node", CARD, present=PodPresence((), "no control groups"))
BLIND_HELD = replace(BLIND, state=replace(BLIND.state, holders=HELD.state.holders))
UNTRUSTED = some_facts("node", CARD, untrusted="silent")
INCOMPLETE = NodeFacts(
    NodeState(
        "node",
        "uid-node",
        EMPTY.state.mode,
        EMPTY.state.delivery,
        (CARD,),
        holders_unknown_reason="kubelet",
        presence=PodPresence(),
    )
)


def booted_anew(facts: NodeFacts) -> NodeFacts:
    return replace(facts, state=replace(facts.state, presence=replace(facts.state.presence, boot_id="two")))


def releasing(ended: bool = False) -> Releases:
    releases = Releases(SETTLE_S)
    releases.begin(Release(POD, "node", ended, (given("GPU-0"),)))
    return releases


def waits(releases: Releases) -> bool:
    return any(release.pod == POD for release in releases.on_node("node"))


def test_the_end_of_the_node_frees_everything_on_it() -> None:
    releases = releasing()

    releases.node_gone("node", alive=())

    assert not waits(releases)


def test_where_a_pod_was_before_its_node_went_says_nothing_of_the_next_one_with_that_name() -> None:
    """The pod is bound to the name, so the next machine may be about to start it."""
    releases = Releases(SETTLE_S)
    releases.settle("node", PRESENT, {POD.uid}, now_s=0.0)

    releases.node_gone("node", alive={POD.uid})
    releases.begin(Release(POD, "node", ended=False))

    assert not releases.settle("node", NEWER, (), now_s=1.0)
    assert releases.settle("node", NEWER, (), now_s=1.0 + SETTLE_S)


@pytest.mark.parametrize("there", [HELD, PRESENT])
def test_a_pod_that_ended_by_its_kubelets_word_is_free_once_it_has_left_the_node(there: NodeFacts) -> None:
    releases = releasing(ended=True)

    while_there = releases.settle("node", there, {POD.uid}, now_s=0.0)
    afterwards = releases.settle("node", EMPTY, {POD.uid}, now_s=1.0)

    assert (while_there, afterwards) == (False, True)
    assert releases.finished(POD.uid)


@pytest.mark.parametrize(("ended", "frees"), [(True, True), (False, False)])
def test_where_pods_can_not_be_seen_only_the_kubelets_word_frees(ended: bool, frees: bool) -> None:
    releases = releasing(ended)

    freed = [
        releases.settle("node", facts, (), now_s=now_s)
        for facts, now_s in ((BLIND_HELD, 0.0), (BLIND, 1.0), (BLIND, 1000.0))
    ]

    assert freed == [False, frees, False]
    assert waits(releases) is not frees


def test_a_vanished_pod_keeps_its_devices_for_as_long_as_it_is_on_the_node() -> None:
    """Nobody lists it, and no process of it is on the card."""
    releases = Releases(SETTLE_S)
    releases.settle("node", HELD, {POD.uid}, now_s=0.0)
    releases.begin(Release(POD, "node", ended=False))

    freed = [releases.settle("node", PRESENT, (), now_s=now_s) for now_s in (100.0, 1000.0)]

    assert freed == [False, False]
    assert releases.settle("node", NEWER, (), now_s=1001.0)


def test_a_vanished_pod_that_was_there_is_free_as_soon_as_a_newer_list_lacks_it() -> None:
    """However young it is, and though older lists, from before it came, are heard in between."""
    releases = Releases(SETTLE_S)
    releases.settle("node", PRESENT, {POD.uid}, now_s=0.0)
    releases.begin(Release(POD, "node", ended=False))

    freed = [releases.settle("node", facts, (), now_s=1.0) for facts in (OLDER, EMPTY, PRESENT, NEWER)]

    assert freed == [False, False, False, True]


def test_a_pod_that_came_back_is_not_gone_by_a_list_from_before() -> None:
    releases = Releases(SETTLE_S)
    again = replace(PRESENT.state.presence, listed_at_ms=40)
    for facts in (PRESENT, NEWER, some_facts("node", CARD, present=again)):
        releases.settle("node", facts, {POD.uid}, now_s=0.0)
    releases.begin(Release(POD, "node", ended=False))

    freed = [releases.settle("node", NEWER, (), now_s=now_s) for now_s in (1.0, 1.0 + SETTLE_S)]

    assert freed == [False, True]


def test_a_list_of_another_boot_does_not_tell_whether_it_is_newer() -> None:
    """A machine that was booted anew starts its pods again."""
    releases = Releases(SETTLE_S)
    releases.settle("node", PRESENT, {POD.uid}, now_s=0.0)
    releases.begin(Release(POD, "node", ended=False))

    freed = [releases.settle("node", booted_anew(NEWER), (), now_s=now_s) for now_s in (100.0, 130.0)]

    assert freed == [False, True]


def test_a_vanished_pod_that_was_never_there_keeps_its_devices_for_the_settle_time() -> None:
    releases = releasing()

    freed = [releases.settle("node", EMPTY, (), now_s=now_s) for now_s in (0.0, 29.9, 30.0)]

    assert freed == [False, False, True]


@pytest.mark.parametrize("facts", [None, UNTRUSTED, INCOMPLETE])
@pytest.mark.parametrize("ended", [True, False])
def test_nothing_is_concluded_from_facts_that_are_missing_untrusted_or_incomplete(
    facts: NodeFacts | None, ended: bool
) -> None:
    releases = releasing(ended)

    freed = [releases.settle("node", facts, (), now_s=now_s) for now_s in (0.0, 1000.0)]

    assert freed == [False, False]


@pytest.mark.parametrize("between", [UNTRUSTED, HELD, PRESENT, BLIND])
def test_the_settle_time_starts_anew_after_doubt_or_a_new_sight(between: NodeFacts) -> None:
    releases = releasing()
    releases.settle("node", EMPTY, (), now_s=0.0)
    releases.settle("node", between, (), now_s=20.0)

    freed = [releases.settle("node", EMPTY, (), now_s=now_s) for now_s in (21.0, 45.0, 51.0)]

    assert freed == [False, False, True]


def test_a_release_that_begins_again_keeps_how_long_the_pod_has_been_absent() -> None:
    releases = releasing()
    releases.settle("node", EMPTY, (), now_s=0.0)

    releases.begin(Release(POD, "node", ended=False, devices=(given("GPU-0"),)))

    assert releases.settle("node", EMPTY, (), now_s=SETTLE_S)


def test_the_kubelets_word_is_not_forgotten_when_the_pod_vanishes_afterwards() -> None:
    releases = releasing(ended=True)

    releases.begin(Release(POD, "node", ended=False))

    assert releases.settle("node", EMPTY, (), now_s=0.0)


def test_the_end_of_a_pod_that_is_not_in_kubernetes_is_not_remembered() -> None:
    releases = releasing()

    releases.node_gone("node", alive=())

    assert not releases.finished(POD.uid)
    assert not releases.waiting_nodes()


def test_a_pod_that_only_somebody_called_ended_is_not_free_because_its_machine_registers_again() -> None:
    releases = releasing(ended=False)

    releases.node_gone("node", alive={POD.uid})

    assert waits(releases)
    assert not releases.finished(POD.uid)
