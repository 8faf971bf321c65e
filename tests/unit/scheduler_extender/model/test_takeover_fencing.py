"""What a leader that was paused or cut off can still do after another took over: nothing that counts.

The same world as that of the random walks, played by hand: each of these stories fails without one of the
steps of a takeover or of a bind.
"""

import pytest

from gpuloom.errors import DeadlineError
from tests.unit.scheduler_extender.builders import gpuloom_share
from tests.unit.scheduler_extender.model.calls import Call, Task
from tests.unit.scheduler_extender.model.world import World

EVERYTHING = 1000


def a_world_with_a_pod(heard: bool = True) -> World:
    """One node of one card, and a pod that wants it whole."""
    world = World(["g1"])
    world.create("old", gpuloom_share(1000))
    if heard:
        world.replica.hear_pods(EVERYTHING)
    return world


def ask_for(world: World, name: str) -> Task:
    ref = next(ref for ref in world.known if ref.name == name)
    return world.ask(ref, "g1")


def call_of(task: Task) -> Call:
    assert task.waits_for is not None
    return task.waits_for


def complete(world: World) -> None:
    while not world.serves:
        world.take_over_further()


def finish(world: World, task: Task) -> str:
    while task.waits_for is not None:
        task.waits_for.serve()
        world.go_on(task)
    assert task.answer is not None
    return task.answer


def node_of(world: World, name: str) -> str:
    return str(world.api.pods[name]["spec"].get("nodeName", ""))


def test_a_binding_that_a_paused_leader_sends_late_is_not_applied() -> None:
    world = a_world_with_a_pod()
    late = ask_for(world, "old")
    world.fail_over(paused=True)
    complete(world)
    world.create("new", gpuloom_share(1000))
    world.replica.hear_pods(EVERYTHING)

    given = finish(world, ask_for(world, "new"))
    refused = finish(world, late)

    assert given == ""
    assert "be sure to be the leader" in refused
    assert (node_of(world, "new"), node_of(world, "old")) == ("g1", "")
    assert not world.overbooked()


def test_a_binding_whose_sender_died_and_that_arrives_late_is_not_applied() -> None:
    world = a_world_with_a_pod()
    ask_for(world, "old")

    world.fail_over(paused=False)
    complete(world)
    for call in world.on_their_way:
        call.serve()

    assert node_of(world, "old") == ""
    assert not world.overbooked()


@pytest.mark.parametrize("steps", range(5))
def test_a_binding_that_lands_during_the_takeover_is_known_before_anything_is_given(steps: int) -> None:
    world = a_world_with_a_pod()
    late = ask_for(world, "old")
    world.fail_over(paused=True)
    for _ in range(steps):
        if not world.serves:
            world.take_over_further()

    call_of(late).serve()
    complete(world)
    world.create("new", gpuloom_share(1000))
    answer = finish(world, ask_for(world, "new"))

    assert (answer == "") == (node_of(world, "old") == "")
    assert not world.overbooked()


def test_a_paused_leader_that_reads_the_pod_only_now_does_not_bind_it() -> None:
    world = a_world_with_a_pod(heard=False)
    reading = ask_for(world, "old")
    world.fail_over(paused=True)
    complete(world)

    answer = finish(world, reading)

    assert answer == "this extender can't be sure to be the leader for long enough"
    assert node_of(world, "old") == ""
    assert not world.overbooked()


def test_a_pod_that_the_standby_had_not_heard_of_is_fenced_too() -> None:
    world = a_world_with_a_pod()
    late = ask_for(world, "old")
    assert world.standby is not None
    assert world.standby.by_uid(world.known[0].uid) is None

    world.fail_over(paused=True)
    complete(world)
    finish(world, late)

    assert node_of(world, "old") == ""


def test_a_binding_that_was_given_up_and_applied_counts_at_the_next_leader() -> None:
    world = a_world_with_a_pod()
    slow = ask_for(world, "old")
    world.give_up(slow, DeadlineError("no answer"))
    for call in world.on_their_way:
        call.serve()

    world.fail_over(paused=False)
    complete(world)
    world.create("new", gpuloom_share(1000))
    answer = finish(world, ask_for(world, "new"))

    assert answer
    assert node_of(world, "new") == ""


def test_a_pod_that_can_not_be_stamped_is_waited_for_until_its_bindings_are_given_up() -> None:
    world = a_world_with_a_pod()
    world.api.guarded.add("old")
    late = ask_for(world, "old")
    world.fail_over(paused=True)
    complete(world)
    world.create("new", gpuloom_share(1000))
    world.replica.hear_pods(EVERYTHING)

    given = finish(world, ask_for(world, "new"))
    finish(world, late)

    assert given == ""
    assert (node_of(world, "new"), node_of(world, "old")) == ("g1", "")
    assert not world.overbooked()


def test_a_takeover_that_is_itself_taken_over_fences_all_before_it() -> None:
    world = a_world_with_a_pod()
    late = ask_for(world, "old")
    world.fail_over(paused=True)
    world.take_over_further()
    world.start_standby()

    world.fail_over(paused=True)
    complete(world)
    finish(world, late)

    assert node_of(world, "old") == ""
    assert not world.overbooked()
