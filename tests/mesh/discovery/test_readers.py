"""Readers of discovery over real gRPC: slow ones, many, and such that change from replica to replica."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from gpuloom.clients.cluster_arrays import ClusterArrays
from gpuloom.clients.discovery import ClusterMirror, MirrorOptions
from gpuloom.clients.replicas import Replicas
from gpuloom.model.snapshot import NodeFacts
from gpuloom.model.version import StreamVersion
from gpuloom.rpc.channel import RpcChannel, open_stream
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.parsers import Address
from gpuloom.v1.discovery_pb2 import WatchClusterRequest
from gpuloom.v1.discovery_pb2_grpc import DiscoveryServiceStub
from services.discovery.core.cluster import Changes
from tests.mesh.discovery.builders import World, a_mirror, an_environment, serving
from tests.mesh.waiting import running, until
from tests.unit.clients.test_cluster_arrays import as_values, built_fresh
from tests.unit.discovery.builders import a_state
from tests.unit.discovery.readers import published

HOST = "127.0.0.1"


@asynccontextmanager
async def a_mirror_of(*ports: int, **options: Any) -> AsyncIterator[ClusterMirror]:
    """A mirror of several replicas, that comes back quickly when one is lost."""
    given = MirrorOptions(**{"first_backoff_s": 0.01, "backoff_cap_s": 0.05, **options})
    replicas = Replicas(an_environment(), [Address(HOST, port) for port in ports], "discovery")
    mirror = ClusterMirror(replicas, SystemClock(), given)
    async with running(mirror.run):
        yield mirror


def put(world: World, name: str, reason: str) -> None:
    world.model.feed.publish(Changes((NodeFacts(a_state(name), (reason,)),)))


def reached(mirror: ClusterMirror, world: World) -> bool:
    feed = world.model.feed
    return mirror.snapshot().version == StreamVersion(feed.epoch, feed.without_usage.number)


async def test_a_reader_that_does_not_read_costs_the_others_nothing() -> None:
    world = World("n1")
    large = "why " * 250

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(world.servicer))
        channel = await stack.enter_async_context(
            RpcChannel(an_environment(), f"{HOST}:{server.port}", "discovery")
        )
        call = channel.stub(DiscoveryServiceStub).WatchCluster(WatchClusterRequest())
        stuck = await stack.enter_async_context(open_stream(call))
        await anext(stuck)
        mirror = await stack.enter_async_context(a_mirror(server.port))
        await mirror.wait_synced()

        for number in range(2000):
            put(world, f"n{number % 50}", f"{number} {large}")
            if number % 50 == 0:
                await until(lambda: reached(mirror, world))
        await until(lambda: reached(mirror, world))
        shown = mirror.snapshot().nodes
        while (late := await anext(stuck)).version.number < world.model.feed.number:
            pass

        assert shown == published(world.model.feed, with_usage=False)
        assert len(world.model.feed.with_usage.since(0)) == 50
        assert late.delta.nodes[-1].untrusted_reasons[0].startswith("1999 ")


async def test_many_readers_of_any_speed_have_the_same_state_in_the_end() -> None:
    world, chance = World("n1"), random.Random(5)

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(world.servicer))
        mirrors = [await stack.enter_async_context(a_mirror(server.port)) for _ in range(10)]
        arrays = [ClusterArrays() for _ in mirrors]
        for mirror, columns in zip(mirrors, arrays, strict=True):
            mirror.on_change(columns.observe)
        for number in range(300):
            name = f"n{chance.randint(1, 9)}"
            if chance.random() < 0.3:
                world.model.feed.publish(Changes((), (f"uid-{name}",)))
            else:
                put(world, name, f"reason {number}")
            if chance.random() < 0.2:
                await asyncio.sleep(0)
        await until(lambda: all(reached(mirror, world) for mirror in mirrors))

        shown = published(world.model.feed, with_usage=False)
        assert all(mirror.snapshot().nodes == shown for mirror in mirrors)
        assert all(as_values(columns) == as_values(built_fresh(shown)) for columns in arrays)


async def test_a_mirror_goes_on_with_another_replica() -> None:
    first, second = World("n1", "n2"), World("n2", "n3")
    worlds = {world.model.feed.epoch: world for world in (first, second)}

    async with serving(first.servicer) as one, serving(second.servicer) as other:
        servers = {first.model.feed.epoch: one, second.model.feed.epoch: other}
        async with a_mirror_of(one.port, other.port) as mirror:
            await mirror.wait_synced()
            before = mirror.snapshot()
            await servers[before.version.epoch].drain(0.0)
            await until(lambda: mirror.snapshot().version.epoch != before.version.epoch)

            after = mirror.snapshot()
            assert before.nodes == published(worlds[before.version.epoch].model.feed, with_usage=False)
            assert after.nodes == published(worlds[after.version.epoch].model.feed, with_usage=False)


async def test_a_replica_that_is_not_synced_is_passed_over() -> None:
    unsynced, synced = World("n1", nodes_synced=False), World("n2")

    async with (
        serving(unsynced.servicer) as one,
        serving(synced.servicer) as other,
        a_mirror_of(one.port, other.port) as mirror,
    ):
        await mirror.wait_synced()

        assert list(mirror.snapshot().nodes) == ["uid-n2"]
