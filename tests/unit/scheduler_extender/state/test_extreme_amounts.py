"""Amounts that Kubernetes admits and no machine has: one such pod or node must not end all service."""

import pytest

from gpuloom.codec.node_ledger import node_ledger_to_proto
from gpuloom.codec.pod import pod_request
from gpuloom.kube.cache import Change
from gpuloom.model.node import NodeMode
from gpuloom.names import RESOURCE_NVIDIA_GPU
from gpuloom.placement.score import ScoreWeights
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.state.cluster import ClusterState
from tests.unit.scheduler_extender.builders import (
    HandClock,
    JsonObject,
    a_gpu,
    a_node,
    a_pod,
    a_ref,
    gpuloom_share,
    nvidia_cards,
    some_facts,
)

LARGEST = "9223372036854775807"
"""Kubernetes caps a quantity here."""
HOST = {"cpu": LARGEST, "memory": LARGEST}
MOST_DEVICES = 8192
"""A reader of the ledger takes no more of one owner."""


class World:
    def __init__(self, node: JsonObject, mode: NodeMode = NodeMode.GPULOOM) -> None:
        self.state = ClusterState(Ledger(30.0), lambda: False, HandClock())
        self.evaluator = Evaluator(ScoreWeights())
        self.state.views.keep(self.evaluator.fleet)
        self.state.observe_node(Change(None, node))
        self.state.observe_facts("uid-node", some_facts("node", a_gpu("GPU-0"), mode=mode))

    def is_told_and_judged(self, pod: JsonObject) -> bool:
        """Whether readers of the ledger can be told of the node, and the pod fits there by our account."""
        ledger = self.state.views.node_ledger("node")
        request = pod_request(pod)
        assert ledger is not None
        assert request is not None
        node_ledger_to_proto(ledger)
        found = self.evaluator.on(request, ["node"], self.state.views.viewer())
        return bool(len(found.survey.fitting))


def asking(name: str, *, node: str = "", containers: int = 1) -> JsonObject:
    pod = a_pod(a_ref(name), gpuloom_share(1000) | HOST, node=node)
    others = [{"name": f"c{i}", "resources": {"requests": HOST}} for i in range(1, containers)]
    pod["spec"]["containers"] += others
    return pod


@pytest.mark.parametrize("containers", [1, 3])
def test_pods_that_ask_for_more_than_any_node_has_are_judged_like_others(containers: int) -> None:
    world = World(a_node("node"))

    assert world.is_told_and_judged(asking("pod", containers=containers))


def test_a_node_with_pods_that_ask_for_more_than_any_has_is_told_of() -> None:
    world = World(a_node("node"))
    for i in range(3):
        plain = asking(f"plain-{i}", node="node", containers=3)
        del plain["spec"]["containers"][0]
        world.state.observe_pod(Change(None, plain))

    assert world.is_told_and_judged(a_pod())


def test_a_node_that_offers_more_than_any_has_is_judged_like_others() -> None:
    node = a_node("node")
    node["status"]["allocatable"] = {**HOST, "pods": LARGEST}
    world = World(node)

    assert world.is_told_and_judged(a_pod())


@pytest.mark.parametrize("kind", ["initContainers", "containers"])
def test_a_pod_that_somebody_bound_himself_with_billions_of_devices_takes_the_node_and_no_more(
    kind: str,
) -> None:
    world = World(a_node("node"), NodeMode.NVIDIA)
    amounts = {RESOURCE_NVIDIA_GPU: LARGEST}
    pod = a_pod(a_ref("greedy"), {}, node="node")
    pod["spec"][kind] = [{"name": "greedy", "resources": {"limits": amounts, "requests": amounts}}]
    world.state.observe_pod(Change(None, pod))

    fits = world.is_told_and_judged(a_pod(resources=nvidia_cards()))

    view, ledger = world.state.views.view("node"), world.state.views.node_ledger("node")
    assert view is not None
    assert ledger is not None
    assert not fits
    assert not view.gpus[0].free_milli or view.closed_reason
    assert all(len(claim.unlisted) <= MOST_DEVICES for claim in ledger.claims)
