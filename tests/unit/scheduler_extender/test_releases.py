"""When the devices of a pod that ended are free again."""

import pytest

from gpuloom.model.node import NodeState
from gpuloom.model.snapshot import NodeFacts
from services.scheduler_extender.releases import Release, Releases
from tests.unit.scheduler_extender.builders import a_gpu, a_holder, a_ref, given, some_facts

SETTLE_S = 30.0

POD = a_ref("pod")
CARD = a_gpu("GPU-0")
EMPTY = some_facts("node", CARD)
HELD = some_facts("node", CARD, holders=[a_holder(POD, "GPU-0")])
UNTRUSTED = some_facts("node", CARD, untrusted="silent")
INCOMPLETE = NodeFacts(
    NodeState(
        "node", "uid-node", EMPTY.state.mode, EMPTY.state.delivery, (CARD,), holders_unknown_reason="kubelet"
    )
)


def releasing(terminal: bool = False) -> Releases:
    releases = Releases(SETTLE_S)
    releases.begin(Release(POD, "node", terminal, (given("GPU-0"),)))
    return releases


def waits(releases: Releases) -> bool:
    return any(release.pod == POD for release in releases.on_node("node"))


def test_the_end_of_the_node_frees_everything_on_it() -> None:
    releases = releasing()

    releases.node_gone("node", alive=())

    assert not waits(releases)


def test_what_was_listed_on_a_machine_says_nothing_of_the_next_one_with_its_name() -> None:
    """The pod is bound to the name, so the next machine may be about to start it."""
    releases = Releases(SETTLE_S)
    releases.settle("node", HELD, {POD.uid}, now_s=0.0)

    releases.node_gone("node", alive={POD.uid})
    releases.settle("node", EMPTY, {POD.uid}, now_s=SETTLE_S)
    releases.begin(Release(POD, "node", terminal=False))

    assert not releases.settle("node", EMPTY, (), now_s=SETTLE_S + 1)
    assert releases.settle("node", EMPTY, (), now_s=2 * SETTLE_S + 1)


def test_a_pod_that_the_kubelet_reported_as_ended_is_free_once_it_is_not_listed() -> None:
    releases = releasing(terminal=True)

    while_listed = releases.settle("node", HELD, {POD.uid}, now_s=0.0)
    afterwards = releases.settle("node", EMPTY, {POD.uid}, now_s=1.0)

    assert (while_listed, afterwards) == (False, True)
    assert releases.finished(POD.uid)


def test_a_vanished_pod_that_was_listed_for_long_is_free_as_soon_as_it_is_not_listed() -> None:
    releases = Releases(SETTLE_S)
    releases.settle("node", HELD, {POD.uid}, now_s=0.0)
    releases.begin(Release(POD, "node", terminal=False))

    freed = releases.settle("node", EMPTY, (), now_s=SETTLE_S)

    assert freed


def test_a_vanished_pod_that_was_first_listed_a_moment_ago_may_be_missing_in_older_facts() -> None:
    releases = Releases(SETTLE_S)
    releases.settle("node", HELD, {POD.uid}, now_s=0.0)
    releases.begin(Release(POD, "node", terminal=False))

    freed_at_once = releases.settle("node", EMPTY, (), now_s=1.0)
    freed_later = releases.settle("node", EMPTY, (), now_s=SETTLE_S)

    assert (freed_at_once, freed_later) == (False, True)


def test_a_vanished_pod_that_was_never_listed_keeps_its_devices_for_the_settle_time() -> None:
    releases = releasing()

    freed = [releases.settle("node", EMPTY, (), now_s=now_s) for now_s in (0.0, 29.9, 30.0)]

    assert freed == [False, False, True]


@pytest.mark.parametrize("facts", [None, UNTRUSTED, INCOMPLETE])
@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_concluded_from_facts_that_are_missing_untrusted_or_incomplete(
    facts: NodeFacts | None, terminal: bool
) -> None:
    releases = releasing(terminal)

    freed = [releases.settle("node", facts, (), now_s=now_s) for now_s in (0.0, 1000.0)]

    assert freed == [False, False]


@pytest.mark.parametrize("between", [UNTRUSTED, HELD])
def test_the_settle_time_starts_anew_after_doubt_or_a_new_sight(between: NodeFacts) -> None:
    releases = releasing()
    releases.settle("node", EMPTY, (), now_s=0.0)
    releases.settle("node", between, (), now_s=20.0)

    freed = [releases.settle("node", EMPTY, (), now_s=now_s) for now_s in (21.0, 45.0, 51.0)]

    assert freed == [False, False, True]


def test_a_release_that_begins_again_keeps_how_long_the_pod_has_been_absent() -> None:
    releases = releasing()
    releases.settle("node", EMPTY, (), now_s=0.0)

    releases.begin(Release(POD, "node", terminal=False, devices=(given("GPU-0"),)))

    assert releases.settle("node", EMPTY, (), now_s=SETTLE_S)


def test_the_kubelets_word_is_not_forgotten_when_the_pod_vanishes_afterwards() -> None:
    releases = releasing(terminal=True)

    releases.begin(Release(POD, "node", terminal=False))

    assert releases.settle("node", EMPTY, (), now_s=0.0)


def test_the_end_of_a_pod_that_is_not_in_kubernetes_is_not_remembered() -> None:
    releases = releasing()

    releases.node_gone("node", alive=())

    assert not releases.finished(POD.uid)
    assert not releases.waiting_nodes()
