"""Bind: what is chosen, what is held, and what is answered, whatever the API server says."""

import asyncio
from dataclasses import replace

import pytest

from gpuloom.codec.allocation import decode_allocation
from gpuloom.errors import (
    ConflictError,
    DeadlineError,
    GpuloomError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
)
from gpuloom.kube.client import PodBinding
from gpuloom.model.ledger import Verdict
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_ALLOCATION, ANNOTATION_VISIBLE_DEVICES
from tests.unit.scheduler_extender.bind_setup import POD, Desk
from tests.unit.scheduler_extender.builders import (
    JsonObject,
    a_gpu,
    a_pod,
    a_ref,
    an_allocation,
    given,
    gpuloom_share,
    nvidia_cards,
)


def given_by(binding: PodBinding) -> list[str]:
    allocation = decode_allocation(binding.annotations[ANNOTATION_ALLOCATION])
    return [item.device.gpu_uuid for item in allocation.devices]


async def test_a_binding_names_the_pods_uid_and_version_and_carries_its_devices() -> None:
    desk = Desk(a_pod(POD, version=7))

    answer = await desk.bind()

    assert answer == ""
    (binding,) = desk.api.bindings
    assert (binding.pod, binding.node, binding.uid, binding.resource_version) == ("pod", "n1", POD.uid, "7")
    assert decode_allocation(binding.annotations[ANNOTATION_ALLOCATION]).node_uid == "uid-n1"
    assert binding.annotations[ANNOTATION_VISIBLE_DEVICES] == given_by(binding)[0]
    assert binding.annotations["required-plugins.noderesource.dev/container.main"] == '["gpuloom"]'
    assert desk.decisions.newest()[-1].verdict is Verdict.BOUND


async def test_on_an_nvidia_node_the_devices_are_advisory_and_no_device_is_made_visible() -> None:
    desk = Desk(a_pod(POD, nvidia_cards(1)), mode=NodeMode.NVIDIA)

    await desk.bind()

    (binding,) = desk.api.bindings
    assert decode_allocation(binding.annotations[ANNOTATION_ALLOCATION]).advisory
    assert binding.annotations.keys() == {ANNOTATION_ALLOCATION}


async def test_success_alone_does_not_end_the_hold() -> None:
    desk = Desk(a_pod(POD))

    await desk.bind()

    assert desk.held_cards() == 1
    assert desk.state.ledger.attempt(POD.uid, "uid-n1") is not None


async def test_a_bind_asked_again_on_the_same_node_sends_the_same_devices() -> None:
    desk = Desk(a_pod(POD), outcomes=[DeadlineError("late"), None])

    first, second = await desk.bind(), await desk.bind()

    assert "not known yet" in first
    assert second == ""
    assert given_by(desk.api.bindings[0]) == given_by(desk.api.bindings[1])
    assert desk.held_cards() == 1


async def test_a_bind_asked_on_another_node_holds_both_places() -> None:
    desk = Desk(a_pod(POD), outcomes=[DeadlineError("late"), UnavailableError("broken")])

    await desk.bind("n1")
    await desk.bind("n2")

    assert (desk.held_cards("n1"), desk.held_cards("n2")) == (1, 1)


async def test_both_places_are_settled_when_the_pod_is_observed_in_one() -> None:
    desk = Desk(a_pod(POD), outcomes=[DeadlineError("late"), DeadlineError("late")])
    await desk.bind("n1")
    await desk.bind("n2")

    sent = desk.api.bindings[1].annotations[ANNOTATION_ALLOCATION]
    desk.observe(a_pod(POD, node="n2", version=2, allocation=sent))

    assert (desk.held_cards("n1"), desk.held_cards("n2")) == (0, 1)


async def test_a_pod_that_is_bound_to_this_node_already_is_done() -> None:
    bound = a_pod(POD, node="n1", allocation=an_allocation(POD, given("GPU-n1-0"), node_uid="uid-n1"))
    desk = Desk(bound)

    assert await desk.bind() == ""
    assert desk.api.bindings == []


async def test_a_pod_that_is_bound_elsewhere_is_an_error_not_a_success() -> None:
    bound = a_pod(POD, node="n2", allocation=an_allocation(POD, given("GPU-n2-0"), node_uid="uid-n2"))
    desk = Desk(bound)

    assert await desk.bind("n1") == "the pod is already bound to n2"


async def test_a_pod_that_somebody_else_bound_here_is_an_error() -> None:
    desk = Desk(a_pod(POD, node="n1"))

    assert "not by GPULoom" in await desk.bind()


async def test_an_unbound_pod_that_carries_an_allocation_is_refused() -> None:
    desk = Desk(a_pod(POD, allocation=an_allocation(POD, given("GPU-n1-0"), node_uid="uid-n1")))

    answer = await desk.bind()

    assert answer == "the pod carries an allocation that GPULoom did not make; remove it"
    assert desk.held_cards() == 0


@pytest.mark.parametrize(
    ("resources", "reason"),
    [({}, "asks for no GPU"), (gpuloom_share(1500), "1500"), (nvidia_cards(1), "gpuloom.dev/gpu-milli")],
)
async def test_a_pod_that_fits_no_card_is_refused_with_its_reason(
    resources: dict[str, str], reason: str
) -> None:
    desk = Desk(a_pod(POD, resources))

    assert reason in await desk.bind()
    assert desk.api.bindings == []


async def test_a_node_that_does_not_exist_is_refused() -> None:
    assert await Desk(a_pod(POD)).bind("n9") == "node n9 does not exist"


@pytest.mark.parametrize(
    "error",
    [ConflictError("version"), InvalidRequestError("bad"), NotAllowedError("forbidden")],
)
async def test_a_definite_refusal_gives_the_devices_back(error: GpuloomError) -> None:
    desk = Desk(a_pod(POD), outcomes=[error])

    answer = await desk.bind()

    assert answer.startswith("the API server refused the bind")
    assert desk.held_cards() == 0


@pytest.mark.parametrize("error", [DeadlineError("late"), UnavailableError("broken")])
async def test_an_unknown_outcome_keeps_the_hold(error: GpuloomError) -> None:
    desk = Desk(a_pod(POD), outcomes=[error])

    answer = await desk.bind()

    assert "not known yet" in answer
    assert desk.held_cards() == 1


async def test_a_conflict_with_ones_own_earlier_binding_is_a_success() -> None:
    desk = Desk(a_pod(POD, version=1), outcomes=[DeadlineError("late"), ConflictError("bound already")])
    await desk.bind()
    sent = desk.api.bindings[0].annotations[ANNOTATION_ALLOCATION]
    desk.api.present["pod"] = a_pod(POD, node="n1", version=2, allocation=sent)

    assert await desk.bind() == ""
    assert desk.held_cards() == 1


async def test_a_conflict_with_a_binding_elsewhere_keeps_the_hold_until_that_is_observed() -> None:
    desk = Desk(a_pod(POD, version=1), outcomes=[ConflictError("bound already")])
    desk.api.present["pod"] = a_pod(POD, node="n2", version=2)

    answer = await desk.bind("n1")

    assert answer == "the pod is already bound to n2"
    assert desk.held_cards("n1") == 1


async def test_a_refusal_frees_nothing_while_an_earlier_binding_under_that_version_is_open() -> None:
    desk = Desk(a_pod(POD), outcomes=[DeadlineError("late"), NotAllowedError("forbidden")])
    await desk.bind()

    answer = await desk.bind()

    assert "the outcome of another bind is not known yet" in answer
    assert desk.held_cards() == 1


async def test_a_refusal_frees_the_devices_once_the_pod_has_moved_on_from_the_open_version() -> None:
    evaluator = [DeadlineError("late"), InvalidRequestError("bad")]
    desk = Desk(a_pod(POD, version=1), outcomes=evaluator)
    await desk.bind()
    desk.api.present["pod"] = a_pod(POD, version=2)

    await desk.bind()

    assert desk.held_cards() == 0


async def test_a_refusal_frees_nothing_while_another_call_of_the_same_bind_is_under_way() -> None:
    applied = asyncio.Event()

    async def hang(_binding: PodBinding) -> None:
        await applied.wait()

    desk = Desk(a_pod(POD), outcomes=[hang, InvalidRequestError("bad")])
    first = asyncio.create_task(desk.bind())
    await asyncio.sleep(0)

    await desk.bind()
    held = desk.held_cards()
    applied.set()

    assert held == 1
    assert await first == ""


async def test_a_refusal_that_was_read_before_another_call_succeeded_frees_nothing() -> None:
    """The read shows the pod unbound at version 1; meanwhile it is bound under version 2."""
    desk = Desk(a_pod(POD, version=1), outcomes=[ConflictError("version"), None])
    read = desk.api.read

    async def slow_read(namespace: str, name: str) -> JsonObject:
        pod = await read(namespace, name)
        desk.api.show(a_pod(POD, version=2))
        assert await desk.bind() == ""
        return pod

    desk.api.read = slow_read  # type: ignore[method-assign]
    await desk.bind()

    assert desk.held_cards() == 1


async def test_a_cancelled_bind_keeps_its_hold_even_if_the_next_is_refused() -> None:
    async def hang(_binding: PodBinding) -> None:
        await asyncio.Event().wait()

    desk = Desk(a_pod(POD), outcomes=[hang, InvalidRequestError("bad")])
    task = asyncio.create_task(desk.bind())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    await desk.bind()

    assert desk.held_cards() == 1


@pytest.mark.parametrize("namesake", [True, False])
async def test_a_pod_that_is_gone_or_replaced_keeps_its_devices_until_its_node_shows_them_free(
    namesake: bool,
) -> None:
    desk = Desk(a_pod(POD), outcomes=[DeadlineError("late"), ConflictError("UID")])
    await desk.bind()
    desk.api.present = {"pod": a_pod(a_ref("pod", "uid-other"))} if namesake else {}

    answer = await desk.bind()

    assert answer == "the pod is gone"
    assert desk.held_cards() == 1


async def test_the_hold_of_a_pod_that_vanished_unseen_ends_with_its_release() -> None:
    """The informer never shows it: only the refused Binding tells that it is gone."""

    async def vanish(_binding: PodBinding) -> None:
        desk.api.present.clear()
        raise NotFoundError("gone")

    desk = Desk(outcomes=[vanish])
    desk.api.present["pod"] = a_pod(POD)

    answer = await desk.bind()
    held = desk.held_cards()
    for desk.clock.elapsed_s in (0.0, 31.0):
        desk.state.take_reopened()

    assert answer == "the pod is gone"
    assert (held, desk.held_cards()) == (1, 0)


async def test_an_open_bind_of_a_pod_that_the_informer_never_shows_is_looked_after() -> None:
    desk = Desk(outcomes=[UnavailableError("no answer")])
    desk.api.present["pod"] = a_pod(POD)
    await desk.bind()
    await desk.bindings.settle()
    while_present = desk.held_cards()

    desk.api.present.clear()
    await desk.bindings.settle()
    for desk.clock.elapsed_s in (0.0, 31.0):
        desk.state.take_reopened()

    assert (while_present, desk.held_cards()) == (1, 0)


async def test_an_unanswered_bind_gives_its_devices_back_once_the_pod_has_changed_and_is_unbound() -> None:
    """Its Binding names a version that has gone: it was not applied, and never will be."""
    desk = Desk(a_pod(POD, version=7), outcomes=[DeadlineError("late"), DeadlineError("late")])
    await desk.bind("n1")
    await desk.bindings.settle()
    while_open = desk.held_cards("n1")

    desk.observe(a_pod(POD, version=8))
    await desk.bind("n2")
    await desk.bindings.settle()

    assert while_open == 1
    assert (desk.held_cards("n1"), desk.held_cards("n2")) == (0, 1)


async def test_the_last_word_about_a_pod_that_is_bound_after_all_is_bound() -> None:
    async def apply_and_break_off(binding: PodBinding) -> None:
        bound = a_pod(POD, node="n1", version=2, annotations=binding.annotations)
        desk.api.present["pod"] = bound
        raise UnavailableError("no answer")

    desk = Desk(a_pod(POD), outcomes=[apply_and_break_off, ConflictError("bound")])

    answers = [await desk.bind(), await desk.bind()]

    assert answers[0].startswith("the outcome of the bind is not known yet")
    assert answers[1] == ""
    assert [decision.verdict for decision in desk.decisions.newest()] == [Verdict.BIND_FAILED, Verdict.BOUND]


async def test_a_pod_that_the_informer_shows_while_it_is_read_is_taken_from_the_informer() -> None:
    desk = Desk()
    bound = a_pod(
        POD, node="n1", version=2, allocation=an_allocation(POD, given("GPU-n1-0"), node_uid="uid-n1")
    )

    async def read_late(namespace: str, name: str) -> JsonObject:
        desk.observe(bound)
        return a_pod(POD, version=1)

    desk.api.read = read_late  # type: ignore[method-assign]

    assert await desk.bind() == ""
    assert desk.api.bindings == []


@pytest.mark.parametrize("present", [{}, {"pod": a_pod(a_ref("pod", "uid-other"))}])
async def test_a_bind_for_a_pod_that_is_not_there_is_refused(present: dict[str, JsonObject]) -> None:
    desk = Desk()
    desk.api.present = present

    assert await desk.bind() == "the pod is gone"


async def test_an_unreadable_pod_after_a_refusal_keeps_the_hold() -> None:
    desk = Desk(a_pod(POD), outcomes=[ConflictError("version")])
    desk.api.unreadable = UnavailableError("API down")

    answer = await desk.bind()

    assert "not known yet" in answer
    assert desk.held_cards() == 1


async def test_a_slice_whose_name_nobody_knows_is_refused_and_not_held() -> None:
    cut = a_gpu("GPU-0", 0, slices=[("3g.20gb", 0)])
    nameless = replace(cut, mig_instances=tuple(replace(item, uuid="") for item in cut.mig_instances))
    pod = a_pod(POD, gpuloom_share(500), annotations={"gpuloom.dev/mig-profile": "3g.20gb"})
    desk = Desk(pod, gpus=(nameless,))

    answer = await desk.bind()

    assert "no MIG instance" in answer
    assert desk.state.ledger.attempt(POD.uid, "uid-n1") is None


async def test_concurrent_binds_never_get_the_same_card() -> None:
    refs = [a_ref(f"pod-{number}") for number in range(4)]
    desk = Desk(*(a_pod(ref) for ref in refs))

    answers = await asyncio.gather(*(desk.bind("n1", ref) for ref in refs))

    assert sorted(answers) == ["", "", *["not enough free GPUs: 1 asked"] * 2]
    assert len({uuid for binding in desk.api.bindings for uuid in given_by(binding)}) == 2


@pytest.mark.parametrize("replaced", [False, True], ids=["there", "replaced by a namesake"])
async def test_a_pod_that_the_informer_misses_is_read_before_its_devices_are_let_go(replaced: bool) -> None:
    desk = Desk(a_pod(POD), outcomes=[DeadlineError("late")])
    await desk.bind()
    desk.api.shown.clear()
    if replaced:
        desk.api.present[POD.name] = a_pod(replace(POD, uid="uid-namesake"))

    await desk.bindings.settle()
    for desk.clock.elapsed_s in (0.0, 31.0):
        desk.state.take_reopened()

    assert desk.held_cards() == (0 if replaced else 1)
