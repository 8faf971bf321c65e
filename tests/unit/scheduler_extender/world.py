"""A small cluster around the real ledger, views and bindings, every step of which a test decides.

The extender's calls to Kubernetes stop half-way: a test says when the server acts on a call, when its answer
arrives, and whether the caller waited for it. A call whose caller gave up stays on its way and may act later.

What the model takes as given: facts that are trusted and not stale are at most AGENT_TTL_S + DISCOVERY_TTL_S
old; containers start and are published within their bounds; the kubelet alone reports a pod as ended; what
became of nodes is heard before what later became of pods. What a dead extender knew of pods that vanished
lives on only in what their nodes show, so a crash is played only when the nodes show all of that.
"""

from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from gpuloom.codec.pod import bound_node, is_terminal
from gpuloom.errors import GpuloomError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import PodBinding
from gpuloom.kube.objects import uid_of
from gpuloom.model.gpu import Gpu
from gpuloom.model.node import NodeMode, PodRef
from gpuloom.placement.devices import NodeView
from services.scheduler_extender.binding import Bench, Bindings
from services.scheduler_extender.decisions import DecisionLog
from services.scheduler_extender.ledger import Ledger
from services.scheduler_extender.state import ClusterState
from services.scheduler_extender.wire import BindCall
from tests.unit.scheduler_extender.api_server import ApiServer
from tests.unit.scheduler_extender.builders import HandClock, JsonObject, a_gpu, a_node, a_pod
from tests.unit.scheduler_extender.machines import (
    AGENT_TTL_S,
    PUBLISH_WITHIN_S,
    START_WITHIN_S,
    Machine,
    Owed,
)

DISCOVERY_TTL_S = 5.0
SETTLE_S = 30.0
assert SETTLE_S > AGENT_TTL_S + DISCOVERY_TTL_S + START_WITHIN_S + PUBLISH_WITHIN_S


@dataclass
class Call:
    """One call to Kubernetes. `act` is what the server does with it."""

    act: Callable[[], JsonObject]
    binding: PodBinding | None = None
    acted: bool = False
    answer: JsonObject | None = None
    error: GpuloomError | None = None

    def __await__(self) -> Generator["Call", None, JsonObject]:
        yield self
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer

    def serve(self) -> None:
        if self.acted:
            return
        self.acted = True
        try:
            self.answer = self.act()
        except GpuloomError as error:
            self.error = error

    def refuse(self, error: GpuloomError) -> None:
        """The server says so without having acted."""
        if not self.acted:
            self.acted, self.error = True, error


class Task:
    """A bind under way. `waits_for` is the call it stands at, `answer` what it said in the end."""

    def __init__(self, coroutine: Coroutine[Call, None, str]) -> None:
        self._coroutine = coroutine
        self.waits_for: Call | None = None
        self.answer: str | None = None
        self.go_on()

    def go_on(self) -> None:
        """The answer of the call has arrived."""
        try:
            self.waits_for = self._coroutine.send(None)
        except StopIteration as done:
            self.waits_for, self.answer = None, str(done.value)

    def give_up_waiting(self, error: GpuloomError) -> Call:
        """The caller sees an error; the call may still act."""
        call = self.waits_for
        assert call is not None
        try:
            self.waits_for = self._coroutine.throw(error)
        except StopIteration as done:
            self.waits_for, self.answer = None, str(done.value)
        return call

    def kill(self) -> Call | None:
        self._coroutine.close()
        return self.waits_for


class Replica:
    """One run of the extender: the real thing, behind an informer that lags."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._shown: dict[str, JsonObject] = {}
        self.pods_heard = len(world.api.log)
        self.nodes_heard = len(world.node_log)
        self.state = ClusterState(Ledger(SETTLE_S), world.facts_are_stale, world.clock)
        bench = Bench(self.state.ledger, self.state.views, DecisionLog(world.clock), world.clock)
        self.bindings = Bindings(bench, self, self, timeout_s=4.0)
        for machine in world.machines.values():
            self.state.observe_node(Change(None, a_node(machine.name, machine.uid)))
        for pod in world.api.pods.values():
            self._hear(Change(None, pod))
        self.hear_facts()

    def hear_pods(self, count: int) -> None:
        """What became of the nodes before is heard before."""
        self.hear_nodes()
        for change in self._world.api.log[self.pods_heard :][:count]:
            self.pods_heard += 1
            self._hear(change)

    def list_pods(self) -> None:
        """The watch fell behind: what happened in between is never heard."""
        self.hear_nodes()
        self.pods_heard = len(self._world.api.log)
        listed = {uid_of(pod): pod for pod in self._world.api.pods.values()}
        for uid, pod in list(self._shown.items()):
            if uid not in listed:
                self._hear(Change(pod, None))
        for uid, pod in listed.items():
            self._hear(Change(self._shown.get(uid), pod))

    def hear_nodes(self) -> None:
        for change in self._world.node_log[self.nodes_heard :]:
            self.nodes_heard += 1
            self.state.observe_node(change)

    def hear_facts(self) -> None:
        world = self._world
        if world.silent_since_s is not None:
            return
        for machine in world.machines.values():
            self.state.observe_facts(machine.uid, machine.facts(world.clock.elapsed_s))

    def by_uid(self, uid: str) -> JsonObject | None:
        return self._shown.get(uid)

    async def read(self, namespace: str, name: str) -> JsonObject:
        return await Call(lambda: self._world.api.get(name))

    async def bind(self, binding: PodBinding, *, timeout_s: float) -> None:
        await Call(lambda: self._world.apply(binding), binding)

    def _hear(self, change: Change) -> None:
        self._shown.pop(uid_of(change.object), None)
        if change.new is not None:
            self._shown[uid_of(change.new)] = change.new
        self.state.observe_pod(change)


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
        self._serial = 0
        for name in nodes:
            self._install(name)
        self.replica = Replica(self)

    def facts_are_stale(self) -> bool:
        since_s = self.silent_since_s
        return since_s is not None and self.clock.elapsed_s - since_s > DISCOVERY_TTL_S

    def create(self, name: str, resources: dict[str, str], node: str = "", profile: str = "") -> None:
        self._serial += 1
        ref = PodRef("default", name, f"uid-{name}-{self._serial}")
        self.known.append(ref)
        notes = {"gpuloom.dev/mig-profile": profile} if profile else {}
        pod = self.api.create(a_pod(ref, resources, node=node, annotations=notes))
        if node:
            self.machines[node].accept(pod, self.clock.elapsed_s)

    def ask(self, ref: PodRef, node: str) -> Task:
        """kube-scheduler asks for a bind: for the first time, again, elsewhere, or much too late."""
        bind: Any = self.replica.bindings.bind(BindCall(ref.namespace, ref.name, ref.uid, node))
        task = Task(bind)
        if task.waits_for is not None:
            self.tasks.append(task)
        return task

    def go_on(self, task: Task) -> None:
        task.go_on()
        self._drop_finished()

    def give_up(self, task: Task, error: GpuloomError) -> None:
        call = task.give_up_waiting(error)
        if not call.acted:
            self.on_their_way.append(call)
        self._drop_finished()

    def apply(self, binding: PodBinding) -> JsonObject:
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
            self.replica.hear_facts()
            self.replica.state.take_reopened()

    def end_container(self, machine: Machine, owed: Owed) -> None:
        del machine.owed[owed.pod.uid]

    def replace(self, machine: Machine) -> None:
        """The machine dies with all that runs on it; another takes its name, and the pods bound to it."""
        self.replica.state.observe_facts(machine.uid, None)
        self.node_log.append(Change(a_node(machine.name, machine.uid), None))
        successor = self._install(machine.name)
        self.node_log.append(Change(None, a_node(successor.name, successor.uid)))
        for pod in self.api.pods.values():
            if _runs_on(pod, successor.name):
                successor.accept(pod, self.clock.elapsed_s)
        self.replica.hear_facts()

    def has_room(self, machine: Machine) -> bool:
        """Whether the kubelet would admit one card more, counting all that is bound or still runs there."""
        promised = {uid: owed.request.count for uid, owed in machine.owed.items()}
        for pod in self.api.pods.values():
            owed = machine.would_owe(pod, 0.0) if _runs_on(pod, machine.name) else None
            if owed is not None:
                promised[owed.pod.uid] = owed.request.count
        return sum(promised.values()) < 2

    def may_crash(self) -> bool:
        return all(
            machine.shows(owed)
            for machine in self.machines.values()
            for owed in machine.owed.values()
            if self.has_vanished(owed.pod)
        )

    def crash(self) -> None:
        """Another extender takes over; what the old one has sent stays on its way."""
        calls = (task.kill() for task in self.tasks)
        self.on_their_way += [call for call in calls if call is not None and not call.acted]
        self.tasks.clear()
        self.silent_since_s = None
        for machine in self.machines.values():
            machine.reports = [machine.said] if machine.said is not None else []
        for name, pod in self.api.pods.items():
            if not pod["spec"].get("nodeName"):
                self.api.touch(name, "gpuloom.dev/epoch")
        self.replica = Replica(self)

    def overbooked(self) -> str:
        """What is owed twice, or would be if the extender gave away all that it believes to be free."""
        problems = (
            machine.overbooked(self._coming(machine), self._believed(machine))
            for machine in self.machines.values()
        )
        return next(filter(None, problems), "")

    def _coming(self, machine: Machine) -> list[Owed]:
        """What Bindings that are on their way may still add here; one of a pod's, whichever comes."""
        calls = [task.waits_for for task in self.tasks if task.waits_for is not None] + self.on_their_way
        coming: dict[str, Owed] = {}
        for call in calls:
            if call.acted or call.binding is None or call.binding.node != machine.name:
                continue
            try:
                owed = machine.would_owe(self.api.would_bind(call.binding), self.clock.elapsed_s)
            except GpuloomError:
                continue
            if owed is not None:
                coming[owed.pod.uid] = owed
        return list(coming.values())

    def _believed(self, machine: Machine) -> NodeView | None:
        """What the extender believes of this machine, if it has heard of it."""
        view = self.replica.state.views.view(machine.name)
        return view if view is not None and view.uid == machine.uid else None

    def has_vanished(self, ref: PodRef) -> bool:
        return uid_of(self.api.pods.get(ref.name, {})) != ref.uid

    def _drop_finished(self) -> None:
        self.tasks = [task for task in self.tasks if task.waits_for is not None]

    def _install(self, name: str) -> Machine:
        self._serial += 1
        mode = NodeMode.GPULOOM if name.startswith("g") else NodeMode.NVIDIA
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
        "g2": ((), cut),
        "v1": ((), ()),
        "v2": (cut, (), ()),
    }
    return tuple(a_gpu(f"GPU-{name}-{serial}-{i}", i, slices=places) for i, places in enumerate(slices[name]))
