"""A node gives nothing out while somebody holds what another authority gave: before, or by a DRA driver."""

import pytest

from gpuloom.kube.cache import Change
from gpuloom.model.node import Holder, HolderSource, NodeMode, PodRef
from gpuloom.model.snapshot import MODE_CHANGED
from services.scheduler_extender.core.ledger.attempts import Attempt
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.state.cluster import ClusterState
from tests.unit.scheduler_extender.builders import (
    HandClock,
    a_gpu,
    a_holder,
    a_node,
    a_pod,
    a_ref,
    an_allocation,
    given,
    gpuloom_share,
    nvidia_cards,
    some_facts,
)

SETTLE_S = 30.0
CARDS = (a_gpu("GPU-0", 0), a_gpu("GPU-1", 1))
BOTH_WAYS = pytest.mark.parametrize(
    ("before", "after"),
    [(NodeMode.GPULOOM, NodeMode.NVIDIA), (NodeMode.NVIDIA, NodeMode.GPULOOM)],
)
CHANGED = "the node changed from gpuloom to nvidia while"
ASKED = {NodeMode.GPULOOM: gpuloom_share(1000), NodeMode.NVIDIA: nvidia_cards(1)}


class Cluster:
    """One node, as its agent and the API server show it to an extender."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.state = ClusterState(Ledger(SETTLE_S), lambda: False, self.clock)
        self.state.observe_node(Change(None, a_node("node")))

    def show(self, mode: NodeMode, *holders: Holder, untrusted: str = "") -> None:
        facts = some_facts("node", *CARDS, mode=mode, holders=holders, untrusted=untrusted)
        self.state.observe_facts("uid-node", facts)

    def run(self, name: str, mode: NodeMode, phase: str = "Running") -> PodRef:
        ref = a_ref(name)
        allocation = an_allocation(ref, given("GPU-0"), advisory=mode is NodeMode.NVIDIA)
        pod = a_pod(ref, ASKED[mode], node="node", phase=phase, allocation=allocation)
        self.state.observe_pod(Change(None, pod))
        return ref

    def closed_reason(self) -> str:
        view = self.state.views.view("node")
        assert view is not None
        return view.closed_reason


@BOTH_WAYS
def test_a_node_that_changed_its_mode_is_closed_until_the_last_pod_of_the_old_one_ended(
    before: NodeMode, after: NodeMode
) -> None:
    cluster = Cluster()
    cluster.show(before)
    cluster.run("train", before)
    cluster.run("serve", before)
    was_open = cluster.closed_reason()

    cluster.show(after)
    with_both = cluster.closed_reason()
    cluster.run("train", before, phase="Succeeded")
    with_one = cluster.closed_reason()
    cluster.state.take_reopened()
    cluster.run("serve", before, phase="Succeeded")

    changed = f"the node changed from {before} to {after} while"
    assert was_open == ""
    assert with_both == f"{changed} pods default/serve, default/train hold GPUs; drain them"
    assert with_one == f"{changed} pod default/serve holds GPUs; drain them"
    assert cluster.closed_reason() == ""
    assert cluster.state.take_reopened() == {"node"}


@BOTH_WAYS
def test_a_bind_under_way_when_its_node_changes_the_mode_closes_it(before: NodeMode, after: NodeMode) -> None:
    cluster, pod = Cluster(), a_ref("train")
    cluster.show(before)
    allocation = an_allocation(pod, given("GPU-0"), advisory=before is NodeMode.NVIDIA)

    cluster.state.ledger.begin(Attempt(pod, "node", allocation))
    cluster.show(after)

    assert cluster.closed_reason().startswith(f"the node changed from {before} to {after}")


def test_a_pod_that_somebody_else_bound_closes_a_node_that_is_not_in_the_mode_it_asks_for() -> None:
    cluster = Cluster()
    cluster.show(NodeMode.GPULOOM)

    cluster.state.observe_pod(Change(None, a_pod(a_ref("other"), nvidia_cards(1), node="node")))

    assert "pod default/other holds GPUs; drain them" in cluster.closed_reason()


@pytest.mark.parametrize(
    ("mode", "source"),
    [
        (NodeMode.GPULOOM, HolderSource.KUBELET),
        (NodeMode.NVIDIA, HolderSource.RUNTIME),
        (NodeMode.NVIDIA, HolderSource.ENVIRONMENT),
    ],
)
def test_a_container_that_runs_on_from_the_old_mode_closes_the_node_though_its_pod_is_gone(
    mode: NodeMode, source: HolderSource
) -> None:
    cluster = Cluster()

    cluster.show(mode, a_holder(a_ref("gone"), "GPU-0", source=source))
    while_it_runs = cluster.closed_reason()
    cluster.show(mode)

    assert "pod default/gone holds GPUs; drain them" in while_it_runs
    assert cluster.closed_reason() == ""


@pytest.mark.parametrize(
    ("untrusted", "told"),
    [
        (
            MODE_CHANGED,
            "the node changed from gpuloom to nvidia while pod default/train holds GPUs; drain them",
        ),
        ("the node agent is silent", "the node agent is silent"),
    ],
)
def test_where_discovery_closes_the_node_for_its_mode_the_pods_are_named(untrusted: str, told: str) -> None:
    cluster = Cluster()
    cluster.run("train", NodeMode.GPULOOM)

    cluster.show(NodeMode.NVIDIA, untrusted=untrusted)

    assert cluster.closed_reason() == told


def test_that_a_node_no_longer_lists_a_vanished_pod_means_little_after_it_changed_its_mode() -> None:
    """The list of the kubelet has nothing of what the agent delivered."""
    cluster = Cluster()
    pod = cluster.run("train", NodeMode.GPULOOM)
    cluster.show(NodeMode.GPULOOM, a_holder(pod, "GPU-0", source=HolderSource.RUNTIME))
    cluster.clock.elapsed_s = 2 * SETTLE_S
    cluster.state.observe_pod(Change(a_pod(pod), None))

    cluster.show(NodeMode.NVIDIA)
    at_once = cluster.closed_reason()
    cluster.clock.elapsed_s += SETTLE_S
    reopened = cluster.state.take_reopened()

    assert at_once.startswith("the node changed from gpuloom to nvidia")
    assert cluster.closed_reason() == ""
    assert reopened == {"node"}


def test_a_vanished_pod_that_still_computes_closes_a_node_whose_plugin_may_give_its_gpu_out_again() -> None:
    cluster, gone, plain = Cluster(), a_ref("gone"), a_ref("plain")
    cluster.state.observe_pod(Change(None, a_pod(plain, {"cpu": "1"}, node="node")))
    computing = [a_holder(pod, "GPU-0", source=HolderSource.PROCESS) for pod in (gone, plain)]

    cluster.show(NodeMode.NVIDIA, *computing)
    while_it_runs = cluster.closed_reason()
    cluster.show(NodeMode.NVIDIA, computing[1])
    afterwards = cluster.closed_reason()
    cluster.show(NodeMode.GPULOOM, *computing)

    assert while_it_runs.startswith("pod default/gone holds GPUs, which NVIDIA's device plugin may give")
    assert afterwards == ""
    assert cluster.closed_reason() == ""


@pytest.mark.parametrize("mode", [NodeMode.NVIDIA, NodeMode.GPULOOM])
@pytest.mark.parametrize("asks", [True, False])
def test_a_gpu_that_a_resource_claim_holds_closes_the_node_until_it_is_given_back(
    mode: NodeMode, asks: bool
) -> None:
    """Also if the pod was given a GPU by us beside its claim."""
    cluster = Cluster()
    pod = cluster.run("claims", mode) if asks else a_ref("claims")

    cluster.show(mode, a_holder(pod, "GPU-1", source=HolderSource.CLAIM))
    while_claimed = cluster.closed_reason()
    cluster.state.take_reopened()
    cluster.show(mode)

    assert while_claimed.startswith(f"a DRA driver gives out GPUs of this {mode} node")
    assert "pod default/claims holds GPUs" in while_claimed
    assert cluster.closed_reason() == ""
    assert cluster.state.take_reopened() == {"node"}
