"""Questions about pods: how things stand with each, in turns, and only at the leader."""

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given as given_any
from hypothesis import settings
from hypothesis import strategies as st

from gpuloom.errors import InvalidRequestError, NotFoundError, NotReadyError
from gpuloom.model.explanation import PodStanding
from gpuloom.model.ledger import Decision, Verdict
from gpuloom.model.node import NodeMode
from gpuloom.placement.reasons import KEPT
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1.types_pb2 import PodRef
from services.scheduler_extender.core.inquiries.whatif import MAX_REPLICAS
from services.scheduler_extender.core.ledger.attempts import Attempt
from services.scheduler_extender.core.verbs.quarantine import FREE_FAILURES, REASON, workload_of
from services.scheduler_extender.inquiries.inquiries import (
    GATED,
    KEPT_NOTE,
    MAX_WAITING,
    NEVER_ASKED,
    NOTE,
    Inquiries,
)
from services.scheduler_extender.server import MAX_POD_BYTES, SchedulerExtenderServer
from tests.effort import examples
from tests.unit.scheduler_extender.builders import (
    HandClock,
    JsonObject,
    a_gpu,
    a_pod,
    a_ref,
    an_allocation,
    given,
    gpuloom_share,
    nvidia_cards,
    some_facts,
)
from tests.unit.scheduler_extender.inquiry_setup import InquiryDesk
from tests.unit.scheduler_extender.nominated_pods import a_ranked_pod

POD = a_ref("pod")


def a_desk(*pods: JsonObject) -> InquiryDesk:
    """Two nodes of one card each."""
    return InquiryDesk(some_facts("n1", a_gpu("GPU-n1")), some_facts("n2", a_gpu("GPU-n2")), pods=pods)


def a_server(desk: InquiryDesk) -> SchedulerExtenderServer:
    return SchedulerExtenderServer(desk.state.ledger, desk.feed, desk.decisions, desk.inquiries)


async def test_a_waiting_pod_that_fits_says_where_it_would_go() -> None:
    found = await a_desk(a_pod(POD)).inquiries.explain_named("default", "pod")

    assert (found.pod, found.standing, found.note) == (POD, PodStanding.FITS, NOTE)
    assert found.request == "gpuloom.dev/gpu-milli: 1000"
    assert found.judgement is not None
    assert [offer.node_name for offer in found.judgement.offers] == ["n1", "n2"]


async def test_a_waiting_pod_that_fits_nowhere_says_why() -> None:
    found = await a_desk(a_pod(POD, gpuloom_share(2000))).inquiries.explain_named("default", "pod")

    assert found.standing is PodStanding.REFUSED
    assert found.judgement is not None
    assert found.judgement.reasons[0].reason == "node has fewer than 2 GPUs outside MIG mode"
    assert found.judgement.changes[0].node_count == 2


async def test_a_bound_pod_says_what_it_has() -> None:
    allocation = an_allocation(POD, given("GPU-n1"), node_uid="uid-n1")
    pod = a_pod(POD, node="n1", allocation=allocation)

    found = await a_desk(pod).inquiries.explain_named("default", "pod")

    assert (found.standing, found.node_name) == (PodStanding.BOUND, "n1")
    assert found.devices == allocation.devices
    assert found.judgement is None


@pytest.mark.parametrize(
    ("pod", "standing", "problem"),
    [
        (a_pod(POD, {"cpu": "1"}), PodStanding.UNMANAGED, ""),
        (a_pod(POD, {"cpu": "1"}, node="n1"), PodStanding.BOUND, ""),
        (a_pod(POD, node="n1", phase="Succeeded"), PodStanding.ENDED, ""),
        (a_pod(POD, allocation="{}"), PodStanding.REFUSED, "the pod carries an allocation that"),
        (a_pod(POD, gpuloom_share(1500)), PodStanding.REFUSED, "1500 is neither a share"),
    ],
)
async def test_each_pod_is_told_how_things_stand(
    pod: JsonObject, standing: PodStanding, problem: str
) -> None:
    found = await a_desk(pod).inquiries.explain_named("default", "pod")

    assert found.standing is standing
    assert problem in found.problem
    assert found.judgement is None


async def test_a_pod_may_have_back_what_its_own_open_bind_holds() -> None:
    desk = InquiryDesk(some_facts("n1", a_gpu("GPU-n1")), pods=[a_pod(POD)])
    desk.state.ledger.begin(Attempt(POD, "n1", an_allocation(POD, given("GPU-n1"), node_uid="uid-n1")))

    own = await desk.inquiries.explain(a_pod(POD))
    other = await desk.inquiries.explain(a_pod(a_ref("other")))

    assert own.standing is PodStanding.FITS
    assert other.standing is PodStanding.REFUSED


async def test_quarantine_and_the_last_decisions_are_told() -> None:
    pod = a_pod(POD)
    desk = a_desk(pod)
    decision = Decision(desk.clock.now(), POD, Verdict.BIND_FAILED, "n1", reason="refused")
    desk.decisions.record(decision)
    for _ in range(FREE_FAILURES + 1):
        desk.quarantine.failed(workload_of(pod), 0.0, refused=True)

    found = await desk.inquiries.explain_named("default", "pod")

    assert (found.standing, found.problem) == (PodStanding.REFUSED, REASON)
    assert found.judgement is not None
    assert found.judgement.fitting_count == 2
    assert found.quarantine is not None
    assert found.quarantine.until == desk.clock.now() + timedelta(seconds=10)
    assert found.decisions == (decision,)


async def test_scheduling_gates_are_mentioned() -> None:
    pod = a_pod(POD)
    pod["spec"]["schedulingGates"] = [{"name": "later"}]

    assert (await a_desk(pod).inquiries.explain(pod)).note == f"{GATED} {NOTE}"


async def test_a_pod_that_is_not_there_is_not_found() -> None:
    desk = a_desk(a_pod(POD))

    for name, uid in (("nobody", ""), ("pod", "uid-of-another")):
        with pytest.raises(NotFoundError, match="no pod default/"):
            await desk.inquiries.explain_named("default", name, uid)


async def test_a_replica_that_does_not_lead_says_who_does() -> None:
    desk = InquiryDesk(unready_reason=lambda: "standby; leader is extender-1")

    for question in (
        desk.inquiries.explain_named("default", "pod"),
        desk.inquiries.explain(a_pod(POD)),
        desk.inquiries.what_if(a_pod(POD), 1),
    ):
        with pytest.raises(NotReadyError, match="not ready: standby; leader is extender-1"):
            await question


async def test_what_if_changes_nothing_and_repeats_itself() -> None:
    desk = a_desk()
    entries = list(desk.state.ledger.entries())

    first = await desk.inquiries.what_if(a_pod(POD), 3)
    second = await desk.inquiries.what_if(a_pod(POD), 3)

    assert first == second
    assert [offer.node_name for offer in first.placed] == ["n1", "n2"]
    assert first.judgement is not None
    assert list(desk.state.ledger.entries()) == entries


async def test_what_if_of_pods_that_are_not_ours_or_make_no_sense() -> None:
    desk = a_desk()

    ours_not = await desk.inquiries.what_if(a_pod(POD, {"cpu": "1"}), 3)
    senseless = await desk.inquiries.what_if(a_pod(POD, gpuloom_share(1500)), 3)

    assert (ours_not.request, ours_not.problem, ours_not.placed) == ("", "", ())
    assert "1500" in senseless.problem


@pytest.mark.parametrize("replicas", [0, MAX_REPLICAS + 1])
async def test_replicas_are_bounded(replicas: int) -> None:
    with pytest.raises(InvalidRequestError, match="replicas must be 1 to 1000"):
        await a_desk().inquiries.what_if(a_pod(POD), replicas)


class BusyClock(HandClock):
    """Time passes with every look at it."""

    def monotonic(self) -> float:
        self.elapsed_s += 0.0004
        return self.elapsed_s

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(0)


async def test_others_go_on_while_a_question_is_worked_out() -> None:
    facts = [some_facts(f"n{number}", a_gpu(f"GPU-{number}")) for number in range(30)]
    desk, turns = InquiryDesk(*facts, clock=BusyClock()), 0
    question = asyncio.create_task(desk.inquiries.what_if(a_pod(POD), 30))

    while not question.done():
        await asyncio.sleep(0)
        turns += 1

    assert len(question.result().placed) == 30
    assert turns > 10


async def test_too_many_questions_at_once_are_asked_to_come_again() -> None:
    facts = [some_facts(f"n{number}", a_gpu(f"GPU-{number}")) for number in range(30)]
    desk = InquiryDesk(*facts, clock=BusyClock())

    answers = await asyncio.gather(
        *(desk.inquiries.explain(a_pod(POD)) for _ in range(MAX_WAITING + 2)), return_exceptions=True
    )
    after = await desk.inquiries.explain(a_pod(POD))

    assert sum(isinstance(answer, NotReadyError) for answer in answers) == 2
    assert after.standing is PodStanding.FITS


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b"null", b'{"spec": 1}', b"{" * 100_000, b"x" * (MAX_POD_BYTES + 1)]
)
async def test_what_is_no_pod_is_refused(text: bytes) -> None:
    server = a_server(a_desk())

    with pytest.raises(InvalidRequestError, match="pod_json"):
        await server.WhatIf(pb.WhatIfRequest(pod_json=text), None)
    with pytest.raises(InvalidRequestError, match="pod"):
        await server.Explain(pb.ExplainRequest(pod_json=text), None)


async def test_a_question_without_a_pod_is_refused() -> None:
    server = a_server(a_desk())

    with pytest.raises(InvalidRequestError, match="name a pod"):
        await server.Explain(pb.ExplainRequest(), None)
    with pytest.raises(InvalidRequestError, match="no name"):
        await server.Explain(pb.ExplainRequest(pod=PodRef(namespace="default")), None)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2000) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(80))
@given_any(
    st.sampled_from(["metadata", "spec", "status"]),
    st.sampled_from(
        ["name", "uid", "namespace", "annotations", "ownerReferences", "containers", "nodeName", "phase"]
    ),
    _JSON,
)
def test_whatever_a_pod_holds_is_answered_or_refused(part: str, key: str, value: object) -> None:
    pod = a_pod(POD)
    pod[part][key] = value

    async def ask(inquiries: Inquiries) -> None:
        for question in (inquiries.explain(pod), inquiries.what_if(pod, 2)):
            try:
                await question
            except InvalidRequestError:
                continue

    asyncio.run(ask(a_desk().inquiries))


async def test_promised_room_counts_as_taken_for_pods_of_at_most_that_priority() -> None:
    urgent = a_ranked_pod("urgent", 5, nominated="n1")
    desk = a_desk(urgent, a_ranked_pod("low"), a_ranked_pod("high", 6))

    found = [await desk.inquiries.explain_named("default", name) for name in ("low", "high", "urgent")]
    planned = await desk.inquiries.what_if(a_ranked_pod("low"), 2)

    assert [one.judgement.fitting_count for one in found if one.judgement] == [1, 2, 2]
    assert [one.note for one in found] == [f"{KEPT_NOTE.format(1)} {NOTE}", NOTE, NOTE]
    assert [offer.node_name for offer in planned.placed] == ["n2"]
    assert planned.note == f"{KEPT_NOTE.format(1)} {NOTE}"


async def test_a_node_that_is_kept_for_a_pod_that_waits_for_room_says_so() -> None:
    holder, given_there = a_ref("holder"), an_allocation(a_ref("holder"), given("GPU-n1"), node_uid="uid-n1")
    urgent = a_ranked_pod("urgent", 5, nominated="n1")
    desk = InquiryDesk(
        some_facts("n1", a_gpu("GPU-n1")), pods=[a_pod(holder, node="n1", allocation=given_there), urgent]
    )

    found = await desk.inquiries.explain(a_ranked_pod("low"))

    assert found.judgement is not None
    assert [(reason.reason, reason.resolvable) for reason in found.judgement.reasons] == [(KEPT, True)]


async def test_a_pod_of_another_scheduler_is_told_so_first() -> None:
    pod = a_pod(POD)
    pod["spec"]["schedulerName"] = "volcano"
    desk = a_desk(pod)
    desk.schedulers.note_call(a_pod(a_ref("other")))

    found = await desk.inquiries.explain_named("default", "pod")

    assert found.standing is PodStanding.OTHER_SCHEDULER
    assert "'volcano'" in found.problem
    assert "default-scheduler" in found.problem
    assert found.judgement is not None


async def test_before_any_scheduler_has_asked_nobody_is_called_another() -> None:
    pod = a_pod(POD)
    pod["spec"]["schedulerName"] = "volcano"
    desk = InquiryDesk(some_facts("n1", a_gpu("GPU-n1")), pods=[pod], schedulers=())

    found = await desk.inquiries.explain_named("default", "pod")

    assert found.standing is PodStanding.FITS
    assert NEVER_ASKED in found.note


async def test_a_misspelled_wish_is_named() -> None:
    pod = a_pod(POD, annotations={"gpuloom.dev/gpu-modell": "A100"})

    found = await a_desk(pod).inquiries.explain_named("default", "pod")

    assert found.standing is PodStanding.FITS
    assert "did you mean gpuloom.dev/gpu-model?" in found.warnings[0]


async def test_a_pod_that_kube_scheduler_refuses_by_itself_is_explained_all_the_same() -> None:
    """Its event says "Insufficient nvidia.com/gpu", and the extender is never asked."""
    nvidia = some_facts("v1", *(a_gpu(f"GPU-v1-{n}", n) for n in range(8)), mode=NodeMode.NVIDIA)
    desk = InquiryDesk(nvidia, pods=[a_pod(POD, nvidia_cards(16))])

    found = await desk.inquiries.explain_named("default", "pod")

    assert found.standing is PodStanding.REFUSED
    assert found.judgement is not None
    assert [reason.reason for reason in found.judgement.reasons] == [
        "node has fewer than 16 GPUs outside MIG mode"
    ]
    assert [miss.has for miss in found.judgement.near_misses] == ["8 of 16 GPUs free"]
    assert found.judgement.changes[0].change == "nvidia.com/gpu: 8 instead of nvidia.com/gpu: 16"


async def test_a_pod_that_asks_for_both_kinds_of_gpus_is_told_to_choose() -> None:
    both = a_pod(POD, {**nvidia_cards(1), **gpuloom_share(500)})

    found = await a_desk(both).inquiries.explain_named("default", "pod")

    assert found.standing is PodStanding.REFUSED
    assert "either for nvidia.com/* or for gpuloom.dev/*" in found.problem
