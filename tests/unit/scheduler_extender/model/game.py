"""Everything that can happen to the small cluster, as moves that a test picks in any order.

Every game has one theme, so that it goes deep where it goes; "all" mixes everything.
"""

from gpuloom.errors import (
    ConflictError,
    DeadlineError,
    InvalidRequestError,
    NotAllowedError,
    UnavailableError,
)
from gpuloom.model.node import NodeMode, PodRef
from gpuloom.names import ANNOTATION_GPU_ARCHITECTURE
from tests.unit.scheduler_extender.model import arenas
from tests.unit.scheduler_extender.model.arenas import EVERYTHING, HALF, NAMES, ONE, SLICE, TWO
from tests.unit.scheduler_extender.model.calls import Call, Task
from tests.unit.scheduler_extender.model.ends import Ends
from tests.unit.scheduler_extender.model.moves import MOVES, Draw, move
from tests.unit.scheduler_extender.model.moves import pick as _pick
from tests.unit.scheduler_extender.model.world import World


class Game(Ends):
    def __init__(self, draw: Draw, theme: str = "") -> None:
        self.theme = theme or _pick(arenas.THEMES, draw)
        nodes, self._kinds = _pick(arenas.of_theme(self.theme), draw)
        self.world = World(nodes)
        self.world.planned = self.theme == "gangs"
        self.length = arenas.LENGTHS.get(self.theme, arenas.USUAL_LENGTH)
        themes = {self.theme} | arenas.INCLUDED.get(self.theme, set())
        self._moves = [name for name, entry in MOVES.items() if themes.intersection(entry.themes)]

    def choices(self) -> list[str]:
        """The moves that are possible now, each as often as it weighs."""
        possible = [(name, MOVES[name]) for name in self._moves]
        return [name for name, entry in possible if entry.possible(self) for _ in range(entry.weight)]

    def play(self, name: str, draw: Draw) -> None:
        MOVES[name].play(self, draw)

    @move("binds", "ends", "reports", "takeovers", "failovers", "nodes")
    def a_pod_is_made(self, draw: Draw) -> None:
        free = [name for name in NAMES if name not in self.world.api.pods]
        if free:
            self._make(_pick(free, draw), draw)

    @move("ends", "reports", "takeovers", "nodes", weight=3)
    def a_pod_is_placed(self, draw: Draw) -> None:
        """The way it mostly goes, so that the cluster fills up."""
        free = [name for name in NAMES if name not in self.world.api.pods]
        unbound = self.unbound()
        if not free and not unbound:
            return
        name = _pick(free or unbound, draw)
        if free:
            self._make(name, draw)
        self._complete_takeover()
        self.world.replica.hear_pods(EVERYTHING)
        ref = next(ref for ref in reversed(self.world.known) if ref.name == name)
        self._finish(self.world.ask(ref, _pick(self.machines(), draw).name))
        self.world.replica.hear_pods(EVERYTHING)
        self._run(ref, seen=draw(2) == 0)

    @move(
        "races",
        "binds",
        "takeovers",
        "failovers",
        "nodes",
        "ends",
        weight=4,
        when=lambda game: bool(game.world.known),
    )
    def a_bind_is_asked_for(self, draw: Draw) -> None:
        """Of the newest pods, dead or alive."""
        if not self.world.serves:
            return
        if draw(2):
            self.world.replica.hear_pods(EVERYTHING)
        task = self.world.ask(_pick(self.world.known[-3:], draw), _pick(self.machines(), draw).name)
        if draw(3) == 0:
            self._finish(task)

    @move("races", "binds", "takeovers", "failovers", "ends", when=lambda game: bool(game.world.api.log))
    def a_pod_is_shown_by_a_filter(self, draw: Draw) -> None:
        """As it is or as it was: kube-scheduler may be behind, and the bind may come much later."""
        seen = [change.new for change in self.world.api.log[-8:] if change.new is not None]
        unbound = [pod for pod in seen if not pod["spec"].get("nodeName")]
        if unbound:
            self.world.replica.bindings.expect(_pick(unbound, draw))

    @move("races", weight=9, when=lambda game: not game.world.known)
    def the_only_pod_is_made(self, draw: Draw) -> None:
        self._make(NAMES[0], draw)

    @move("races", "binds", "takeovers", "failovers", "nodes", when=lambda game: bool(game.world.tasks))
    def the_server_acts(self, draw: Draw) -> None:
        _call(_pick(self.world.tasks, draw)).serve()

    @move("races", "binds", "takeovers", when=lambda game: bool(game.world.tasks))
    def the_server_refuses(self, draw: Draw) -> None:
        task = _pick(self.world.tasks, draw)
        _call(task).refuse(NotAllowedError("forbidden") if draw(2) else InvalidRequestError("invalid"))
        self.world.go_on(task)
        if draw(2):
            self._finish(task)

    @move("races", "binds", "takeovers", when=lambda game: bool(game.applied()))
    def a_copy_of_a_binding_is_refused(self, draw: Draw) -> None:
        """A proxy sent it twice: one was applied, the answer is that of the other."""
        _call(_pick(self.applied(), draw)).error = ConflictError("bound already")

    @move("races", "binds", "takeovers", "failovers", "ends")
    def open_binds_are_looked_after(self, draw: Draw) -> None:
        """As it happens twice a minute."""
        self._finish(Task(self.world.replica.bindings.settle()))

    @move(
        "races", "binds", "takeovers", "failovers", "nodes", weight=4, when=lambda game: bool(game.answered())
    )
    def an_answer_arrives(self, draw: Draw) -> None:
        self.world.go_on(_pick(self.answered(), draw))

    @move(
        "races", "binds", "takeovers", "failovers", "nodes", "ends", when=lambda game: bool(game.world.tasks)
    )
    def a_caller_gives_up(self, draw: Draw) -> None:
        error = DeadlineError("no answer") if draw(2) else UnavailableError("broken off")
        self.world.give_up(_pick(self.world.tasks, draw), error)

    @move(
        "races",
        "binds",
        "takeovers",
        "failovers",
        "nodes",
        "ends",
        when=lambda game: bool(game.world.on_their_way),
    )
    def a_late_call_acts(self, draw: Draw) -> None:
        call = _pick(self.world.on_their_way, draw)
        self.world.on_their_way.remove(call)
        call.serve()

    @move("races", "binds", "takeovers", "failovers", "nodes", "ends")
    def pods_are_heard(self, draw: Draw) -> None:
        """All of them, one, or what is left of them after a gap in the watch."""
        manner = draw(3)
        if manner:
            self.world.replica.hear_pods(EVERYTHING if manner == 1 else 1)
        elif self.world.serves:
            self.world.replica.list_pods()
        elif self.world.may_start_afresh():
            self.world.list_on(self.world.replica)

    @move("races", "binds", "takeovers", when=lambda game: bool(game.world.api.pods))
    def somebody_writes_a_pod(self, draw: Draw) -> None:
        self.world.api.touch(_pick(sorted(self.world.api.pods), draw))
        if draw(2):
            self.world.replica.hear_pods(EVERYTHING)

    @move("ends", "takeovers", "nodes", weight=1, when=lambda game: bool(game.bound_names()))
    def somebody_spoils_the_wishes_of_a_bound_pod(self, draw: Draw) -> None:
        self.world.api.touch(_pick(self.bound_names(), draw), ANNOTATION_GPU_ARCHITECTURE)
        self.world.replica.hear_pods(EVERYTHING)

    @move("binds", "takeovers", "failovers", weight=1, when=lambda game: bool(game.world.api.pods))
    def a_pod_is_resized(self, draw: Draw) -> None:
        """Before or after it is bound; what it had before may never be heard of."""
        self.world.api.resize(_pick(sorted(self.world.api.pods), draw))
        if self.world.serves and draw(2):
            self.world.replica.list_pods()

    @move("binds", "ends", "takeovers", "failovers", "nodes", when=lambda game: bool(game.unbound()))
    def a_pod_is_nominated_or_no_longer(self, draw: Draw) -> None:
        """Before, while or after a bind of it or of others is under way."""
        node = _pick(["", *self.world.machines, *self.world.machines], draw)
        self.world.api.nominate(_pick(self.unbound(), draw), node)
        if draw(2):
            self.world.replica.hear_pods(EVERYTHING)

    @move(
        "binds",
        "ends",
        "reports",
        "takeovers",
        "failovers",
        "nodes",
        when=lambda game: bool(game.world.force_deletable()),
    )
    def a_pod_is_force_deleted(self, draw: Draw) -> None:
        self.world.force_delete(_pick(self.world.force_deletable(), draw))
        if draw(2):
            self.world.replica.hear_pods(EVERYTHING)

    @move("all", weight=1, when=lambda game: bool(game.world.api.pods))
    def a_pod_is_told_to_go(self, draw: Draw) -> None:
        self.world.api.begin_delete(_pick(sorted(self.world.api.pods), draw))

    @move("ends", "reports", "takeovers", "nodes", when=lambda game: bool(game.owed(started=False)))
    def a_container_starts(self, draw: Draw) -> None:
        machine, owed = _pick(self.owed(started=False), draw)
        machine.start(owed, self.world.clock.elapsed_s)
        owed.shown = bool(draw(2))

    @move("ends", "reports", weight=1, when=lambda game: bool(game.owed(started=True)))
    def a_container_ends(self, draw: Draw) -> None:
        """A pod that is still in Kubernetes is reported as ended, sooner or later, and only then."""
        machine, owed = _pick(self.owed(started=True), draw)
        self.world.end_container(machine, owed)
        if draw(2) and self.world.is_bound_to(machine, owed.pod):
            self.world.api.end(owed.pod.name, "Succeeded")
            self.world.replica.hear_pods(EVERYTHING)

    @move("ends", "reports", "takeovers", "nodes")
    def an_agent_reports(self, draw: Draw) -> None:
        manner = draw(4)
        machine = _pick(self.machines(), draw)
        machine.report(self.world.clock.elapsed_s, unnamed=manner == 1, partly=manner == 2)
        self.world.hear_facts()

    @move("reports", weight=1)
    def an_agent_becomes_quiet_or_talks(self, draw: Draw) -> None:
        machine = _pick(self.machines(), draw)
        machine.quiet = not machine.quiet

    @move("reports")
    def facts_go_back(self, draw: Draw) -> None:
        _pick(self.machines(), draw).go_back(draw, self.world.clock.elapsed_s)
        self.world.hear_facts()

    @move("reports", weight=1)
    def an_agent_is_distrusted(self, draw: Draw) -> None:
        _pick(self.machines(), draw).distrusted = True
        self.world.hear_facts()

    @move("reports", weight=1)
    def discovery_falls_silent_or_talks(self, draw: Draw) -> None:
        silent = self.world.silent_since_s is not None
        self.world.silent_since_s = None if silent else self.world.clock.elapsed_s
        self.world.hear_facts()

    @move("ends", "reports", "nodes", weight=3)
    def time_passes(self, draw: Draw) -> None:
        self.world.pass_time((1, 4, 7, 12, 16)[draw(5)])

    @move("nodes", weight=1)
    def a_node_is_replaced(self, draw: Draw) -> None:
        self.world.replace(_pick(self.machines(), draw))
        if draw(2):
            self.world.replica.hear_nodes()

    @move("nodes", weight=1, when=lambda game: game.world.may_start_afresh())
    def a_node_is_registered_again(self, draw: Draw) -> None:
        self.world.register_again(_pick(self.machines(), draw))
        if draw(2):
            self.world.replica.hear_nodes()

    @move("ends", "nodes", weight=1)
    def an_agent_no_longer_knows_a_card(self, draw: Draw) -> None:
        """Only where cards are given by name: elsewhere the kubelet's number of them would change with it."""
        machine = _pick(self.machines(), draw)
        if machine.mode is NodeMode.GPULOOM and not machine.out_of_sight:
            machine.out_of_sight.add(_pick(machine.gpus, draw).uuid)

    @move("modes")
    def a_node_changes_its_mode(self, draw: Draw) -> None:
        """With whatever runs there."""
        machine = _pick(self.machines(), draw)
        if machine.by_environment or not self.world.may_restart_agent(machine):
            return
        self.world.change_mode(machine)
        if draw(3):
            machine.report(self.world.clock.elapsed_s)
            self.world.hear_facts()

    @move("modes", weight=1, when=lambda game: not game.is_anything_under_way())
    def a_resource_claim_takes_a_card(self, draw: Draw) -> None:
        machine = _pick(self.machines(), draw)
        if free := self.world.may_be_claimed(machine):
            self.world.claim(machine, _pick(free, draw))

    @move("modes", weight=1, when=lambda game: any(machine.claimed for machine in game.machines()))
    def a_resource_claim_is_given_back(self, draw: Draw) -> None:
        machine = _pick([machine for machine in self.machines() if machine.claimed], draw)
        del machine.claimed[_pick(sorted(machine.claimed), draw)]

    @move("takeovers", weight=1, when=lambda game: game.world.may_start_afresh())
    def all_extenders_are_replaced(self, draw: Draw) -> None:
        self.world.crash()

    @move("failovers", when=lambda game: game.world.standby is not None)
    def the_standby_becomes_leader(self, draw: Draw) -> None:
        """The leader before crashed, or was paused and does not know yet."""
        self.world.fail_over(paused=bool(draw(2)))
        if draw(4) == 0:
            self._complete_takeover()

    @move("failovers", weight=3, when=lambda game: game.world.serves and not game.world.tasks)
    def a_bind_is_held_up(self, draw: Draw) -> None:
        """Before its Binding is sent, or, of a pod that was not heard of yet, before it is read."""
        free = [name for name in NAMES if name not in self.world.api.pods]
        if free:
            self._make(_pick(free, draw), draw)
            if draw(2):
                self.world.replica.hear_pods(EVERYTHING)
            self.world.ask(self.world.known[-1], _pick(self.machines(), draw).name)

    @move("failovers", weight=4, when=lambda game: not game.world.serves)
    def the_takeover_goes_on(self, draw: Draw) -> None:
        self.world.take_over_further()

    @move("failovers", when=lambda game: game.world.standby is None and game.world.may_start_afresh())
    def a_standby_starts(self, draw: Draw) -> None:
        self.world.start_standby()

    @move("failovers", weight=1, when=lambda game: game.world.standby is not None)
    def the_standby_hears(self, draw: Draw) -> None:
        standby = self.world.standby
        assert standby is not None
        if draw(4) or not self.world.may_start_afresh():
            standby.hear_pods(EVERYTHING if draw(2) else 1)
        else:
            self.world.list_on(standby)

    @move("nodes", "ends", weight=1, when=lambda game: not game.world.tasks and not game.world.on_their_way)
    def somebody_else_binds_a_pod(self, draw: Draw) -> None:
        """Only where the kubelet would admit it: what others overbook is not the extender's doing."""
        machine, name = _pick(self.machines(), draw), _pick(NAMES, draw)
        if name in self.world.api.pods:
            return
        init = TWO if draw(3) == 0 else None
        if machine.mode is NodeMode.GPULOOM:
            self.world.create(name, HALF, node=machine.name)
        elif self.world.has_room(machine, 1 if init is None else 2) and not machine.held_elsewhere:
            self.world.create(name, ONE, node=machine.name, init=init)
        self.world.replica.hear_pods(EVERYTHING)

    def is_anything_under_way(self) -> bool:
        """A bind, or facts that nobody hears now."""
        return bool(self.world.tasks or self.world.on_their_way) or self.world.silent_since_s is not None

    def unbound(self) -> list[str]:
        return [name for name, pod in self.world.api.pods.items() if "nodeName" not in pod["spec"]]

    def bound_names(self) -> list[str]:
        return [name for name, pod in self.world.api.pods.items() if "nodeName" in pod["spec"]]

    def applied(self) -> list[Task]:
        """Whose Binding was applied, and who have not heard of it."""
        answered = [task for task in self.answered() if _call(task).binding is not None]
        return [task for task in answered if _call(task).error is None]

    def answered(self) -> list[Task]:
        return [task for task in self.world.tasks if _call(task).acted]

    def _make(self, name: str, draw: Draw) -> None:
        resources = _pick(self._kinds, draw)
        profile = "3g.20gb" if resources is SLICE else ""
        self.world.create(name, HALF if profile else resources, profile=profile)

    def _complete_takeover(self) -> None:
        while not self.world.serves:
            self.world.take_over_further()

    def _finish(self, task: Task) -> None:
        while task.waits_for is not None:
            task.waits_for.serve()
            self.world.go_on(task)

    def _run(self, ref: PodRef, seen: bool) -> None:
        for machine, owed in self.owed(started=False):
            if owed.pod == ref and seen:
                machine.start(owed, self.world.clock.elapsed_s)
                owed.shown = True
                machine.report(self.world.clock.elapsed_s)
        self.world.hear_facts()


def _call(task: Task) -> Call:
    assert task.waits_for is not None
    return task.waits_for
