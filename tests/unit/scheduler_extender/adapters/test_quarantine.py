"""The quarantine between binds and filters: what counts as a failure, what filter says, who is woken."""

from typing import Any

import orjson
import pytest

from gpuloom.errors import (
    ConflictError,
    GpuloomError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
)
from gpuloom.kube.cache import Change
from gpuloom.model.ledger import Verdict
from gpuloom.placement.score import ScoreWeights
from services.scheduler_extender.adapters.quarantine import ReleaseWatch, WatchedBinder
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import Preferences
from services.scheduler_extender.core.verbs.quarantine import REASON, Quarantine, Workload
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.verbs.binding import BindContext, Bindings
from services.scheduler_extender.verbs.verbs import Verbs
from tests.unit.scheduler_extender.builders import HandClock, a_gpu, a_node, a_pod, a_ref, some_facts
from tests.unit.scheduler_extender.inquiry_setup import Shown
from tests.unit.scheduler_extender.kubernetes import ScriptedApi

POD = a_ref("pod")


class Desk:
    """A pod of a controller, one node, and a Kubernetes that answers binds as told."""

    def __init__(self, *outcomes: GpuloomError | None) -> None:
        pod = a_pod(POD)
        pod["metadata"]["ownerReferences"] = [{"uid": "uid-set", "controller": True}]
        self.pod = pod
        self.clock = HandClock()
        self.quarantine = Quarantine()
        self.decisions = DecisionLog(self.clock)
        state = ClusterState(Ledger(30.0), lambda: False, self.clock)
        api = ScriptedApi(pod, outcomes=outcomes)
        context = BindContext(state.ledger, state.views, self.decisions, self.clock)
        binder = WatchedBinder(api, self.quarantine, api, self.clock)
        bindings = Bindings(context, api, binder, timeout_s=4.0)
        self._verbs = Verbs(context, bindings, Preferences(8, Evaluator(ScoreWeights())), self.quarantine)
        state.observe_node(Change(None, a_node("n1")))
        state.observe_facts("uid-n1", some_facts("n1", a_gpu("GPU-n1")))
        state.observe_pod(Change(None, pod))

    async def answer(self, verb: str, **fields: Any) -> Any:
        return orjson.loads(await self._verbs.answer(verb, orjson.dumps(fields)))

    async def bind(self) -> str:
        call = {"PodName": "pod", "PodNamespace": "default", "PodUID": POD.uid, "Node": "n1"}
        return str((await self.answer("bind", **call))["Error"])

    async def filter(self) -> Any:
        return await self.answer("filter", Pod=self.pod, NodeNames=["n1"])


@pytest.mark.parametrize("error", [ConflictError("changed"), NotAllowedError("denied by a webhook")])
async def test_a_pod_whose_binds_are_refused_again_and_again_gets_no_node_for_a_while(
    error: GpuloomError,
) -> None:
    desk = Desk(error, error, error)
    for _ in range(3):
        assert (await desk.filter())["NodeNames"] == ["n1"]
        assert await desk.bind()

    held = await desk.filter()
    desk.clock.elapsed_s += 10.0
    later = await desk.filter()

    assert held["NodeNames"] == []
    assert held["FailedNodes"] == {"n1": REASON}
    assert held["FailedAndUnresolvableNodes"] == {}
    assert later["NodeNames"] == ["n1"]
    refusals = [item.reason for item in desk.decisions.about(POD.uid) if item.verdict is Verdict.REFUSED]
    assert refusals == [f"1 {REASON}"]


@pytest.mark.parametrize("error", [UnavailableError("no answer"), NotFoundError("gone")])
async def test_an_api_that_does_not_answer_and_a_pod_that_went_are_nobodys_fault(error: GpuloomError) -> None:
    desk = Desk(*[error] * 5)

    for _ in range(5):
        await desk.bind()

    assert desk.quarantine.held_count(0.0) == 0


async def test_a_bind_that_succeeds_forgets_earlier_failures() -> None:
    desk = Desk(ConflictError("x"), ConflictError("x"), None)

    for _ in range(3):
        await desk.bind()

    assert desk.quarantine.failed(Workload(POD.uid, "uid-set"), 1.0, refused=True) is None


@pytest.mark.parametrize(("leads", "touched"), [(True, ["n1"]), (False, [])])
async def test_the_end_of_a_hold_wakes_kube_scheduler_once_if_we_lead(
    leads: bool, touched: list[str]
) -> None:
    desk, marker = Desk(*[ConflictError("x")] * 3), Marker()
    watch = ReleaseWatch(
        desk.quarantine, marker, desk.clock, Shown([a_node("n1"), a_node("n2")]), lambda: leads
    )
    for _ in range(3):
        await desk.bind()

    await watch.look()
    before = list(marker.touched)
    desk.clock.elapsed_s += 11.0
    await watch.look()
    await watch.look()

    assert before == []
    assert marker.touched == touched


async def test_a_node_that_can_not_be_touched_does_not_end_the_watch() -> None:
    desk, marker = Desk(*[ConflictError("x")] * 3), Marker(UnavailableError("silent"))
    watch = ReleaseWatch(desk.quarantine, marker, desk.clock, Shown([a_node("n1")]), lambda: True)
    for _ in range(3):
        await desk.bind()
    desk.clock.elapsed_s += 11.0

    await watch.look()

    assert marker.touched == []


class Marker:
    def __init__(self, error: GpuloomError | None = None) -> None:
        self.touched: list[str] = []
        self._error = error

    async def stamp(self, namespace: str, name: str, uid: str, epoch: str) -> None:
        raise AssertionError("nobody is stamped here")

    async def touch(self, node_name: str, epoch: str) -> None:
        if self._error is not None:
            raise self._error
        self.touched.append(node_name)
