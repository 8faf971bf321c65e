"""How much of a node closes when something on it is not known: no more than that."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from gpuloom.kube.cache import Change
from gpuloom.model.gpu import Gpu
from gpuloom.model.node import Delivery, Holder, NodeMode
from gpuloom.names import (
    ANNOTATION_GPU_ARCHITECTURE,
    ANNOTATION_MIG_PROFILE,
    ANNOTATION_TOPOLOGY,
    ANNOTATION_TOPOLOGY_REQUIRED,
)
from gpuloom.placement.devices import NodeView
from services.scheduler_extender.ledger import Ledger
from services.scheduler_extender.state import ClusterState
from tests.unit.scheduler_extender.builders import (
    HandClock,
    JsonObject,
    a_gpu,
    a_node,
    a_pod,
    a_ref,
    an_allocation,
    given,
    gpuloom_share,
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
