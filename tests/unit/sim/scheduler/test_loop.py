import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gpuloom.errors import UnavailableError
from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject
from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import FakeClock, deadline, settle
from gpuloom.sim.scheduler.loop import SchedulerLoop, SchedulerSettings, SchedulerState
from gpuloom.sim.scheduler.watching import ClusterFollower
from gpuloom.sim.scheduler.wire import ExtenderError, FilterAnswer
from tests.unit.sim.builders import a_node, a_pod

GPU = {"nvidia.com/gpu": "1"}


@dataclass
class World:
    """A cluster in memory: what is bound shows in the watch at once, unless it is held back."""

    clock: FakeClock
    state: SchedulerState = field(default_factory=SchedulerState)
    pods: dict[str, JsonObject] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)
    bound: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.watch = ClusterFollower(self.state, "default-scheduler", self.clock.monotonic)

    def add(self, pod: JsonObject) -> None:
        self.pods[pod["metadata"]["name"]] = pod
        self.watch.on_pod(Change(None, pod))

    def show_bound(self, name: str, node: str) -> None:
        old = self.pods[name]
        self.pods[name] = {**old, "spec": {**old["spec"], "nodeName": node}}
        self.bound[name] = node
        self.watch.on_pod(Change(old, self.pods[name]))

    async def bind(self, pod: PodRef, node: str) -> None:
        if pod.name in self.bound:
            raise UnavailableError("already bound")
        self.show_bound(pod.name, node)

    async def write_conditions(self, pod: JsonObject, conditions: Sequence[JsonObject]) -> None:
        name = pod["metadata"]["name"]
        old = self.pods[name]
        self.pods[name] = {**old, "status": {**old["status"], "conditions": list(conditions)}}
        self.watch.on_pod(Change(old, self.pods[name]))

    def record_event(self, pod: JsonObject, reason: str, message: str) -> None:
        self.events.append((reason, message))

    def condition(self, name: str) -> JsonObject:
        return next(c for c in self.pods[name]["status"]["conditions"] if c["type"] == "PodScheduled")


@dataclass
class FakeExtender:
    """Accepts all nodes and binds in the world, unless told otherwise."""

    world: World
    refuse: dict[str, str] = field(default_factory=dict)
    filter_error: str = ""
    prioritize_error: str = ""
    best: str = ""
    binds: list[tuple[str, str]] = field(default_factory=list)
    priorities_asked: int = 0
    slow_binds: int = 0

    async def filter(self, pod: JsonObject, nodes: Sequence[str]) -> FilterAnswer:
        if self.filter_error:
            raise ExtenderError(self.filter_error)
        return FilterAnswer(tuple(node for node in nodes if node not in self.refuse), self.refuse)

    async def prioritize(self, pod: JsonObject, nodes: Sequence[str]) -> dict[str, int]:
        self.priorities_asked += 1
        if self.prioritize_error:
            raise ExtenderError(self.prioritize_error)
        return {node: 10 if node == self.best else 0 for node in nodes}

    async def bind(self, pod: PodRef, node: str) -> None:
        self.binds.append((pod.name, node))
        if len(self.binds) <= self.slow_binds:
            try:
                async with deadline(self.world.clock, 5.0):
                    await asyncio.Event().wait()
            except TimeoutError:
                raise ExtenderError("no answer within 5 s") from None
        await self.world.bind(pod, node)


@asynccontextmanager
async def running(world: World, extender: FakeExtender) -> AsyncIterator[None]:
    settings = SchedulerSettings(frozenset({"nvidia.com/gpu"}))
    task = asyncio.create_task(SchedulerLoop(world.state, world, extender, settings, world.clock).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def a_world(*nodes: str) -> World:
    world = World(FakeClock())
    for name in nodes:
        world.watch.on_node(Change(None, a_node(name, {"nvidia.com/gpu": "8"})))
    return world


async def test_a_gpu_pod_goes_where_the_extender_says() -> None:
    world = a_world("n1", "n2", "n3")
    extender = FakeExtender(world, best="n2")

    async with running(world, extender):
        world.add(a_pod("p", GPU))
        await settle()

    assert world.bound == {"p": "n2"}
    assert world.events == [("Scheduled", "Successfully assigned team-a/p to n2")]


async def test_a_pod_without_a_managed_resource_never_reaches_the_extender() -> None:
    world = a_world("n1", "n2")
    extender = FakeExtender(world, filter_error="must not be asked")

    async with running(world, extender):
        world.add(a_pod("p", {"cpu": "1"}))
        await settle()

    assert "p" in world.bound
    assert extender.binds == []


async def test_one_node_left_needs_no_priorities() -> None:
    world = a_world("n1", "n2")
    extender = FakeExtender(world, refuse={"n1": "full"})

    async with running(world, extender):
        world.add(a_pod("p", GPU))
        await settle()

    assert world.bound == {"p": "n2"}
    assert extender.priorities_asked == 0


async def test_failing_priorities_are_ignored() -> None:
    world = a_world("n1", "n2")
    extender = FakeExtender(world, prioritize_error="broken")

    async with running(world, extender):
        world.add(a_pod("p", GPU))
        await settle()

    assert "p" in world.bound


async def test_refusals_reach_the_event_and_the_condition_and_room_wakes_the_pod() -> None:
    world = a_world("n1", "n2")
    extender = FakeExtender(world, refuse={"n1": "no free card", "n2": "no free card"})
    message = "0/2 nodes are available: 2 no free card."

    async with running(world, extender):
        world.add(a_pod("p", GPU))
        await world.clock.advance(20.0)
        refused_events = list(world.events)
        condition = world.condition("p")
        extender.refuse = {}
        world.watch.on_node(
            Change(a_node("n1"), a_node("n1", {"nvidia.com/gpu": "8"}, annotations={"e": "1"}))
        )
        await settle()

    assert refused_events == [("FailedScheduling", message)]
    assert (condition["reason"], condition["message"]) == ("Unschedulable", message)
    assert "p" in world.bound


async def test_a_failing_filter_backs_off_and_tries_again() -> None:
    world = a_world("n1")
    extender = FakeExtender(world, filter_error="not synced")

    async with running(world, extender):
        world.add(a_pod("p", GPU))
        await world.clock.advance(2.5)
        tries = len(world.events)
        reason = world.condition("p")["reason"]
        extender.filter_error = ""
        await world.clock.advance(10.0)

    assert tries == 2
    assert reason == "SchedulerError"
    assert world.bound == {"p": "n1"}


async def test_a_bind_that_times_out_is_asked_again() -> None:
    world = a_world("n1")
    extender = FakeExtender(world, slow_binds=1)

    async with running(world, extender):
        world.add(a_pod("p", GPU))
        await world.clock.advance(5.0)
        free_again = world.state.cache.use_of("n1").pods
        await world.clock.advance(2.0)

    assert free_again == 0
    assert extender.binds == [("p", "n1"), ("p", "n1")]
    assert world.bound == {"p": "n1"}


async def test_a_bind_that_took_effect_late_ends_the_tries() -> None:
    world = a_world("n1")
    extender = FakeExtender(world, slow_binds=1)

    async with running(world, extender):
        world.add(a_pod("p", GPU))
        await world.clock.advance(5.0)
        world.show_bound("p", "n1")
        await world.clock.advance(30.0)

    assert extender.binds == [("p", "n1")]
    assert world.state.cache.use_of("n1").pods == 1
    assert len(world.state.queue) == 0


async def test_a_slow_bind_does_not_hold_up_other_pods_and_its_room_stays_taken() -> None:
    world = a_world("n1")
    extender = FakeExtender(world, slow_binds=1)

    async with running(world, extender):
        world.add(a_pod("big", {"nvidia.com/gpu": "7"}))
        await settle()
        world.add(a_pod("small", GPU))
        world.add(a_pod("toolate", GPU))
        await settle()
        bound_meanwhile = set(world.bound)

    assert bound_meanwhile == {"small"}


async def test_a_pod_deleted_during_its_bind_leaves_nothing_behind() -> None:
    world = a_world("n1")
    extender = FakeExtender(world, slow_binds=1)

    async with running(world, extender):
        world.add(a_pod("p", GPU))
        await settle()
        world.watch.on_pod(Change(world.pods["p"], None))
        await world.clock.advance(30.0)

    assert extender.binds == [("p", "n1")]
    assert world.state.cache.use_of("n1").pods == 0
    assert len(world.state.queue) == 0
