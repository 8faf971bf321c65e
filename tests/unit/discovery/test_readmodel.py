import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import Holder, HolderSource, NodeState, PodRef
from gpuloom.model.snapshot import NodeFacts
from gpuloom.runtime.clock import FakeClock
from services.discovery.core.cluster import Changes, ClusterModel
from services.discovery.core.findings import Cause
from services.discovery.core.trust import LAG_GRACE_S
from services.discovery.metrics import DiscoveryMetrics
from services.discovery.readmodel import ReadModel
from tests.effort import examples
from tests.unit.discovery.builders import TTL_S, a_node, a_state
from tests.unit.discovery.readers import MemoryReader

STEPS = st.sampled_from(
    ["observe", "forget node", "expect", "forget agent", "beat", "idle", "busy", "broken", "wait", "publish"]
)


class World:
    """A model, what feeds it, and what publishes it."""

    def __init__(self, *, listed: bool = True, registry: CollectorRegistry | None = None) -> None:
        self.clock = FakeClock()
        self.cluster = ClusterModel(TTL_S)
        metrics = DiscoveryMetrics(registry or CollectorRegistry())
        self.model = ReadModel(self.cluster, lambda: listed, self.clock, metrics, usage_interval_s=0.0)

    def add(self, name: str) -> None:
        self.cluster.observe_node(a_node(name))
        self.expect(name)
        self.hear(name, a_state(name))

    def expect(self, name: str) -> None:
        self.cluster.expect_agent(name, self.clock.monotonic())

    def hear(self, name: str, state: NodeState | None) -> None:
        self.cluster.hear(name, self.clock.monotonic(), state)


async def test_a_change_of_usage_alone_reaches_only_those_who_want_usage() -> None:
    world = World()
    world.add("n1")
    world.model.publish()
    readers = MemoryReader(world.model.feed), MemoryReader(world.model.feed, with_usage=False)
    for reader in readers:
        await reader.catch_up()

    world.hear("n1", a_state(utilization=0.9))
    world.model.publish()

    assert [await reader.catch_up() for reader in readers] == [1, 0]


async def test_facts_without_usage_are_told_again_after_their_node_came_back() -> None:
    world = World()
    world.add("n1")
    reader = MemoryReader(world.model.feed, with_usage=False)
    world.model.publish()

    world.cluster.forget_node("n1")
    world.model.publish()
    world.cluster.observe_node(a_node())
    world.model.publish()
    await reader.catch_up()

    assert list(reader.nodes) == ["uid-n1"]


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(STEPS, st.sampled_from(["n1", "n2"])), max_size=25))
def test_both_feeds_lead_to_the_facts_whatever_happens(steps: list[tuple[str, str]]) -> None:
    async def run() -> None:
        world = World()
        full, bare = MemoryReader(world.model.feed), MemoryReader(world.model.feed, with_usage=False)
        for step, name in [*steps, ("publish", "")]:
            await take(step, name, world)
        await full.catch_up()
        await bare.catch_up()

        facts = {item.state.node_uid: item for item in world.model.facts()}
        assert full.nodes == facts
        assert bare.nodes == {uid: without_usage(item) for uid, item in facts.items()}

    asyncio.run(run())


async def test_discovery_is_not_synced_before_kubernetes_told_what_there_is() -> None:
    world = World(listed=False)

    assert world.model.unsynced_reason() == "nodes and pods are not listed yet"


async def test_discovery_is_synced_once_every_agent_was_heard() -> None:
    world = World()
    world.expect("n1")
    before = world.model.unsynced_reason()

    world.hear("n1", a_state())

    assert (before, world.model.unsynced_reason()) == ("1 of 1 agents not heard yet", "")


async def test_a_node_that_joins_later_does_not_shut_readers_out() -> None:
    world = World()
    world.add("n1")
    synced = world.model.unsynced_reason()

    world.cluster.observe_node(a_node("n2"))
    world.expect("n2")
    world.model.publish()

    assert (synced, world.model.unsynced_reason()) == ("", "")
    assert [facts.trusted for facts in world.model.facts()] == [True, False]


async def test_silence_is_published_though_nothing_happens() -> None:
    world = World()
    world.add("n1")
    task = asyncio.create_task(world.model.run(0.1))

    await world.clock.advance(1.0)
    early = world.model.facts()
    await world.clock.advance(TTL_S)
    late = world.model.facts()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert [facts.trusted for facts in early + late] == [True, False]


async def test_metrics_follow_agents_even_if_no_node_changes() -> None:
    registry = CollectorRegistry()
    world = World(registry=registry)
    world.expect("without-a-node")

    world.model.publish()

    assert registry.get_sample_value("gpuloom_discovery_agents_expected") == 1
    assert registry.get_sample_value("gpuloom_discovery_agents_heard") == 0


async def test_metrics_tell_why_nodes_are_not_trusted() -> None:
    registry = CollectorRegistry()
    world = World(registry=registry)
    world.add("n1")
    world.cluster.observe_node(a_node("n2"))
    world.expect("n2")

    world.model.publish()

    causes = {
        cause: registry.get_sample_value("gpuloom_discovery_distrust", {"cause": cause}) for cause in Cause
    }
    assert {cause for cause, count in causes.items() if count} == {Cause.AGENT_NOT_HEARD}
    assert registry.get_sample_value("gpuloom_discovery_nodes") == 2
    assert registry.get_sample_value("gpuloom_discovery_untrusted_nodes") == 1
    assert registry.get_sample_value("gpuloom_discovery_version") == 2


async def test_a_mismatch_is_counted_when_it_appears() -> None:
    registry = CollectorRegistry()
    world = World(registry=registry)
    world.add("n1")
    process = Holder(PodRef("", "", ""), "", (DeviceRef("GPU-a"),), HolderSource.PROCESS, (7,))
    found = {"cause": Cause.FOREIGN_PROCESS.value}

    for _ in range(6):
        world.hear("n1", a_state(holders=(process,)))
        world.model.publish()
        await world.clock.advance(LAG_GRACE_S / 4)

    assert registry.get_sample_value("gpuloom_discovery_allocation_mismatch_total", found) == 1


async def test_handlers_hear_what_every_publication_brought() -> None:
    world = World()
    heard: list[Changes] = []
    world.model.on_publish(heard.append)
    world.add("n1")

    world.model.publish()

    assert [facts.state.node_uid for facts in heard[0].facts] == ["uid-n1"]


async def take(step: str, name: str, world: World) -> None:
    acts: dict[str, Any] = {
        "observe": lambda: world.cluster.observe_node(a_node(name)),
        "forget node": lambda: world.cluster.forget_node(name),
        "expect": lambda: world.expect(name),
        "forget agent": lambda: world.cluster.forget_agent(name),
        "beat": lambda: world.hear(name, None),
        "idle": lambda: world.hear(name, a_state(name)),
        "busy": lambda: world.hear(name, a_state(name, utilization=0.9)),
        "broken": lambda: world.hear(name, a_state(name, gpus=(), usage=())),
        "publish": world.model.publish,
    }
    if step == "wait":
        await world.clock.advance(20.0)
    else:
        acts[step]()


def without_usage(facts: NodeFacts) -> NodeFacts:
    return replace(facts, state=replace(facts.state, usage=()))
