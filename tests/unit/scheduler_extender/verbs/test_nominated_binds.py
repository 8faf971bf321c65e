"""Bind beside nominated pods: what they were promised is given to none of at most their priority."""

from gpuloom.codec.allocation import decode_allocation
from gpuloom.errors import DeadlineError
from gpuloom.kube.client import PodBinding
from gpuloom.names import ANNOTATION_ALLOCATION
from gpuloom.placement.reasons import KEPT
from tests.unit.scheduler_extender.bind_setup import POD, Desk
from tests.unit.scheduler_extender.builders import a_ref, gpuloom_share
from tests.unit.scheduler_extender.nominated_pods import LATE, a_ranked_pod


def given_by(binding: PodBinding) -> list[str]:
    allocation = decode_allocation(binding.annotations[ANNOTATION_ALLOCATION])
    return [item.device.gpu_uuid for item in allocation.devices]


async def test_a_bind_takes_nothing_that_a_nominated_pod_of_its_priority_was_promised() -> None:
    urgent = a_ranked_pod("urgent", 5, nominated="n1")
    desk = Desk(urgent, *(a_ranked_pod(name, 5) for name in ("first", "second")))

    answers = [await desk.bind("n1", a_ref(name)) for name in ("first", "second", "urgent")]

    assert answers == ["", "not enough free GPUs: 1 asked", ""]
    assert sorted(given_by(desk.api.bindings[0]) + given_by(desk.api.bindings[1])) == ["GPU-n1-0", "GPU-n1-1"]


async def test_a_bind_of_a_higher_priority_may_take_what_a_nominated_pod_was_promised() -> None:
    desk = Desk(a_ranked_pod("promised", 5, gpuloom_share(2000), nominated="n1"), a_ranked_pod(POD, 6))

    assert await desk.bind() == ""
    assert "not enough free GPUs" in await desk.bind("n1", a_ref("promised"))


async def test_a_bind_is_refused_where_a_nominated_pod_waits_for_room() -> None:
    desk = Desk(a_ranked_pod("first"), a_ranked_pod(POD))
    await desk.bind("n1", a_ref("first"))
    desk.observe(a_ranked_pod("urgent", 5, gpuloom_share(2000), nominated="n1"))

    assert await desk.bind() == KEPT
    assert await desk.bind("n2") == ""


async def test_a_bind_that_is_asked_again_keeps_its_devices_beside_a_later_nomination() -> None:
    desk = Desk(a_ranked_pod(POD), outcomes=[DeadlineError("no answer")])
    await desk.bind()
    desk.observe(a_ranked_pod("urgent", 5, gpuloom_share(2000), nominated="n1"))

    assert await desk.bind() == ""
    assert len({tuple(given_by(binding)) for binding in desk.api.bindings}) == 1


async def test_of_two_equal_pods_nominated_to_one_node_the_older_gets_it() -> None:
    both = gpuloom_share(2000)
    older = a_ranked_pod("older", 5, both, nominated="n1")
    younger = a_ranked_pod("younger", 5, both, nominated="n1", created=LATE)
    desk = Desk(younger, older)

    answers = [await desk.bind("n1", a_ref(name)) for name in ("younger", "older", "younger")]

    assert [not answer for answer in answers] == [False, True, False]
    assert await desk.bind("n2", a_ref("younger")) == ""
