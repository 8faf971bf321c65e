"""A pod that a filter showed us, and that is bound before the informer shows it."""

import orjson

from gpuloom.errors import ConflictError, NotFoundError, UnavailableError
from gpuloom.kube.cache import Change
from gpuloom.placement.points import ScoreWeights
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import Preferences
from services.scheduler_extender.verbs.binding import MOST_EXPECTED
from services.scheduler_extender.verbs.verbs import Verbs
from tests.unit.scheduler_extender.bind_setup import POD, Desk
from tests.unit.scheduler_extender.builders import JsonObject, a_pod, a_ref, gpuloom_share


def unreadable() -> UnavailableError:
    return UnavailableError("nobody should read a pod that is known")


def a_desk(*evaluator: ConflictError | NotFoundError | None) -> Desk:
    """The informer shows no pod, and there is no other way to know one."""
    desk = Desk(outcomes=evaluator)
    desk.api.unreadable = unreadable()
    return desk


async def test_it_is_bound_as_it_was_shown_without_being_read() -> None:
    desk = a_desk()
    desk.bindings.expect(a_pod(POD, version=7))

    answer = await desk.bind()

    assert answer == ""
    assert [(binding.uid, binding.resource_version) for binding in desk.api.bindings] == [(POD.uid, "7")]
    assert desk.held_cards() == 1


async def test_a_filter_shows_it() -> None:
    desk = a_desk()
    verbs = Verbs(desk.context, desk.bindings, Preferences(8, Evaluator(ScoreWeights())))
    call = {"Pod": a_pod(POD, version=7), "NodeNames": ["n1", "n2"]}

    (node,) = orjson.loads(await verbs.answer("filter", orjson.dumps(call)))["NodeNames"]

    assert await desk.bind(node) == ""


async def test_one_that_changed_since_is_bound_as_it_is_now() -> None:
    desk = Desk(outcomes=[ConflictError("version"), None])
    desk.bindings.expect(a_pod(POD, version=7))
    desk.api.present["pod"] = a_pod(POD, gpuloom_share(2000), version=8)

    answer = await desk.bind()

    assert answer == ""
    assert [binding.resource_version for binding in desk.api.bindings] == ["7", "8"]
    assert desk.held_cards() == 2


async def test_what_the_informer_shows_comes_before_what_was_shown_earlier() -> None:
    desk = a_desk()
    desk.bindings.expect(a_pod(POD, version=7))
    desk.observe(a_pod(POD, version=9))

    await desk.bind()

    assert [binding.resource_version for binding in desk.api.bindings] == ["9"]


async def test_it_is_good_for_one_bind() -> None:
    desk = Desk()
    desk.bindings.expect(a_pod(POD, version=7))
    await desk.bind()

    answer = await desk.bind()

    assert answer == "the pod is gone"


async def test_one_that_is_gone_keeps_its_devices_for_now() -> None:
    desk = Desk(outcomes=[NotFoundError("gone")])
    desk.bindings.expect(a_pod(POD, version=7))

    answer = await desk.bind()

    assert (answer, desk.held_cards()) == ("the pod is gone", 1)


async def test_one_without_a_version_is_read() -> None:
    shown: JsonObject = a_pod(POD)
    del shown["metadata"]["resourceVersion"]
    desk = Desk()
    desk.api.present["pod"] = a_pod(POD, version=8)
    desk.bindings.expect(shown)

    await desk.bind()

    assert [binding.resource_version for binding in desk.api.bindings] == ["8"]


async def test_only_the_newest_are_remembered() -> None:
    desk = a_desk()
    for number in range(MOST_EXPECTED + 1):
        desk.bindings.expect(a_pod(a_ref(f"pod-{number}"), version=7))

    oldest = await desk.bind("n1", a_ref("pod-0"))
    second = await desk.bind("n1", a_ref("pod-1"))

    assert "can't be read" in oldest
    assert second == ""


async def test_one_that_was_bound_and_is_going_is_not_bound_again_beside_what_it_had() -> None:
    """kube-scheduler, far behind, shows it once more as it was before."""
    desk = Desk(a_pod(POD, version=7))
    await desk.bind()
    bound = a_pod(POD, node="n1", version=8, annotations=desk.api.bindings[0].annotations)
    desk.observe(bound)
    desk.api.shown.clear()
    desk.api.present.clear()
    desk.state.observe_pod(Change(bound, None))
    desk.bindings.expect(a_pod(POD, version=7))

    answer = await desk.bind()

    assert answer == "the pod is gone"
    assert len(desk.api.bindings) == 1
    assert desk.held_cards() == 1
