"""Where agents are, from discovery's real model and server through a mirror."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.clients.agent_directory import AgentDirectory, AgentPlace
from gpuloom.clients.discovery import ClusterMirror
from gpuloom.runtime.clock import FakeClock, settle
from gpuloom.runtime.parsers import Address
from services.discovery.agents import WantedAgents
from services.discovery.core.cluster import ClusterModel
from services.discovery.metrics import DiscoveryMetrics
from services.discovery.readmodel import ReadModel
from services.discovery.server import DiscoveryServer
from tests.unit.clients.memory_discovery import MemoryDiscovery
from tests.unit.discovery.builders import a_node, a_state

NAMES = ["n1", "n2", "n3"]
PLACES = st.none() | st.builds(
    Address, st.sampled_from(["10.0.0.1", "fd00::1", "node.example"]), st.just(50052)
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "set", "forget", "rename", "read"]), st.sampled_from(NAMES), PLACES),
    max_size=20,
)


class NobodyFollows:
    def follow(self, name: str, address: Address) -> None:
        return

    def forget(self, name: str) -> None:
        return


class World:
    """Discovery's model behind its server, and a directory on a mirror of it."""

    def __init__(self) -> None:
        clock = FakeClock()
        self.model = ClusterModel(30.0)
        self.wanted = WantedAgents(self.model, NobodyFollows(), clock)
        metrics = DiscoveryMetrics(CollectorRegistry())
        self.read_model = ReadModel(self.model, lambda: True, clock, metrics, usage_interval_s=0.0)
        self.discovery = MemoryDiscovery(DiscoveryServer(self.read_model, 5.0, metrics))
        self.mirror = ClusterMirror(self.discovery.channel(), clock)
        self.directory = AgentDirectory(self.mirror)
        self.told: dict[str, AgentPlace] = {}
        self.directory.on_change(self._hear)

    async def publish(self) -> None:
        self.read_model.publish()
        self.discovery.permit(100)
        await settle()

    def agent(self, name: str, address: Address | None) -> None:
        self.wanted.set(name, address)
        self.model.hear(name, 0.0, a_state(name))

    def _hear(self, uid: str, place: AgentPlace | None) -> None:
        assert place != self.told.get(uid), "told of no difference"
        if place is None:
            del self.told[uid]
        else:
            self.told[uid] = place


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    world = World()
    for name in NAMES:
        world.model.observe_node(a_node(name))
    world.read_model.publish()
    task = asyncio.create_task(world.mirror.run())
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@given(STEPS)
def test_the_directory_has_exactly_the_agents_that_discovery_follows(
    steps: list[tuple[str, str, Address | None]],
) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[tuple[str, str, Address | None]]) -> None:
    followed: dict[str, Address | None] = {}
    uids = {name: f"uid-{name}" for name in NAMES}
    async with a_world() as world:
        for number, (step, name, address) in enumerate(steps):
            match step:
                case "set":
                    world.agent(name, address)
                    followed[name] = address
                case "forget":
                    world.wanted.forget(name)
                    followed.pop(name, None)
                case "rename":
                    uids[name] = f"uid-{name}-{number}"
                    world.model.observe_node(a_node(name, uid=uids[name]))
                case _:
                    await world.publish()
        await world.publish()

        expected = {
            uids[name]: AgentPlace(name, place) for name, place in followed.items() if place is not None
        }
        assert dict(world.directory.places) == expected
        assert world.told == expected


async def test_an_address_that_is_none_is_not_known() -> None:
    async with a_world() as world:
        world.agent("n1", Address("10.0.0.1", 50052))
        world.agent("n2", Address("10.0.0.2", 50052))
        world.model.locate_agent("n1", "not an address")
        await world.publish()

        assert set(world.directory.places) == {"uid-n2"}
