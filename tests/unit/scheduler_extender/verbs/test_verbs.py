"""The four verbs, on a small cluster."""

from typing import Any

import orjson

from gpuloom.kube.cache import Change
from gpuloom.model.ledger import Verdict
from gpuloom.placement.score import ScoreWeights
from services.scheduler_extender.core.ledger.attempts import Attempt
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import Preferences
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.verbs.binding import BindContext, Bindings
from services.scheduler_extender.verbs.verbs import Verbs
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
from tests.unit.scheduler_extender.kubernetes import ScriptedApi

POD = a_ref("pod")


class Desk:
    def __init__(self, *pods: JsonObject) -> None:
        clock = HandClock()
        self.state = ClusterState(Ledger(30.0), lambda: False, clock)
        self.decisions = DecisionLog(clock)
        context = BindContext(self.state.ledger, self.state.views, self.decisions, clock)
        self.api = ScriptedApi(*pods)
        bindings = Bindings(context, self.api, self.api, timeout_s=4.0)
        self._verbs = Verbs(context, bindings, Preferences(8, Evaluator(ScoreWeights())))
        for name in ("n1", "n2"):
            self.state.observe_node(Change(None, a_node(name)))
            self.state.observe_facts(f"uid-{name}", some_facts(name, a_gpu(f"GPU-{name}")))

    async def answer(self, verb: str, **fields: Any) -> Any:
        return orjson.loads(await self._verbs.answer(verb, orjson.dumps(fields)))


async def test_a_pod_without_a_gpu_passes_every_node_and_scores_none_higher() -> None:
    desk = Desk()
    pod = a_pod(POD, {"cpu": "1"})

    filtered = await desk.answer("filter", Pod=pod, NodeNames=["n1", "n2", "n9"])
    scored = await desk.answer("prioritize", Pod=pod, NodeNames=["n1", "n2"])

    assert filtered["NodeNames"] == ["n1", "n2", "n9"]
    assert {entry["Score"] for entry in scored} == {0}


async def test_a_request_without_sense_is_refused_everywhere_with_its_reason() -> None:
    desk = Desk()
    pod = a_pod(POD, gpuloom_share(1500))

    filtered = await desk.answer("filter", Pod=pod, NodeNames=["n1", "n2"])
    scored = await desk.answer("prioritize", Pod=pod, NodeNames=["n1"])

    assert set(filtered["FailedAndUnresolvableNodes"]) == {"n1", "n2"}
    assert "1500" in filtered["FailedAndUnresolvableNodes"]["n1"]
    assert scored == [{"Host": "n1", "Score": 0}]


async def test_an_unbound_pod_with_an_allocation_is_refused_everywhere() -> None:
    desk = Desk()
    pod = a_pod(POD, allocation=an_allocation(POD, given("GPU-n1"), node_uid="uid-n1"))

    answer = await desk.answer("filter", Pod=pod, NodeNames=["n1"])

    reason = "the pod carries an allocation that GPULoom did not make"
    assert answer["FailedAndUnresolvableNodes"] == {"n1": reason}


async def test_a_pod_refused_everywhere_is_told_once() -> None:
    desk = Desk()
    pod = a_pod(POD, gpuloom_share(2000))

    for _ in range(2):
        await desk.answer("filter", Pod=pod, NodeNames=["n1", "n2"])

    (decision,) = desk.decisions.newest()
    assert decision.verdict is Verdict.REFUSED
    assert decision.reason == "2 node has fewer than 2 GPUs outside MIG mode"


async def test_a_filter_asks_nobody_and_changes_nothing() -> None:
    desk = Desk()
    before = list(desk.state.ledger.entries())

    await desk.answer("filter", Pod=a_pod(POD), NodeNames=["n1", "n2"])

    assert list(desk.state.ledger.entries()) == before == []
    assert desk.api.bindings == []


async def test_a_pod_may_come_back_to_the_node_it_holds_by_an_earlier_bind() -> None:
    desk = Desk()
    desk.state.ledger.begin(Attempt(POD, "n1", an_allocation(POD, given("GPU-n1"), node_uid="uid-n1")))

    own = await desk.answer("filter", Pod=a_pod(POD), NodeNames=["n1"])
    other = await desk.answer("filter", Pod=a_pod(a_ref("other")), NodeNames=["n1"])

    assert own["NodeNames"] == ["n1"]
    assert other["FailedNodes"] == {"n1": "not enough free GPUs: 1 asked"}


async def test_bind_answers_its_error_in_the_body() -> None:
    desk = Desk(a_pod(POD))
    call = {"PodName": "pod", "PodNamespace": "default", "PodUID": POD.uid}

    wrong = await desk.answer("bind", **call, Node="n9")
    right = await desk.answer("bind", **call, Node="n1")

    assert wrong == {"Error": "node n9 does not exist"}
    assert right == {"Error": ""}


async def test_preempt_names_no_victims() -> None:
    answer = await Desk().answer("preempt", Pod=a_pod(POD), NodeNameToMetaVictims={"n1": {"Pods": []}})

    assert answer == {"NodeNameToMetaVictims": {}}


async def test_a_filter_goes_by_the_pod_that_it_carries_not_by_one_seen_earlier() -> None:
    seen, resized = a_pod(POD, gpuloom_share(1000), version=1), a_pod(POD, gpuloom_share(2000), version=2)
    desk = Desk(seen)
    desk.state.observe_pod(Change(None, seen))

    before = await desk.answer("filter", Pod=seen, NodeNames=["n1", "n2"])
    after = await desk.answer("filter", Pod=resized, NodeNames=["n1", "n2"])

    assert len(before["NodeNames"]) == 1
    assert after["NodeNames"] == []


async def test_a_pod_that_can_not_be_read_is_refused_with_the_reason_however_often_it_was_seen() -> None:
    both = a_pod(POD, gpuloom_share(1000) | {"nvidia.com/gpu": "1"})
    desk = Desk(both)
    desk.state.observe_pod(Change(None, both))

    answer = await desk.answer("filter", Pod=both, NodeNames=["n1"])

    assert "not for both" in answer["FailedAndUnresolvableNodes"]["n1"]
