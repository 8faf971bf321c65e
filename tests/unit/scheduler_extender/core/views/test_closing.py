"""How much of a node closes when something on it is not known: no more than that."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from gpuloom.kube.cache import Change
from gpuloom.model.gpu import DeviceRef, Gpu
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import Delivery, Holder, HolderSource, NodeMode
from gpuloom.names import (
    ANNOTATION_GPU_ARCHITECTURE,
    ANNOTATION_MIG_PROFILE,
    ANNOTATION_TOPOLOGY,
    ANNOTATION_TOPOLOGY_REQUIRED,
    RESOURCE_NVIDIA_MIG_PREFIX,
)
from gpuloom.placement.devices import NodeView
from gpuloom.placement.occupancy.claims import UNRESERVED
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.state.cluster import ClusterState
from tests.unit.scheduler_extender.builders import (
    HandClock,
    JsonObject,
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

POD = a_ref("pod")
CARDS = tuple(a_gpu(f"GPU-{index}", index) for index in range(3))


class Node:
    """One node with three cards, and everything that is said of it."""

    def __init__(self, mode: NodeMode = NodeMode.GPULOOM, uid: str = "uid-node", **changes: Any) -> None:
        self.clock = HandClock()
        self.state = ClusterState(Ledger(30.0), lambda: False, self.clock)
        self.mode = mode
        self.register(uid)
        self.report(**changes)

    def register(self, uid: str) -> None:
        self.uid = uid
        self.state.observe_node(Change(None, a_node("node", uid)))

    def report(
        self, *holders: Holder, gpus: Iterable[Gpu] = CARDS, delivery: Delivery | None = None, **changes: Any
    ) -> None:
        facts = some_facts("node", *gpus, uid=self.uid, mode=self.mode, holders=holders, **changes)
        if delivery is not None:
            facts = replace(facts, state=replace(facts.state, delivery=delivery))
        self.state.observe_facts(self.uid, facts)

    def show(self, pod: JsonObject) -> None:
        self.state.observe_pod(Change(None, pod))

    @property
    def view(self) -> NodeView:
        view = self.state.views.view("node")
        assert view is not None
        return view

    @property
    def closed(self) -> str:
        return self.view.closed_reason

    @property
    def free_milli(self) -> list[int]:
        """Of each card; 0 of those that may not be used."""
        return [0 if card.unusable_reason else card.free_milli for card in self.view.gpus]


TEN_MILLI = an_allocation(POD, given("GPU-0", 10, 100))


@pytest.mark.parametrize(
    ("wish", "value"),
    [
        (ANNOTATION_GPU_ARCHITECTURE, "steam"),
        (ANNOTATION_MIG_PROFILE, "9g.999gb"),
        (ANNOTATION_TOPOLOGY, "nowhere"),
        (ANNOTATION_TOPOLOGY_REQUIRED, "maybe"),
    ],
)
def test_what_a_pod_wishes_once_it_runs_closes_nothing(wish: str, value: str) -> None:
    node = Node()

    node.show(a_pod(POD, gpuloom_share(10), node="node", allocation=TEN_MILLI, annotations={wish: value}))

    assert node.closed == ""
    assert node.free_milli == [990, 1000, 1000]


NOT_KNOWN = "the devices of a GPU pod on the node are not known yet"


@pytest.mark.parametrize("milli", [1, 1500])
def test_a_pod_that_bound_itself_holds_nothing_where_only_the_agent_gives_devices(milli: int) -> None:
    node = Node(delivery=Delivery.NRI)

    node.show(a_pod(POD, gpuloom_share(milli), node="node"))

    assert node.closed == ""
    assert node.free_milli == [1000, 1000, 1000]


def test_a_pod_that_bound_itself_and_computes_all_the_same_costs_that_gpu() -> None:
    node = Node(delivery=Delivery.NRI)
    node.show(a_pod(POD, gpuloom_share(2000), node="node"))

    node.report(a_holder(POD, "GPU-1", source=HolderSource.PROCESS))

    assert node.closed == ""
    assert node.free_milli == [1000, 0, 1000]


@pytest.mark.parametrize("doubt", ["environment", "runtime class", "unknown holders", "asks NVIDIA's plugin"])
def test_a_pod_that_bound_itself_closes_a_node_where_it_may_have_got_any_device(doubt: str) -> None:
    pod = a_pod(POD, nvidia_cards() if "plugin" in doubt else gpuloom_share(1), node="node")
    if doubt == "runtime class":
        pod["spec"]["runtimeClassName"] = "nvidia"
    node = Node(delivery=Delivery.ENV if doubt == "environment" else Delivery.NRI)
    if doubt == "unknown holders":
        node.report(untrusted="who holds the devices is not known")

    node.show(pod)

    assert node.closed


def test_a_record_that_is_taken_off_is_no_proof_that_nothing_was_given() -> None:
    node = Node(delivery=Delivery.NRI)
    node.show(a_pod(POD, gpuloom_share(10), node="node", allocation=TEN_MILLI))

    for version in (2, 3):
        node.show(a_pod(POD, gpuloom_share(10), node="node", version=version))

    assert node.closed == NOT_KNOWN


def with_init(pod: JsonObject, resources: dict[str, str]) -> JsonObject:
    pod["spec"]["initContainers"] = [{"name": "first", "resources": {"limits": resources}}]
    return pod


def test_what_an_init_container_had_more_counts_but_does_not_close_the_node() -> None:
    node = Node(NodeMode.NVIDIA)
    node.show(with_init(a_pod(POD, nvidia_cards(1), node="node"), nvidia_cards(2)))
    not_listed = node.closed

    node.report(a_holder(POD, "GPU-0"))

    assert not_listed == NOT_KNOWN
    assert node.closed == ""
    # The kubelet keeps the second until the pod ends, wherever it is.
    assert sorted(node.free_milli) == [0, 0, 1000]


def test_a_pod_of_which_only_an_init_container_asks_counts_with_its_number() -> None:
    node = Node(NodeMode.NVIDIA)

    node.show(with_init(a_pod(POD, {}, node="node"), nvidia_cards(1)))

    assert node.closed == ""
    assert sorted(node.free_milli) == [0, 1000, 1000]


def test_a_pod_with_gpus_and_slices_is_known_once_the_kubelet_lists_them_all() -> None:
    cut = a_gpu("GPU-2", 2, slices=[("3g.20gb", 0), ("3g.20gb", 4)])
    node = Node(NodeMode.NVIDIA, gpus=(*CARDS[:2], cut))
    node.show(a_pod(POD, nvidia_cards(1) | {f"{RESOURCE_NVIDIA_MIG_PREFIX}3g.20gb": "1"}, node="node"))
    closed = [node.closed]

    for devices in (["GPU-1"], ["GPU-1", DeviceRef("GPU-2", MigPlacement(4, "3g.20gb"))]):
        node.report(a_holder(POD, *devices), gpus=(*CARDS[:2], cut))
        closed.append(node.closed)

    assert closed == [NOT_KNOWN, NOT_KNOWN, ""]
    assert node.free_milli[:2] == [1000, 0]
    assert [slice_.placement.start for slice_ in node.view.gpus[2].free_mig] == [0]


@pytest.mark.parametrize("shown_before", [True, False])
def test_a_force_deleted_pod_whose_process_hangs_closes_its_node_only_where_the_kubelet_chooses(
    shown_before: bool,
) -> None:
    """The kubelet has forgotten it, and may choose its GPU for the next pod whichever we leave free."""
    node, pod = Node(NodeMode.NVIDIA), a_pod(POD, nvidia_cards(1), node="node")
    node.show(pod)
    if shown_before:
        node.report(a_holder(POD, "GPU-1"))

    node.state.observe_pod(Change(pod, None))
    node.report(a_holder(POD, "GPU-1", source=HolderSource.PROCESS))

    assert node.closed.startswith(UNRESERVED)
    assert node.free_milli == [1000, 0, 1000]


def test_a_force_deleted_pod_whose_process_hangs_costs_the_gpus_that_it_had() -> None:
    node = Node(NodeMode.GPULOOM)
    pod = a_pod(POD, gpuloom_share(1000), node="node", allocation=an_allocation(POD, given("GPU-1")))
    node.show(pod)

    node.state.observe_pod(Change(pod, None))
    node.report(a_holder(POD, "GPU-1", source=HolderSource.PROCESS))

    assert node.closed == ""
    assert node.free_milli == [1000, 0, 1000]


def test_a_force_deleted_pod_of_which_too_little_was_ever_seen_closes_its_node() -> None:
    node, pod = Node(NodeMode.NVIDIA), a_pod(POD, nvidia_cards(2), node="node")
    node.show(pod)

    node.state.observe_pod(Change(pod, None))
    node.report(a_holder(POD, "GPU-1", source=HolderSource.PROCESS))

    assert node.closed == NOT_KNOWN


def test_two_replicas_of_one_gpu_are_all_that_a_pod_asks_for() -> None:
    node = Node(NodeMode.NVIDIA)
    predicted = an_allocation(a_ref("ours"), given("GPU-0"), given("GPU-1"), advisory=True)
    node.show(a_pod(POD, nvidia_cards(2), node="node"))
    node.show(a_pod(a_ref("ours"), nvidia_cards(2), node="node", allocation=predicted))

    node.report(replace(a_holder(POD, "GPU-1"), given=2), replace(a_holder(a_ref("ours"), "GPU-2"), given=2))

    assert node.closed == ""
    assert node.free_milli == [1000, 0, 0]


def test_a_machine_that_registers_again_keeps_what_its_pods_were_given() -> None:
    node = Node()
    node.show(a_pod(POD, gpuloom_share(10), node="node", allocation=TEN_MILLI))

    node.register("uid-new")
    node.report()

    assert node.closed == ""
    assert node.free_milli == [990, 1000, 1000]


def test_on_a_machine_that_registers_again_the_kubelet_lists_what_its_pods_have() -> None:
    node = Node(NodeMode.NVIDIA)
    predicted = an_allocation(POD, given("GPU-0"), advisory=True)
    node.show(a_pod(POD, nvidia_cards(1), node="node", allocation=predicted))
    node.register("uid-new")
    node.report()
    not_listed = node.closed

    node.report(a_holder(POD, "GPU-2"))

    assert not_listed == NOT_KNOWN
    assert node.closed == ""
    assert node.free_milli == [1000, 1000, 0]


def test_a_pod_of_another_machine_of_this_name_closes_the_node() -> None:
    node = Node()
    node.show(a_pod(POD, gpuloom_share(10), node="node", allocation=TEN_MILLI))

    node.register("uid-new")
    node.report(gpus=(a_gpu("GPU-other"),))

    assert node.closed == "a GPU pod on the node can't be accounted for: its allocation names another node"


def test_a_gpu_that_fell_off_the_bus_leaves_the_others_open() -> None:
    node = Node()
    node.show(a_pod(POD, gpuloom_share(10), node="node", allocation=TEN_MILLI))

    node.report(a_holder(POD, "GPU-0", source=HolderSource.RUNTIME), gpus=CARDS[1:])

    assert node.closed == ""
    assert node.free_milli == [1000, 1000]


def test_a_prediction_of_a_gpu_that_is_gone_counts_against_the_others() -> None:
    node = Node(NodeMode.NVIDIA)
    predicted = an_allocation(POD, given("GPU-0"), advisory=True)
    node.show(a_pod(POD, nvidia_cards(1), node="node", allocation=predicted))

    node.report(gpus=CARDS[1:])

    assert node.closed == ""
    assert sorted(node.free_milli) == [0, 1000]
