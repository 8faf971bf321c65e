"""Calls that a real kube-scheduler made, answered by ours. The recordings are not part of the project."""

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from gpuloom.kube.cache import Change
from gpuloom.kube.client import PodBinding
from gpuloom.model.node import NodeMode
from gpuloom.placement.score import ScoreWeights
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import Preferences
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.verbs.binding import BindContext, Bindings
from services.scheduler_extender.verbs.verbs import Verbs
from tests.unit.scheduler_extender.builders import (
    HandClock,
    a_gpu,
    a_node,
    a_pod,
    a_ref,
    nvidia_cards,
    some_facts,
)

JsonObject = dict[str, Any]

GPUS_PER_NODE = 8


def calls_of(verb: str) -> pytest.MarkDecorator:
    """One parameter per recording, or one that says why there is none."""
    data = os.environ.get("GPULOOM_DATA")
    found = sorted(Path(data, "extender_samples").glob(f"*-{verb}.request.json")) if data else []
    skip = pytest.mark.skip(reason="RECORDED CALLS DID NOT RUN: GPULOOM_DATA has no extender_samples")
    cases = [pytest.param(path.read_bytes(), id=path.name) for path in found]
    return pytest.mark.parametrize("body", cases or [pytest.param(b"", marks=skip, id="none")])


class AcceptingApi:
    """Every Binding is accepted; pods are those it was given."""

    def __init__(self, *pods: JsonObject) -> None:
        self._pods = {pod["metadata"]["uid"]: pod for pod in pods}
        self.bindings: list[PodBinding] = []

    def by_uid(self, uid: str) -> JsonObject | None:
        return self._pods.get(uid)

    async def read(self, namespace: str, name: str) -> JsonObject:
        raise AssertionError(f"{namespace}/{name} is known")

    async def bind(self, binding: PodBinding, *, timeout_s: float) -> None:
        self.bindings.append(binding)


def verbs_for(node_names: list[str], api: AcceptingApi) -> Verbs:
    """An extender that knows these nodes, each with eight free GPUs."""
    clock = HandClock()
    state = ClusterState(Ledger(settle_s=90.0), lambda: False, clock)
    for name in node_names:
        state.observe_node(Change(None, a_node(name)))
        gpus = [a_gpu(f"GPU-{name}-{index}", index) for index in range(GPUS_PER_NODE)]
        state.observe_facts(f"uid-{name}", some_facts(name, *gpus, mode=NodeMode.NVIDIA))
    context = BindContext(state.ledger, state.views, DecisionLog(clock), clock)
    return Verbs(
        context, Bindings(context, api, api, timeout_s=4.0), Preferences(8, Evaluator(ScoreWeights()), 8)
    )


def names_in(call: JsonObject) -> list[str]:
    if call["NodeNames"] is not None:
        return list(call["NodeNames"])
    return [node["metadata"]["name"] for node in call["Nodes"]["items"]]


@calls_of("filter")
async def test_a_recorded_filter_call_gets_the_best_few_of_its_own_nodes(body: bytes) -> None:
    call = orjson.loads(body)
    names = names_in(call)

    answer = orjson.loads(await verbs_for(names, AcceptingApi()).answer("filter", body))

    assert set(answer) == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    assert answer["Error"] == ""
    assert answer["FailedNodes"] == answer["FailedAndUnresolvableNodes"] == {}
    if call["Nodes"] is None:
        chosen = answer["NodeNames"]
        assert answer["Nodes"] is None
    else:
        chosen = [node["metadata"]["name"] for node in answer["Nodes"]["items"]]
        assert answer["NodeNames"] is None
    assert len(chosen) == min(8, len(names))
    assert set(chosen) <= set(names)


@calls_of("filter")
async def test_a_recorded_filter_call_over_unknown_nodes_is_refused_with_a_reason_for_each(
    body: bytes,
) -> None:
    names = names_in(orjson.loads(body))

    answer = orjson.loads(await verbs_for([], AcceptingApi()).answer("filter", body))

    assert not answer["NodeNames"]
    assert set(answer["FailedAndUnresolvableNodes"]) == set(names)
    assert answer["Error"] == ""


@calls_of("prioritize")
async def test_a_recorded_prioritize_call_gets_one_integer_for_each_node_and_one_winner(body: bytes) -> None:
    names = names_in(orjson.loads(body))

    answer = orjson.loads(await verbs_for(names, AcceptingApi()).answer("prioritize", body))

    assert [set(entry) for entry in answer] == [{"Host", "Score"}] * len(names)
    assert [entry["Host"] for entry in answer] == names
    assert all(type(entry["Score"]) is int and 0 <= entry["Score"] <= 10 for entry in answer)
    assert [entry["Score"] for entry in answer].count(10) == 1


@calls_of("bind")
async def test_a_recorded_bind_call_binds_that_pod_to_that_node(body: bytes) -> None:
    call = orjson.loads(body)
    api = AcceptingApi(a_pod(a_ref(call["PodName"], call["PodUID"]), nvidia_cards(1)))

    answer = orjson.loads(await verbs_for([call["Node"]], api).answer("bind", body))

    assert answer == {"Error": ""}
    (binding,) = api.bindings
    assert (binding.uid, binding.node) == (call["PodUID"], call["Node"])


@calls_of("preempt")
async def test_a_recorded_preempt_call_names_no_victim(body: bytes) -> None:
    answer = await verbs_for([], AcceptingApi()).answer("preempt", body)

    assert orjson.loads(answer) == {"NodeNameToMetaVictims": {}}
