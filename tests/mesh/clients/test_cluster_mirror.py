import random
from collections.abc import Callable

import pytest

from gpuloom.clients.discovery import ClusterMirror
from gpuloom.codec.facts import node_facts_to_proto
from gpuloom.model.snapshot import NodeFacts
from gpuloom.model.version import StreamVersion
from gpuloom.v1 import discovery_pb2 as pb
from gpuloom.v1 import types_pb2
from services.discovery import feed as feed_module
from tests.mesh.discovery.builders import ScriptedDiscovery, World, a_mirror, serving
from tests.mesh.waiting import until
from tests.unit.discovery.builders import a_node, a_state
from tests.unit.discovery.readers import published

NAMES = ["n1", "n2", "n3"]


class Listener:
    """Applies what it hears, and insists that each word changes something."""

    def __init__(self, mirror: ClusterMirror) -> None:
        self.nodes: dict[str, NodeFacts] = {}
        self.heard: list[str] = []
        mirror.on_change(self._hear)

    def _hear(self, uid: str, facts: NodeFacts | None) -> None:
        assert self.nodes.get(uid) != facts
        self.heard.append(uid)
        if facts is None:
            del self.nodes[uid]
        else:
            self.nodes[uid] = facts


@pytest.mark.parametrize(("seed", "with_usage"), [(1, True), (2, False), (3, True), (4, False)])
async def test_a_mirror_shows_what_discovery_shows_after_any_changes(seed: int, with_usage: bool) -> None:
    world, chance = World("n1"), random.Random(seed)
    feed = world.model.feed
    log = feed.with_usage if with_usage else feed.without_usage
    acts = acts_on(world)

    async with serving(world.servicer) as server, a_mirror(server.port, with_usage=with_usage) as mirror:
        listener = Listener(mirror)
        for _ in range(15):
            for _ in range(chance.randint(1, 8)):
                chance.choice(acts)(chance.choice(NAMES))
            world.model.publish()
            await until(lambda: mirror.snapshot().version == StreamVersion(feed.epoch, log.number))

            shown = published(feed, with_usage=with_usage)
            assert mirror.snapshot().nodes == shown
            assert listener.nodes == shown


async def test_a_large_cluster_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_MESSAGE_NODES", 3)
    world = World(*(f"n{i}" for i in range(50)))

    async with serving(world.servicer) as server, a_mirror(server.port) as mirror:
        await mirror.wait_synced()

        assert len(mirror.snapshot().nodes) == 50


async def test_an_empty_cluster_is_a_state_too() -> None:
    async with serving(World().servicer) as server, a_mirror(server.port) as mirror:
        await mirror.wait_synced()

        assert mirror.snapshot().nodes == {}


async def test_a_mirror_keeps_trying_until_discovery_is_synced() -> None:
    world = World("n1", nodes_synced=False)

    async with serving(world.servicer) as server, a_mirror(server.port) as mirror:
        await until(lambda: world.asked >= 3)
        early = mirror.synced
        world.nodes_synced = True
        await mirror.wait_synced()

        assert not early
        assert list(mirror.snapshot().nodes) == ["uid-n1"]


async def test_a_restarted_discovery_is_read_anew_and_handlers_hear_the_differences() -> None:
    before, after = World("n1", "n2"), World("n2", "n3")

    async with serving(before.servicer) as server:
        port = server.port
        async with a_mirror(port) as mirror:
            listener = Listener(mirror)
            await mirror.wait_synced()
            listener.heard.clear()
            await server.drain(0.0)
            while_away = set(mirror.snapshot().nodes)
            async with serving(after.servicer, port):
                await until(lambda: mirror.snapshot().version.epoch == after.model.feed.epoch)

                assert while_away == {"uid-n1", "uid-n2"}
                assert set(mirror.snapshot().nodes) == {"uid-n2", "uid-n3"}
                assert listener.heard == ["uid-n1", "uid-n3"]


async def test_the_age_of_a_mirror_grows_only_while_discovery_is_away() -> None:
    async with serving(World("n1").servicer) as server, a_mirror(server.port) as mirror:
        before = mirror.age_s()
        await mirror.wait_synced()
        first_s = mirror.age_s()
        await until(lambda: mirror.age_s() > first_s)
        await until(lambda: mirror.age_s() < 0.02)
        await server.drain(0.0)
        await until(lambda: mirror.age_s() > 0.2)

        assert before == float("inf")
        assert mirror.synced


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda: a_delta("n2", "e1", 9, after=8), id="a gap"),
        pytest.param(lambda: a_delta("n2", "e2", 2, after=1), id="another epoch"),
        pytest.param(lambda: a_part("n2", "e1", 2), id="a second full state"),
        pytest.param(pb.WatchClusterResponse, id="no update"),
        pytest.param(lambda: pb.WatchClusterResponse(version=at("e1", 2, 1)), id="a version without update"),
        pytest.param(lambda: a_bad_delta("e1", 2, after=1), id="malformed facts"),
    ],
)
async def test_a_stream_that_does_not_continue_is_opened_again(
    broken: Callable[[], pb.WatchClusterResponse],
) -> None:
    script = ScriptedDiscovery([a_part("n1", "e1", 1), broken()], [a_part("n3", "e3", 7)])

    async with serving(script) as server, a_mirror(server.port) as mirror:
        listener = Listener(mirror)
        await until(lambda: mirror.snapshot().version == StreamVersion("e3", 7))

        assert list(mirror.snapshot().nodes) == ["uid-n3"]
        assert listener.heard == ["uid-n1", "uid-n1", "uid-n3"]


async def test_half_a_full_state_changes_nothing() -> None:
    half = a_part("n2", "e2", 5, more=True)
    script = ScriptedDiscovery(
        [a_part("n1", "e1", 1), a_delta("n1", "e1", 3, after=2)],
        [half, a_delta("n2", "e2", 6, after=5)],
        [half],
    )

    async with serving(script) as server, a_mirror(server.port) as mirror:
        listener = Listener(mirror)
        await until(lambda: script.calls == 3)

        assert mirror.snapshot().version == StreamVersion("e1", 1)
        assert listener.heard == ["uid-n1"]


async def test_a_silent_stream_is_opened_again() -> None:
    script = ScriptedDiscovery([a_part("n1", "e1", 1)], [a_part("n1", "e2", 1)])

    async with serving(script) as server, a_mirror(server.port, silence_s=0.2) as mirror:
        await until(lambda: mirror.snapshot().version.epoch == "e2")


async def test_a_handler_that_comes_late_hears_what_is_known() -> None:
    async with serving(World("n1", "n2").servicer) as server, a_mirror(server.port) as mirror:
        await mirror.wait_synced()

        listener = Listener(mirror)

        assert listener.nodes == mirror.snapshot().nodes


def acts_on(world: World) -> list[Callable[[str], None]]:
    cluster = world.cluster
    return [
        lambda name: cluster.observe_node(a_node(name)),
        lambda name: cluster.observe_node(a_node(name, uid=f"uid-{name}-2")),
        lambda name: cluster.observe_node(a_node(name, offers_gpuloom=True)),
        cluster.forget_node,
        world.expect,
        cluster.forget_agent,
        lambda name: world.hear(name, a_state(name)),
        lambda name: world.hear(name, a_state(name, utilization=0.9)),
        lambda name: world.hear(name, a_state(name, holders_unknown_reason="why " * 300)),
        lambda name: world.hear(name, None),
    ]


def at(epoch: str, number: int, after: int = 0) -> types_pb2.StreamVersion:
    return types_pb2.StreamVersion(epoch=epoch, number=number, after=after)


def a_part(name: str, epoch: str, number: int, *, more: bool = False) -> pb.WatchClusterResponse:
    nodes = [node_facts_to_proto(NodeFacts(a_state(name)))]
    return pb.WatchClusterResponse(version=at(epoch, number), full=pb.ClusterPart(nodes=nodes, more=more))


def a_delta(name: str, epoch: str, number: int, after: int) -> pb.WatchClusterResponse:
    nodes = [node_facts_to_proto(NodeFacts(a_state(name, utilization=1.0)))]
    return pb.WatchClusterResponse(version=at(epoch, number, after), delta=pb.ClusterDelta(nodes=nodes))


def a_bad_delta(epoch: str, number: int, after: int) -> pb.WatchClusterResponse:
    delta = pb.ClusterDelta(nodes=[pb.NodeFacts()])
    return pb.WatchClusterResponse(version=at(epoch, number, after), delta=delta)
