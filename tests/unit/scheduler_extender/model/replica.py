"""One extender of the model."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from gpuloom.errors import GpuloomError, NotAllowedError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import PodBinding
from gpuloom.kube.objects import uid_of
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.holds.holding import Holding
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.leadership.takeover import Patience
from services.scheduler_extender.ports import Stamped
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.verbs.binding import BindContext, Bindings
from tests.unit.scheduler_extender.builders import HandClock, JsonObject, a_node, an_observed_pod
from tests.unit.scheduler_extender.model.api_server import ApiServer
from tests.unit.scheduler_extender.model.calls import Call
from tests.unit.scheduler_extender.model.holds import HoldWriter
from tests.unit.scheduler_extender.model.machines import (
    AGENT_TTL_S,
    PUBLISH_WITHIN_S,
    START_WITHIN_S,
    Machine,
)
from tests.unit.scheduler_extender.model.planning import Planning

DISCOVERY_TTL_S = 5.0
SETTLE_S = 30.0
BIND_TIMEOUT_S = 4.0
PATIENCE = Patience(refused_s=6.0 + BIND_TIMEOUT_S)
assert SETTLE_S > AGENT_TTL_S + DISCOVERY_TTL_S + START_WITHIN_S + PUBLISH_WITHIN_S


class Surroundings(Protocol):
    """What a replica sees of the world."""

    clock: HandClock
    api: ApiServer
    node_log: list[Change]
    machines: dict[str, Machine]
    silent_since_s: float | None
    reserved: bool

    def facts_are_stale(self) -> bool: ...

    def apply(self, binding: PodBinding, sent_s: float) -> JsonObject: ...

    def wait(self) -> None: ...


class Replica:
    """One run of the extender: the real thing, behind an informer that lags.

    It begins as a standby that has listed everything. It is also the fence that its own takeover needs.
    """

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self.leads = False
        self._shown: dict[str, JsonObject] = {}
        self.history = world.api.history
        self.pods_heard = len(world.api.log)
        self.nodes_heard = len(world.node_log)
        self.state = ClusterState(Ledger(SETTLE_S), world.facts_are_stale, world.clock)
        self.planning = Planning(world, self.state, self._shown)
        decisions, guard = DecisionLog(world.clock), self.planning.guard
        context = BindContext(self.state.ledger, self.state.views, decisions, world.clock, guard=guard)
        self.bindings = Bindings(context, self, self, BIND_TIMEOUT_S, self)
        writer = HoldWriter(world.api.holds)
        self.holding = Holding(self.state.ledger, writer, self, self._unready_reason, world.clock)
        self.planning.begin(self.holding)
        self.planning.reserve(world.reserved)
        self._shown_holds: dict[str, JsonObject] = {}
        self.holds_heard = 0
        for machine in world.machines.values():
            self.state.observe_node(Change(None, a_node(machine.name, machine.uid)))
        for pod in world.api.pods.values():
            self._hear(Change(None, pod))
        self.list_holds()
        self.hear_facts()

    def hear_pods(self, count: int) -> None:
        """What became of the nodes before is heard before. Of another history no watch shows anything."""
        self.hear_nodes()
        if self.history != self._world.api.history:
            return
        for change in self._world.api.log[self.pods_heard :][:count]:
            self.pods_heard += 1
            self._hear(change)

    def list_pods(self) -> None:
        """The watch fell behind: what happened in between is never heard."""
        self.hear_nodes()
        if self.history != self._world.api.history:
            self.history = self._world.api.history
            self.state.rewind()
            self.list_holds()
        self.pods_heard = len(self._world.api.log)
        listed = {uid_of(pod): pod for pod in self._world.api.pods.values()}
        for uid, pod in list(self._shown.items()):
            if uid not in listed:
                self._hear(Change(pod, None))
        for uid, pod in listed.items():
            self._hear(Change(self._shown.get(uid), pod))

    def hear_holds(self, count: int) -> None:
        for change in self._world.api.holds.log[self.holds_heard :][:count]:
            self.holds_heard += 1
            self._hear_hold(change)

    def list_holds(self) -> None:
        """As they are now."""
        self.holds_heard = len(self._world.api.holds.log)
        listed = self._world.api.holds.objects
        for name, obj in list(self._shown_holds.items()):
            if name not in listed:
                self._hear_hold(Change(obj, None))
        for name, obj in listed.items():
            self._hear_hold(Change(self._shown_holds.get(name), obj))

    def _hear_hold(self, change: Change) -> None:
        name = change.object["metadata"]["name"]
        self._shown_holds.pop(name, None)
        if change.new is not None:
            self._shown_holds[name] = change.new
        self.state.observe_hold(change)

    def hear_last_words(self) -> None:
        """All that the server said before it went down."""
        self.hear_holds(len(self._world.api.holds.log))
        if self.history != self._world.api.history:
            self.list_pods()
        self.hear_pods(len(self._world.api.log))

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

    def _unready_reason(self) -> str:
        return "" if self.leads else "standby"

    def until_s(self) -> float:
        """A lease that is lost is lost before anybody else has it."""
        return math.inf if self.leads else -math.inf

    async def unbound_pods(self) -> Sequence[JsonObject]:
        def listed() -> list[JsonObject]:
            if self.history != self._world.api.history:
                self.list_pods()
            return [pod for pod in self._world.api.pods.values() if not pod["spec"].get("nodeName")]

        unbound: Sequence[JsonObject] = await Call(listed)
        return unbound

    async def stamp(self, pods: Sequence[JsonObject]) -> Stamped:
        """As the real one does, but one pod after the other."""
        started_s = self._world.clock.elapsed_s
        unstamped = []
        for pod in pods:
            while (error := await self._refusal(pod)) is not None:
                if PATIENCE.is_over(error, self._world.clock.elapsed_s - started_s):
                    unstamped.append(an_observed_pod(pod).ref)
                    break
                await Call(self._world.wait)
        return Stamped(len(pods) - len(unstamped), tuple(unstamped))

    async def catch_up(self) -> None:
        """The write on its own pod, then waiting for the informer to show it."""
        heard: int = await Call(lambda: len(self._world.api.log))
        await Call(lambda: self.hear_pods(max(0, heard - self.pods_heard)))
        await Call(self.list_holds)

    def by_uid(self, uid: str) -> JsonObject | None:
        return self._shown.get(uid)

    async def read(self, namespace: str, name: str) -> JsonObject:
        pod: JsonObject = await Call(lambda: self._world.api.get(name))
        return pod

    async def bind(self, binding: PodBinding, *, timeout_s: float) -> None:
        sent_s = self._world.clock.elapsed_s
        self.planning.check(binding)
        await Call(lambda: self._world.apply(binding, sent_s), binding, sent_s)

    def _hear(self, change: Change) -> None:
        self._shown.pop(uid_of(change.object), None)
        if change.new is not None:
            self._shown[uid_of(change.new)] = change.new
        self.state.observe_pod(change)

    async def _refusal(self, pod: JsonObject) -> GpuloomError | None:
        try:
            await Call(partial(self._stamp, pod))
        except NotAllowedError as error:
            return error
        return None

    def _stamp(self, pod: JsonObject) -> None:
        name = pod["metadata"]["name"]
        if uid_of(self._world.api.pods.get(name, {})) == uid_of(pod):
            self._world.api.stamp(name)
