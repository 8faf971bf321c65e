"""A card is free when its pod has left the node, and not before, whatever is written or forgotten of it."""

import pytest

from gpuloom.model.node import PodRef
from gpuloom.placement.occupancy.claims import UNRESERVED
from gpuloom.placement.occupancy.taken import CONTESTED
from tests.unit.scheduler_extender.builders import gpuloom_share, nvidia_cards
from tests.unit.scheduler_extender.model.machines import Machine, Owed
from tests.unit.scheduler_extender.model.replica import SETTLE_S
from tests.unit.scheduler_extender.model.world import World

NODES = ("v1", "g1", "e1")
"""Where the kubelet, the container runtime and Kubernetes itself tell who has devices."""
LONG_S = int(2 * SETTLE_S)


class Scene:
    """One node whose cards one pod has all."""

    def __init__(self, node: str, *, started: bool = True) -> None:
        self.world = World([node])
        self.machine: Machine = self.world.machines[node]
        self.place("a")
        if started:
            self.machine.start(self.owed("a"), self.world.clock.elapsed_s)
            self.owed("a").shown = True
            self.world.pass_time(LONG_S)

    def place(self, name: str) -> None:
        resources = nvidia_cards(2) if self.machine.name == "v1" else gpuloom_share(1000)
        self.world.create(name, resources)
        self.hear()
        task = self.world.ask(self.ref(name), self.machine.name)
        while task.waits_for is not None:
            task.waits_for.serve()
            self.world.go_on(task)
        self.hear()

    def ref(self, name: str) -> PodRef:
        return next(ref for ref in reversed(self.world.known) if ref.name == name)

    def owed(self, name: str) -> Owed:
        return self.machine.owed[self.ref(name).uid]

    def hear(self) -> None:
        for replica in self.world.replicas:
            replica.hear_pods(len(self.world.api.log))

    def force_delete(self, name: str = "a") -> None:
        self.world.force_delete(name)
        self.hear()

    def end_container(self, name: str = "a") -> None:
        self.world.end_container(self.machine, self.owed(name))

    def show(self, phase: str, state: str) -> None:
        self.world.api.show("a", phase, state)
        self.hear()

    @property
    def closed_reason(self) -> str:
        view = self.world.replica.state.views.view(self.machine.name)
        assert view is not None
        return view.closed_reason or view.gpus[0].closed_reason

    @property
    def free(self) -> bool:
        view = self.world.replica.state.views.view(self.machine.name)
        assert view is not None
        return not view.closed_reason and all(card.untouched for card in view.gpus)


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("node", NODES)
def test_a_force_deleted_pod_that_computes_nothing_has_its_card_until_its_containers_are_gone(
    node: str, remembers: bool
) -> None:
    scene = Scene(node)

    scene.force_delete()
    if not remembers:
        scene.machine.restart_agent()
    scene.world.pass_time(LONG_S)
    while_it_runs = (scene.free, scene.world.overbooked())
    scene.end_container()
    scene.world.pass_time(2)

    assert while_it_runs == (False, "")
    assert scene.free


def test_a_kubelet_that_forgot_a_pod_is_sent_no_other_while_that_one_runs() -> None:
    """Whichever card is left free, it may choose the one in use."""
    scene = Scene("v1")
    scene.force_delete()

    assert scene.closed_reason == UNRESERVED


@pytest.mark.parametrize("node", NODES)
def test_a_force_deleted_pod_that_had_not_started_has_its_card_until_it_would_be_there(node: str) -> None:
    scene = Scene(node, started=False)
    scene.force_delete()
    del scene.machine.owed[scene.ref("a").uid]

    scene.world.pass_time(int(SETTLE_S) - 1)
    before = scene.free
    scene.world.pass_time(2)

    assert (before, scene.free) == (False, True)


def test_a_pod_between_two_runs_of_its_container_has_not_left() -> None:
    """The runtime lists nothing meanwhile, and a new agent remembers nobody."""
    scene = Scene("g1")
    scene.owed("a").between_runs = True
    scene.machine.restart_agent()
    scene.world.pass_time(2)
    gap = scene.machine.reports[-1]
    scene.owed("a").between_runs = False
    scene.world.pass_time(2)

    scene.force_delete()
    scene.machine.said = gap
    scene.world.hear_facts()

    assert not gap.facts.state.holders
    assert (scene.free, scene.world.overbooked()) == (False, "")


@pytest.mark.parametrize("state", ["", "running", "waiting"])
@pytest.mark.parametrize("node", NODES)
def test_a_young_pod_that_somebody_calls_failed_has_its_card_until_its_kubelet_says_so(
    node: str, state: str
) -> None:
    scene = Scene(node, started=False)
    if state:
        scene.machine.start(scene.owed("a"), scene.world.clock.elapsed_s)

    scene.show("Failed", state)
    called_failed = (scene.free, scene.world.overbooked())
    scene.end_container()
    scene.show("Failed", "terminated")
    scene.world.pass_time(2)

    assert called_failed == (False, "")
    assert scene.free


@pytest.mark.parametrize("node", NODES)
def test_a_pod_that_is_shown_running_after_its_end_has_its_card_again(node: str) -> None:
    scene = Scene(node)
    scene.machine.blind = True
    scene.owed("a").between_runs = True
    scene.machine.restart_agent()
    scene.owed("a").shown = False
    scene.show("Failed", "terminated")
    if node == "e1":
        scene.machine.owed.clear()
    scene.machine.report(scene.world.clock.elapsed_s)
    scene.world.hear_facts()
    ended = scene.free

    scene.show("Running", "running")

    assert (ended, scene.free) == (True, False)


def test_a_card_that_was_given_away_before_its_pod_ran_again_is_closed_with_the_reason() -> None:
    scene = Scene("g1")
    scene.machine.owed.clear()
    scene.machine.report(scene.world.clock.elapsed_s)
    scene.world.hear_facts()
    scene.show("Failed", "terminated")
    scene.place("b")

    scene.show("Running", "running")

    assert scene.closed_reason == CONTESTED


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("node", NODES)
def test_after_an_ordinary_end_the_card_is_free_within_a_moment(node: str, phase: str, blind: bool) -> None:
    """A job that completed, a pod that was evicted, or one that its kubelet ended and then deleted."""
    scene = Scene(node)
    scene.machine.blind = blind

    scene.end_container()
    scene.show(phase, "terminated")
    scene.world.pass_time(2)
    after_its_end = scene.free
    scene.world.api.delete("a")
    scene.hear()

    assert (after_its_end, scene.free) == (True, True)


@pytest.mark.parametrize("node", NODES)
def test_a_machine_that_was_booted_anew_has_nothing_of_a_deleted_pod(node: str) -> None:
    scene = Scene(node)
    scene.force_delete()

    scene.world.reboot(scene.machine)
    scene.world.pass_time(LONG_S)

    assert scene.free


def test_no_time_counts_while_discovery_is_silent() -> None:
    """What it said last may be from before the pod started, however long ago that was."""
    scene = Scene("e1", started=False)
    scene.world.silent_since_s = scene.world.clock.elapsed_s
    scene.force_delete()

    scene.world.pass_time(LONG_S)
    scene.world.silent_since_s = None
    scene.world.hear_facts()

    assert (scene.free, scene.world.overbooked()) == (False, "")
