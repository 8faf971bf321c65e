"""Ledger, host accounts and views, fed by informers and discovery."""

from gpuloom.kube.cache import Change
from gpuloom.model.ledger import EntryState
from services.scheduler_extender.core.ledger.attempts import Attempt
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.state.cluster import ClusterState
from tests.unit.scheduler_extender.builders import (
    HandClock,
    JsonObject,
    a_gpu,
    a_node,
    a_pod,
    a_ref,
    an_allocation,
    given,
    some_facts,
)
from tests.unit.scheduler_extender.nominated_pods import a_ranked_pod

POD = a_ref("pod")


class Facts:
    stale = False


def a_state(facts: Facts | None = None) -> ClusterState:
    watched = facts or Facts()
    state = ClusterState(Ledger(30.0), lambda: watched.stale, HandClock())
    state.observe_node(Change(None, a_node("node")))
    state.observe_facts("uid-node", some_facts("node", a_gpu("GPU-0")))
    return state


def appear(state: ClusterState, pod: JsonObject) -> None:
    state.observe_pod(Change(None, pod))


def test_a_pod_is_pending_until_it_is_bound_ended_or_gone() -> None:
    state = a_state()
    pending = []
    unbound, bound = a_pod(POD), a_pod(POD, node="node")

    for change in (Change(None, unbound), Change(unbound, bound), Change(bound, None)):
        state.observe_pod(change)
        pending.append(state.has_pending_pods())

    assert pending == [True, False, False]


def test_a_pod_without_a_gpu_is_never_pending_but_its_cpu_counts() -> None:
    state = a_state()

    appear(state, a_pod(a_ref("plain"), {"cpu": "4"}))
    waiting = state.has_pending_pods()
    appear(state, a_pod(a_ref("plain"), {"cpu": "4"}, node="node"))

    view = state.views.view("node")
    assert not waiting
    assert view is not None
    assert view.host is not None
    assert view.host.cpu_total_milli - view.host.cpu_free_milli == 4000


def test_a_bound_pod_that_cannot_be_read_closes_its_node() -> None:
    state = a_state()
    broken: JsonObject = {
        "metadata": {"name": "x", "uid": "u"},
        "spec": {"nodeName": "node", "containers": "?"},
    }

    appear(state, broken)

    view = state.views.view("node")
    assert view is not None
    assert view.closed_reason.startswith("a GPU pod on the node can't be accounted for")


def test_a_pod_without_name_and_uid_is_left_alone() -> None:
    state = a_state()

    appear(state, {"metadata": {}, "spec": {"containers": []}})

    assert list(state.ledger.entries()) == []


def test_a_node_that_goes_and_comes_back_as_another_is_unknown_until_its_facts_come() -> None:
    state = a_state()

    state.observe_node(Change(a_node("node"), None))
    gone = state.views.view("node")
    state.observe_node(Change(None, a_node("node", "uid-new")))
    back = state.views.view("node")

    assert gone is None
    assert back is not None
    assert back.closed_reason


def test_a_node_whose_capacity_cannot_be_read_has_no_host_account() -> None:
    state = a_state()
    node = a_node("node")
    node["status"]["allocatable"]["cpu"] = "a lot"

    state.observe_node(Change(a_node("node"), node))

    view = state.views.view("node")
    assert view is not None
    assert view.host is None


def test_all_nodes_reopen_when_facts_are_fresh_again() -> None:
    facts = Facts()
    state = a_state(facts)
    state.take_reopened()

    facts.stale = True
    while_stale = state.take_reopened()
    facts.stale = False

    assert while_stale == set()
    assert state.take_reopened() == {"node"}
    assert state.take_reopened() == set()


def test_a_stale_moment_between_two_looks_reopens_all_nodes_too() -> None:
    facts = Facts()
    state = a_state(facts)
    state.take_reopened()

    facts.stale = True
    refused = state.views.view("node")
    facts.stale = False

    assert refused is not None
    assert refused.closed_reason
    assert state.take_reopened() == {"node"}


def test_entries_are_counted_by_state_and_closed_nodes_too() -> None:
    state = a_state()
    state.observe_node(Change(None, a_node("plain")))
    state.ledger.begin(Attempt(POD, "node", an_allocation(POD, given("GPU-0"))))
    state.observe_facts("uid-node", some_facts("node", a_gpu("GPU-0"), untrusted="silent"))

    counts = state.entry_counts()

    assert counts[EntryState.IN_FLIGHT] == 1
    assert sum(counts.values()) == 1
    assert state.closed_nodes() == 1


def test_a_nomination_lasts_until_its_pod_is_bound_or_goes() -> None:
    waits = a_ranked_pod("pod", nominated="node")
    bound, ended, leaving = (a_ranked_pod("pod", nominated="node") for _ in range(3))
    bound["spec"]["nodeName"] = "node"
    ended["status"]["phase"] = "Failed"
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    nominated = []

    for after in (waits, bound, ended, leaving, a_ranked_pod("pod"), None):
        state = a_state()
        appear(state, waits)
        state.observe_pod(Change(waits, after))
        nominated.append(bool(state.nominations))

    assert nominated == [True, False, False, False, False, False]


def test_a_node_reopens_when_a_promise_is_not_used_there() -> None:
    waits = a_ranked_pod("pod", nominated="node")
    used, elsewhere = a_ranked_pod("pod", nominated="node"), a_ranked_pod("pod", nominated="node")
    used["spec"]["nodeName"], elsewhere["spec"]["nodeName"] = "node", "other"
    reopened = []

    for after in (used, waits, elsewhere, a_ranked_pod("pod", nominated="other"), a_ranked_pod("pod"), None):
        state = a_state()
        appear(state, waits)
        state.take_reopened()
        state.observe_pod(Change(waits, after))
        reopened.append(state.take_reopened())

    assert reopened == [set(), set(), {"node"}, {"node"}, {"node"}, {"node"}]


def test_a_promise_of_a_node_that_is_gone_reopens_nothing() -> None:
    state, waits = a_state(), a_ranked_pod("pod", nominated="nowhere")
    appear(state, waits)
    state.take_reopened()

    state.observe_pod(Change(waits, None))

    assert state.take_reopened() == set()
