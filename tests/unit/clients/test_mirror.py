import asyncio
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.clients.cluster_arrays import ClusterArrays
from gpuloom.clients.discovery import ClusterMirror, MirrorOptions
from gpuloom.model.snapshot import NodeFacts
from gpuloom.model.version import StreamVersion
from gpuloom.rpc.changelog import ChangeLog
from gpuloom.runtime.clock import FakeClock, settle
from services.discovery import feed as feed_module
from services.discovery.core.cluster import Changes, ClusterModel
from services.discovery.metrics import DiscoveryMetrics
from services.discovery.readmodel import ReadModel
from services.discovery.server import DiscoveryServer
from tests.effort import examples
from tests.unit.clients.memory_discovery import MemoryDiscovery
from tests.unit.clients.test_cluster_arrays import as_values, built_fresh
from tests.unit.discovery.builders import a_state
from tests.unit.discovery.readers import published

NAMES = ["n1", "n2", "n3", "n4"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "use", "remove", "read", "read", "cut", "other replica", "wait"]),
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
        st.integers(1, 3),
    ),
    max_size=25,
)


class Replica:
    """The real server and feed; what it publishes is up to the test."""

    def __init__(self, clock: FakeClock) -> None:
        metrics = DiscoveryMetrics(CollectorRegistry())
        model = ReadModel(ClusterModel(30.0), lambda: True, clock, metrics, usage_interval_s=0.0)
        self.feed = model.feed
        self.feed.with_usage = ChangeLog(kept_removals=2)
        self.feed.without_usage = ChangeLog(kept_removals=2)
        self.server = DiscoveryServer(model, 5.0, metrics)

    def put(self, names: list[str], reason: str) -> None:
        self.feed.publish(Changes(tuple(NodeFacts(a_state(name), (reason,)) for name in names)))

    def use(self, names: list[str], utilization: float) -> None:
        facts = tuple(
            NodeFacts(a_state(name, utilization), known.untrusted_reasons)
            for name in names
            if (known := self.feed.facts_of(f"uid-{name}"))
        )
        uids = frozenset(item.state.node_uid for item in facts)
        self.feed.publish(Changes(facts, usage_only=uids))

    def remove(self, names: list[str]) -> None:
        self.feed.publish(Changes((), tuple(f"uid-{name}" for name in names)))


class Play:
    """A mirror that follows one of two replicas, which say the same things at different times."""

    def __init__(self, with_usage: bool) -> None:
        self.clock = FakeClock()
        self.replicas = [Replica(self.clock), Replica(self.clock)]
        self.discovery = MemoryDiscovery(self.replicas[0].server)
        self.with_usage = with_usage
        self.mirror = ClusterMirror(
            self.discovery.channel(), self.clock, MirrorOptions(with_usage=with_usage, silence_s=15.0)
        )
        self.arrays = ClusterArrays()
        self.mirror.on_change(self.arrays.observe)
        self.heard: dict[str, NodeFacts] = {}
        self.mirror.on_change(self._hear)

    async def take(self, step: str, names: list[str], count: int) -> None:
        replica = self.replicas[0]
        if step == "put":
            replica.put(names, f"reason {count}")
        elif step == "use":
            replica.use(names, count / 4)
        elif step == "remove":
            replica.remove(names)
        elif step == "read":
            self.discovery.permit(count)
            await settle()
        elif step == "wait":
            await self.clock.advance(4.0)
        elif step == "cut":
            self.discovery.cut()
            await settle()
        else:
            self.replicas.reverse()
            self.discovery.server = self.replicas[0].server
            self.discovery.cut()
            await settle()

    async def catch_up(self) -> None:
        feed = self.replicas[0].feed
        log = feed.with_usage if self.with_usage else feed.without_usage
        for _ in range(20):
            self.discovery.permit(10)
            await self.clock.advance(3.0)
            if self.mirror.snapshot().version == StreamVersion(feed.epoch, log.number):
                return
        raise AssertionError("the mirror does not catch up")

    def _hear(self, uid: str, facts: NodeFacts | None) -> None:
        assert self.heard.get(uid) != facts
        if facts is None:
            del self.heard[uid]
        else:
            self.heard[uid] = facts


@settings(max_examples=examples(60))
@given(STEPS, st.booleans())
def test_a_mirror_equals_its_server_after_any_changes_slow_reads_cuts_and_replica_changes(
    steps: list[tuple[str, list[str], int]], with_usage: bool
) -> None:
    async def play() -> None:
        game = Play(with_usage)
        following = asyncio.create_task(game.mirror.run())
        for step, names, count in steps:
            await game.take(step, names, count)
        await game.catch_up()

        nodes = game.mirror.snapshot().nodes
        assert nodes == published(game.replicas[0].feed, with_usage=with_usage)
        assert game.heard == nodes
        assert as_values(game.arrays) == as_values(built_fresh(nodes))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    with patch.object(feed_module, "MAX_MESSAGE_NODES", 2):
        asyncio.run(play())


async def test_a_mirror_goes_back_with_a_replica_that_knows_less() -> None:
    game = Play(with_usage=False)
    game.replicas[0].put(["n1", "n2"], "new")
    game.replicas[1].put(["n1"], "old")
    following = asyncio.create_task(game.mirror.run())
    await game.catch_up()

    await game.take("other replica", [], 0)
    await game.catch_up()

    assert {uid: facts.untrusted_reasons for uid, facts in game.heard.items()} == {"uid-n1": ("old",)}
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_mirror_knows_how_old_it_is_by_its_own_clock() -> None:
    game = Play(with_usage=False)
    following = asyncio.create_task(game.mirror.run())
    game.discovery.permit(1)
    await settle()
    fresh_s = game.mirror.age_s()

    game.discovery.cut()
    await game.clock.advance(9.0)

    assert (fresh_s, game.mirror.age_s()) == (0.0, 9.0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
