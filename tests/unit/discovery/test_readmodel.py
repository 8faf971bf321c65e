import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.model.snapshot import NodeFacts
from gpuloom.rpc.streams import Subscription, VersionedFeed
from gpuloom.runtime.clock import FakeClock
from services.discovery.cluster import Changes, ClusterModel
from services.discovery.metrics import DiscoveryMetrics
from services.discovery.readmodel import ReadModel
from tests.unit.discovery.builders import TTL_S, a_node, a_state

STEPS = st.sampled_from(
    ["observe", "forget node", "expect", "forget agent", "beat", "idle", "busy", "broken", "wait", "publish"]
)


class Reader:
    """What a reader of one feed has, by node UID."""

    def __init__(self, feed: VersionedFeed[Changes]) -> None:
        self.facts: dict[str, NodeFacts] = {}
        self._feed = feed
        self._updates: Subscription[Changes] = feed.subscribe()

    async def catch_up(self) -> int:
        """Read everything; the number of updates that came."""
        start = self._updates.number
        while self._updates.number < self._feed.number:
            update = await anext(self._updates)
            assert update is not None
            for uid in update.delta.removed_node_uids:
                del self.facts[uid]
            self.facts.update({facts.state.node_uid: facts for facts in update.delta.facts})
        return self._updates.number - start


def a_read_model(
    clock: FakeClock, *, nodes_synced: bool = True, registry: CollectorRegistry | None = None
) -> ReadModel:
    metrics = DiscoveryMetrics(registry or CollectorRegistry())
    return ReadModel(ClusterModel(TTL_S), lambda: nodes_synced, clock, metrics)


def with_a_node(model: ReadModel, name: str = "n1") -> None:
    model.observe_node(a_node(name))
    model.expect_agent(name)
    model.hear(name, a_state(name))


async def test_a_change_of_usage_alone_reaches_only_those_who_want_usage() -> None:
    model = a_read_model(FakeClock())
    with_a_node(model)
    model.publish()
    readers = Reader(model.with_usage), Reader(model.without_usage)

    model.hear("n1", a_state(utilization=0.9))
    model.publish()

    assert [await reader.catch_up() for reader in readers] == [1, 0]


async def test_facts_without_usage_are_told_again_after_their_node_came_back() -> None:
    model = a_read_model(FakeClock())
    with_a_node(model)
    reader = Reader(model.without_usage)
    model.publish()

    model.forget_node("n1")
    model.publish()
    model.observe_node(a_node())
    model.publish()
    await reader.catch_up()

    assert list(reader.facts) == ["uid-n1"]


@settings(max_examples=60)
@given(st.lists(st.tuples(STEPS, st.sampled_from(["n1", "n2"])), max_size=25))
def test_both_feeds_lead_to_the_facts_whatever_happens(steps: list[tuple[str, str]]) -> None:
    async def run() -> None:
        clock = FakeClock()
        model = a_read_model(clock)
        full, bare = Reader(model.with_usage), Reader(model.without_usage)
        for step, name in [*steps, ("publish", "")]:
            await take(step, name, model, clock)
        await full.catch_up()
        await bare.catch_up()

        facts = {item.state.node_uid: item for item in model.facts()}
        assert full.facts == facts
        assert bare.facts == {uid: without_usage(item) for uid, item in facts.items()}

    asyncio.run(run())


async def test_discovery_is_not_synced_before_nodes_are_listed() -> None:
    model = a_read_model(FakeClock(), nodes_synced=False)

    assert model.unsynced_reason() == "nodes are not listed yet"


async def test_discovery_is_synced_once_every_agent_was_heard() -> None:
    model = a_read_model(FakeClock())
    model.expect_agent("n1")
    before = model.unsynced_reason()

    model.hear("n1", a_state())

    assert (before, model.unsynced_reason()) == ("1 of 1 agents not heard yet", "")


async def test_a_node_that_joins_later_does_not_shut_readers_out() -> None:
    model = a_read_model(FakeClock())
    with_a_node(model)
    synced = model.unsynced_reason()

    model.observe_node(a_node("n2"))
    model.expect_agent("n2")
    model.publish()

    assert (synced, model.unsynced_reason()) == ("", "")
    assert [facts.trusted for facts in model.facts()] == [True, False]


async def test_silence_is_published_though_nothing_happens() -> None:
    clock = FakeClock()
    model = a_read_model(clock)
    with_a_node(model)
    task = asyncio.create_task(model.run(0.1))

    await clock.advance(1.0)
    early = model.facts()
    await clock.advance(TTL_S)
    late = model.facts()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert [facts.trusted for facts in early + late] == [True, False]


async def test_metrics_follow_agents_even_if_no_node_changes() -> None:
    registry = CollectorRegistry()
    model = a_read_model(FakeClock(), registry=registry)
    model.expect_agent("without-a-node")

    model.publish()

    assert registry.get_sample_value("gpuloom_discovery_agents_expected") == 1
    assert registry.get_sample_value("gpuloom_discovery_agents_heard") == 0


async def take(step: str, name: str, model: ReadModel, clock: FakeClock) -> None:
    acts: dict[str, Any] = {
        "observe": lambda: model.observe_node(a_node(name)),
        "forget node": lambda: model.forget_node(name),
        "expect": lambda: model.expect_agent(name),
        "forget agent": lambda: model.forget_agent(name),
        "beat": lambda: model.hear(name, None),
        "idle": lambda: model.hear(name, a_state(name)),
        "busy": lambda: model.hear(name, a_state(name, utilization=0.9)),
        "broken": lambda: model.hear(name, a_state(name, gpus=(), usage=())),
        "publish": model.publish,
    }
    if step == "wait":
        await clock.advance(20.0)
    else:
        acts[step]()


def without_usage(facts: NodeFacts) -> NodeFacts:
    return replace(facts, state=replace(facts.state, usage=()))
