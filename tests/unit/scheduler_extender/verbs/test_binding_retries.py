"""A Binding that meets a changed pod is sent once more, to the pod as it is now."""

from gpuloom.codec.allocation import decode_allocation
from gpuloom.errors import (
    ConflictError,
    DeadlineError,
    GpuloomError,
    InvalidRequestError,
    UnavailableError,
)
from gpuloom.kube.client import PodBinding
from gpuloom.model.ledger import EntryState
from gpuloom.model.node import PodRef
from gpuloom.names import ANNOTATION_ALLOCATION
from tests.unit.scheduler_extender.bind_setup import POD, Desk
from tests.unit.scheduler_extender.builders import (
    a_gpu,
    a_pod,
    a_ref,
    an_allocation,
    given,
    gpuloom_share,
    some_facts,
)


def a_desk(*evaluator: GpuloomError | None, changed_to: int = 2, timeout_s: float = 4.0) -> Desk:
    """The informer shows version 1 of the pod; the API server has it at another."""
    desk = Desk(a_pod(POD, version=1), outcomes=evaluator, timeout_s=timeout_s)
    desk.api.present["pod"] = a_pod(POD, version=changed_to)
    return desk


def versions(desk: Desk) -> list[str | None]:
    return [binding.resource_version for binding in desk.api.bindings]


async def test_a_pod_that_changed_a_moment_ago_is_bound_as_it_is_now() -> None:
    desk = a_desk(ConflictError("version"), None)

    answer = await desk.bind()

    assert answer == ""
    assert versions(desk) == ["1", "2"]
    assert desk.held_cards() == 1


async def test_what_the_pod_asks_for_now_is_what_it_gets() -> None:
    desk = a_desk(ConflictError("version"), None)
    desk.api.present["pod"] = a_pod(POD, gpuloom_share(2000), version=2)

    answer = await desk.bind()

    assert answer == ""
    allocation = decode_allocation(desk.api.bindings[-1].annotations[ANNOTATION_ALLOCATION])
    assert len(allocation.devices) == desk.held_cards() == 2


async def test_a_pod_that_keeps_changing_is_tried_twice_and_holds_nothing_then() -> None:
    async def change(_binding: PodBinding) -> None:
        desk.api.present["pod"] = a_pod(POD, version=1 + len(desk.api.bindings))
        raise ConflictError("version")

    desk = Desk(a_pod(POD, version=1), outcomes=[change, change, None])
    answer = await desk.bind()

    assert "refused the bind" in answer
    assert versions(desk) == ["1", "2"]
    assert desk.held_cards() == 0


async def test_a_pod_that_did_not_change_is_not_tried_again() -> None:
    desk = a_desk(ConflictError("something else"), None, changed_to=1)

    answer = await desk.bind()

    assert "refused the bind" in answer
    assert versions(desk) == ["1"]
    assert desk.held_cards() == 0


async def test_what_is_refused_for_another_reason_is_not_tried_again() -> None:
    desk = a_desk(InvalidRequestError("no such node"), None)

    answer = await desk.bind()

    assert "refused the bind" in answer
    assert versions(desk) == ["1"]


async def test_while_another_binding_may_still_be_applied_none_is_sent_beside_it() -> None:
    desk = a_desk(DeadlineError("late"), ConflictError("version"), None, changed_to=1)
    await desk.bind()

    answer = await desk.bind()

    assert "another bind is not known yet" in answer
    assert versions(desk) == ["1", "1"]
    assert desk.held_cards() == 1


async def test_both_binds_together_take_no_longer_than_one_may() -> None:
    async def slowly(_binding: PodBinding) -> None:
        desk.clock.elapsed_s += 3.5
        raise ConflictError("version")

    desk = Desk(a_pod(POD, version=1), outcomes=[slowly, None])
    desk.api.present["pod"] = a_pod(POD, version=2)
    answer = await desk.bind()

    assert "refused the bind" in answer
    assert versions(desk) == ["1"]
    assert desk.held_cards() == 0


async def test_a_bind_that_may_take_less_than_a_second_is_sent_all_the_same() -> None:
    desk = a_desk(ConflictError("version"), None, timeout_s=0.2)

    answer = await desk.bind()

    assert "refused the bind" in answer
    assert versions(desk) == ["1"]


async def test_a_bind_by_the_uid_of_another_pod_does_not_end_that_one() -> None:
    """The informer has lost sight of it, so only the ledger knows its name."""
    other = a_ref("other")
    desk = Desk(a_pod(POD), a_pod(other, node="n1", allocation=an_allocation(other, given("GPU-n1-0"))))
    del desk.api.shown[other.uid]

    answer = await desk.bind(pod=PodRef(POD.namespace, POD.name, other.uid))

    assert answer == "the pod is gone"
    assert [entry.state for entry in desk.state.ledger.entries()] == [EntryState.OBSERVED]


async def test_a_binding_that_a_proxy_sent_twice_keeps_its_devices_until_the_pod_is_seen_bound() -> None:
    """The first copy was applied, the second is answered with a conflict, and the informer is far behind."""

    async def apply_and_refuse_the_copy(binding: PodBinding) -> None:
        desk.api.present["pod"] = a_pod(POD, node="n1", version=2, annotations=binding.annotations)
        raise ConflictError("already bound")

    desk = Desk(a_pod(POD, version=1), outcomes=[apply_and_refuse_the_copy])

    answer = await desk.bind()
    await desk.bindings.settle()

    assert answer == ""
    assert desk.held_cards() == 1


async def test_a_refused_binding_whose_pod_can_not_be_read_keeps_its_devices() -> None:
    desk = a_desk(ConflictError("already bound"))
    desk.api.unreadable = UnavailableError("no answer")

    answer = await desk.bind()
    await desk.bindings.settle()

    assert "not known yet" in answer
    assert desk.held_cards() == 1


async def test_a_pod_that_was_bound_here_with_other_devices_is_not_bound_as_asked() -> None:
    desk = a_desk(ConflictError("already bound"))
    others = an_allocation(POD, given("GPU-n1-1"), node_uid="uid-n1")
    desk.api.present["pod"] = a_pod(POD, node="n1", version=2, allocation=others)

    answer = await desk.bind()

    assert answer == "the pod is already bound to n1"
    assert desk.held_cards() == 1


async def test_a_bind_is_not_sent_again_to_a_node_that_was_closed_since() -> None:
    desk = Desk(a_pod(POD), outcomes=[UnavailableError("no answer")])
    await desk.bind()

    desk.state.observe_facts("uid-n1", some_facts("n1", a_gpu("GPU-n1-0"), untrusted="the agent is silent"))
    answer = await desk.bind()

    assert answer == "node closed: the agent is silent"
    assert len(desk.api.bindings) == 1
