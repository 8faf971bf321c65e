"""A small cluster around the real ledger, views, bindings and takeovers, every step of which a test decides.

The extenders' calls to Kubernetes stop half-way: a test says when the server acts on a call, when its answer
arrives, and whether the caller waited for it. A call whose caller gave up stays on its way and may act later.
There are two extenders: one that leads, or is taking over, and a warm standby. A leader that loses its lease
is gone, or was paused: then what it was doing goes on when it wakes up, at any later moment.
What the model takes as given: facts that are trusted and not stale are at most AGENT_TTL_S + DISCOVERY_TTL_S
old; containers start and are published within their bounds; the kubelet alone reports containers as ended,
while anybody may write a phase; what became of nodes is heard before what later became of pods. What a dead
extender knew of pods that vanished lives on only in what their nodes show and in what a standby has watched,
so an extender that does not lead starts or lists afresh only when the nodes show all of that, and no agent
restarts while an extender knows of such a pod by that agent alone. A node registers again only when the nodes
show all of that, too: to the ledger it is another one, and what was to be released there before is forgotten.
What a DRA driver gives out everybody sees at once: only the node shows it. A Binding for a pod that can't be
stamped is given up by the server when its time is over; every other one may act later.
Where the server is set back to a backup, it was down: nothing that was sent before is on its way any more,
extenders have heard what it last said, and whoever led has lost its lease. Kubelets go on with what they had,
and start again what they are shown.
"""

from collections.abc import Iterable
from random import Random
from typing import Any

from gpuloom.codec.pod import bound_node, is_terminal
from gpuloom.errors import DeadlineError, GpuloomError, UnavailableError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import PodBinding
from gpuloom.kube.objects import uid_of
from gpuloom.model.gpu import DeviceRef, Gpu
from gpuloom.model.node import NodeMode, PodRef
from gpuloom.names import ANNOTATION_EPOCH
from gpuloom.placement.devices import NodeView
from services.scheduler_extender.core.verbs.wire import BindCall
from services.scheduler_extender.leadership.takeover import take_over
from tests.unit.scheduler_extender.builders import HandClock, JsonObject, a_gpu, a_node, a_pod
from tests.unit.scheduler_extender.consistency import miscounted, out_of_step
from tests.unit.scheduler_extender.model.api_server import ApiServer
from tests.unit.scheduler_extender.model.calls import Call, Task
from tests.unit.scheduler_extender.model.holds import Promises
from tests.unit.scheduler_extender.model.machines import Machine, Owed
from tests.unit.scheduler_extender.model.planning import as_planned_for
from tests.unit.scheduler_extender.model.replica import BIND_TIMEOUT_S, DISCOVERY_TTL_S, Replica

PRIORITIES = {"c": 1, "d": 1}
"""Of pods by their name; the others have none."""
CORES = {"b": 2, "c": 4, "d": 8}
"""That pods ask for, by their name; the others ask for one."""


class World:
    def __init__(self, nodes: Iterable[str]) -> None:
        self.clock = HandClock()
        self.chance = Random(0)
        self.api = ApiServer()
        self.node_log: list[Change] = []
        self.machines: dict[str, Machine] = {}
        self.silent_since_s: float | None = None
        self.tasks: list[Task] = []
        self.on_their_way: list[Call] = []
        self.known: list[PodRef] = []
        self.promises = Promises(self.api.holds, self.clock)
        self.reserved = False
        """Whether there is a GPUReservation."""
        self.planned = False
        """Whether pods are in gangs, and may use reservations."""
        self.planning_task: Task | None = None
        self._serial = 0
        for name in nodes:
            self._install(name)
        self.replica = Replica(self)
        self.replica.leads = True
        self.standby: Replica | None = Replica(self)
        self.takeover: Task | None = None

    @property
    def replicas(self) -> list[Replica]:
        return [self.replica] if self.standby is None else [self.replica, self.standby]

    @property
    def serves(self) -> bool:
        return self.takeover is None

    def facts_are_stale(self) -> bool:
        since_s = self.silent_since_s
        return since_s is not None and self.clock.elapsed_s - since_s > DISCOVERY_TTL_S

    def create(
        self,
        name: str,
        resources: dict[str, str],
        node: str = "",
        profile: str = "",
        init: dict[str, str] | None = None,
    ) -> None:
        self._serial += 1
        ref = PodRef("default", name, f"uid-{name}-{self._serial}")
        self.known.append(ref)
        notes = {"gpuloom.dev/mig-profile": profile} if profile else {}
        asked = {**resources, "cpu": str(CORES.get(name, 1)), "memory": "1Gi"}
        made = a_pod(ref, asked, node=node, annotations=notes)
        made["spec"]["priority"] = PRIORITIES.get(name, 0)
        if init is not None:
            made["spec"]["initContainers"] = [{"name": "first", "resources": {"limits": init}}]
        pod = self.api.create(as_planned_for(made) if self.planned else made)
        if node:
            self.machines[node].accept(pod, self.clock.elapsed_s)

    def ask(self, ref: PodRef, node: str) -> Task:
        """kube-scheduler asks for a bind: for the first time, again, elsewhere, or much too late."""
        bind: Any = self.replica.bindings.bind(BindCall(ref.namespace, ref.name, ref.uid, node))
        task = Task(bind)
        if task.waits_for is not None:
            self.tasks.append(task)
        return task

    def is_planning(self) -> bool:
        task = self.planning_task
        return task is not None and task.waits_for is not None and task in self.tasks

    def go_on(self, task: Task) -> None:
        task.go_on()
        self._drop_finished()

    def give_up(self, task: Task, error: GpuloomError) -> None:
        call = task.give_up_waiting(error)
        if not call.acted:
            self.on_their_way.append(call)
        self._drop_finished()

    def apply(self, binding: PodBinding, sent_s: float) -> JsonObject:
        if self._given_up(binding, sent_s):
            raise DeadlineError("given up by the server")
        pod = self.api.bind(binding)
        self.machines[binding.node].accept(pod, self.clock.elapsed_s)
        return pod

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.elapsed_s += 1.0
            for machine in self.machines.values():
                machine.pass_time(self.clock.elapsed_s)
                if not machine.quiet:
                    machine.report(self.clock.elapsed_s)
            for replica in self.replicas:
                replica.hear_facts()
                replica.state.take_reopened()

    def wait(self) -> None:
        """Somebody waits for a second."""
        self.pass_time(1)

    def hear_facts(self) -> None:
        for replica in self.replicas:
            replica.hear_facts()

    def force_delete(self, name: str) -> None:
        """Kubernetes and the kubelet forget it; its containers run on."""
        uid = uid_of(self.api.pods[name])
        for machine in self.machines.values():
            if uid in machine.owed:
                machine.owed[uid].vanished_at = len(self.api.log)
                machine.owed[uid].keep_listed_only()
        self.api.delete(name)

    def may_restart_agent(self, machine: Machine) -> bool:
        vanished = [uid for uid, owed in machine.owed.items() if owed.vanished_at is not None]
        ledgers = [replica.state.ledger for replica in self.replicas]
        return all(ledger.has_heard_of(uid) for uid in vanished for ledger in ledgers)

    def reboot(self, machine: Machine) -> None:
        alive = {uid_of(pod) for pod in self.api.pods.values() if _runs_on(pod, machine.name)}
        machine.reboot(alive, self.clock.elapsed_s)

    def end_container(self, machine: Machine, owed: Owed) -> None:
        del machine.owed[owed.pod.uid]
        machine.ended.add(owed.pod.uid)

    def replace(self, machine: Machine) -> None:
        """The machine dies with all that runs on it; another takes its name, and the pods bound to it."""
        for replica in self.replicas:
            replica.state.observe_facts(machine.uid, None)
        self.node_log.append(Change(a_node(machine.name, machine.uid), None))
        # Of nodes there is no backup.
        self.api.backup = None
        successor = self._install(machine.name)
        self.node_log.append(Change(None, a_node(successor.name, successor.uid)))
        for pod in self.api.pods.values():
            if _runs_on(pod, successor.name):
                successor.accept(pod, self.clock.elapsed_s)
        self.hear_facts()

    def change_mode(self, machine: Machine) -> None:
        """The agent starts again in the other mode, and so does or ends NVIDIA's device plugin."""
        bound = [pod for pod in self.api.pods.values() if _runs_on(pod, machine.name)]
        machine.change_mode(bound, self.clock.elapsed_s)

    def may_be_claimed(self, machine: Machine) -> list[DeviceRef]:
        """Nothing of ours can keep a DRA driver from a card that is held, so no walk lets it take one."""
        promised = self.promises.owed(machine, list(machine.owed.values()))
        held = {device.gpu_uuid for owed in promised for device in owed.given}
        return [card for card in machine.may_be_claimed() if card.gpu_uuid not in held]

    def claim(self, machine: Machine, card: DeviceRef) -> None:
        """A DRA driver gives out a card, and the agent and all who hear it see that at once."""
        self._serial += 1
        ref = PodRef("default", f"claims-{self._serial}", f"uid-claims-{self._serial}")
        self.api.create(a_pod(ref, {"cpu": "1"}, node=machine.name))
        machine.claimed[ref] = card
        machine.report(self.clock.elapsed_s)
        machine.reports = machine.reports[-1:]
        self.hear_facts()

    def register_again(self, machine: Machine) -> None:
        """Its Node is deleted and made anew; the machine runs on, but starts nothing that names the old."""
        for replica in self.replicas:
            replica.state.observe_facts(machine.uid, None)
        self.node_log.append(Change(a_node(machine.name, machine.uid), None))
        self._serial += 1
        machine.uid, machine.reports = f"uid-{machine.name}-{self._serial}", []
        self.node_log.append(Change(None, a_node(machine.name, machine.uid)))
        if machine.mode is NodeMode.GPULOOM:
            machine.owed = {uid: owed for uid, owed in machine.owed.items() if owed.started}
        machine.report(self.clock.elapsed_s)
        self.hear_facts()

    def has_room(self, machine: Machine, cards: int = 1) -> bool:
        """Whether the kubelet would admit so many cards more beside all that is bound or runs there."""
        promised = {uid: owed.request.count for uid, owed in machine.owed.items()}
        for pod in self.api.pods.values():
            owed = machine.would_owe(pod, 0.0) if _runs_on(pod, machine.name) else None
            if owed is not None:
                promised[owed.pod.uid] = owed.request.count
        return sum(promised.values()) + cards <= sum(not gpu.mig_enabled for gpu in machine.gpus)

    def may_start_afresh(self) -> bool:
        return all(
            machine.shows(owed)
            for machine in self.machines.values()
            for owed in machine.owed.values()
            if not self.is_bound_to(machine, owed.pod)
        )

    def force_deletable(self) -> list[str]:
        """Between a restore and the listing after it nobody hears of a pod that comes and goes (ADR 19).

        Where somebody else bound it meanwhile, only its node could tell of it.
        """
        names = sorted(self.api.pods)
        if all(replica.history == self.api.history for replica in self.replicas):
            return names
        unseen = {
            owed.pod.name
            for machine in self.machines.values()
            for owed in machine.owed.values()
            if not machine.shows(owed)
        }
        return [name for name in names if name not in unseen]

    def crash(self) -> None:
        """Both extenders die, and one starts from nothing; what the leader has sent stays on its way."""
        self._end_leader()
        self.silent_since_s = None
        self._forget_old_reports()
        for name, pod in self.api.pods.items():
            if not pod["spec"].get("nodeName"):
                self.api.touch(name, ANNOTATION_EPOCH)
        self.api.guarded.clear()
        self.replica, self.standby = Replica(self), None
        self.replica.leads = True

    def fail_over(self, *, paused: bool) -> None:
        """The lease passes to the standby. A paused leader goes on some time, with what it was doing."""
        assert self.standby is not None
        self._end_leader(paused)
        self.replica, self.standby = self.standby, None
        self.takeover = Task(take_over(self.replica))

    def may_restore(self) -> bool:
        """Not where pods that come back and what runs by now are too much together: nobody can help that."""
        if self.api.backup is None:
            return False
        return not any(machine.overbooked(self._revived(machine)) for machine in self.machines.values())

    def restore(self, *, survives: bool) -> None:
        """Kubernetes goes back to the last backup. Who led before leads again, or the standby does."""
        for task in self.tasks:
            while task.waits_for is not None:
                task.give_up_waiting(UnavailableError("the server ended"))
        self.tasks, self.on_their_way = [], []
        for replica in self.replicas:
            replica.hear_last_words()
        for machine in self.machines.values():
            machine.owed |= {owed.pod.uid: owed for owed in self._revived(machine)}
        self.api.restore()
        self.promises.forget()
        self._show_kubelets()
        if survives or self.standby is None:
            self._end_leader()
            self.takeover = Task(take_over(self.replica))
        else:
            self.fail_over(paused=False)

    def _show_kubelets(self) -> None:
        """Kubelets take up again what is bound to them now, and forget the rest as if it had been deleted."""
        for machine in self.machines.values():
            for owed in machine.owed.values():
                pod = self.api.pods.get(owed.pod.name, {})
                if uid_of(pod) == owed.pod.uid and _runs_on(pod, machine.name):
                    owed.vanished_at = None
                elif owed.vanished_at is None:
                    owed.vanished_at = len(self.api.log) - 1
                    owed.keep_listed_only()

    def _revived(self, machine: Machine) -> list[Owed]:
        """What the machine owes pods of the backup that have ended or gone since."""
        backup = self.api.backup
        bound = [pod for pod in (backup[0] if backup else {}).values() if _runs_on(pod, machine.name)]
        owed = (machine.would_owe(pod, self.clock.elapsed_s) for pod in bound)
        return [one for one in owed if one is not None and one.pod.uid not in machine.owed]

    def start_standby(self) -> None:
        self._forget_old_reports()
        self.standby = Replica(self)

    def list_on(self, replica: Replica) -> None:
        self._forget_old_reports()
        replica.list_pods()

    def take_over_further(self) -> None:
        """One step: the server acts on what the takeover stands at, and it hears of it."""
        takeover = self.takeover
        assert takeover is not None
        call = takeover.waits_for
        assert call is not None
        call.serve()
        takeover.go_on()
        if takeover.answer is not None:
            self.takeover = None
            self.replica.leads = True

    def _forget_old_reports(self) -> None:
        """Whoever starts afresh never heard of what only an older report shows."""
        for machine in self.machines.values():
            machine.reports = [machine.said] if machine.said is not None else []

    def _end_leader(self, paused: bool = False) -> None:
        self.replica.leads = False
        takeover, self.takeover = self.takeover, None
        if takeover is not None:
            takeover.kill()
        if not paused:
            calls = [task.kill() for task in self.tasks]
            self.on_their_way += [call for call in calls if call is not None and not call.acted]
            self.tasks = []

    def overbooked(self) -> str:
        """What is owed twice, or would be if the extender gave away all that it believes to be free."""
        heard, machines = self.replica.pods_heard, self.machines.values()
        problems = (each.overbooked(self._coming(each), self._believed(each), heard) for each in machines)
        return next(filter(None, problems), "")

    def out_of_step(self) -> str:
        """What an extender keeps of its nodes, or counts, otherwise than it would make it anew."""
        problems = (
            out_of_step(replica.state, self.machines) or miscounted(replica.state)
            for replica in self.replicas
        )
        return next(filter(None, problems), "")

    def _coming(self, machine: Machine) -> list[Owed]:
        """What Bindings that are on their way may still add here; one of a pod's, whichever comes."""
        calls = [task.waits_for for task in self.tasks if task.waits_for is not None] + self.on_their_way
        coming: dict[str, Owed] = {}
        for call in calls:
            if call.acted or call.binding is None or call.binding.node != machine.name:
                continue
            if self._given_up(call.binding, call.sent_s):
                continue
            try:
                owed = machine.would_owe(self.api.would_bind(call.binding), self.clock.elapsed_s)
            except GpuloomError:
                continue
            if owed is not None:
                coming[owed.pod.uid] = owed
        pods = [*machine.owed.values(), *coming.values()]
        return [*coming.values(), *self.promises.owed(machine, pods)]

    def _given_up(self, binding: PodBinding, sent_s: float) -> bool:
        return binding.pod in self.api.guarded and self.clock.elapsed_s - sent_s > BIND_TIMEOUT_S

    def _believed(self, machine: Machine) -> NodeView | None:
        """What the extender that serves believes of this machine, if it has heard of it."""
        if not self.serves:
            return None
        view = self.replica.state.views.view(machine.name)
        return view if view is not None and view.uid == machine.uid else None

    def has_vanished(self, ref: PodRef) -> bool:
        return uid_of(self.api.pods.get(ref.name, {})) != ref.uid

    def is_bound_to(self, machine: Machine, ref: PodRef) -> bool:
        """Whether Kubernetes says so; of one that was bound in another history it does not."""
        return not self.has_vanished(ref) and bound_node(self.api.pods[ref.name]) == machine.name

    def _drop_finished(self) -> None:
        self.tasks = [task for task in self.tasks if task.waits_for is not None]

    def _install(self, name: str) -> Machine:
        self._serial += 1
        mode = NodeMode.NVIDIA if name.startswith("v") else NodeMode.GPULOOM
        machine = Machine(name, f"uid-{name}-{self._serial}", mode, _gpus(name, self._serial), self.chance)
        machine.report(self.clock.elapsed_s)
        self.machines[name] = machine
        return machine


def _runs_on(pod: JsonObject, node: str) -> bool:
    return bound_node(pod) == node and not is_terminal(pod)


def _gpus(name: str, serial: int) -> tuple[Gpu, ...]:
    """One card, two cards one of them in slices, two cards, and a card in slices before two others."""
    cut = (("3g.20gb", 0), ("3g.20gb", 4))
    slices: dict[str, tuple[tuple[tuple[str, int], ...], ...]] = {
        "g1": ((),),
        "e1": ((),),
        "g2": ((), cut),
        "v1": ((), ()),
        "v2": (cut, (), ()),
    }
    return tuple(a_gpu(f"GPU-{name}-{serial}-{i}", i, slices=places) for i, places in enumerate(slices[name]))
