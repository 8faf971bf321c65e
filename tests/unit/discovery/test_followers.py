import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from gpuloom.errors import ConflictError, InvalidRequestError, UnavailableError
from gpuloom.model.node import NodeState
from gpuloom.runtime.clock import FakeClock, settle
from gpuloom.runtime.parsers import Address
from services.discovery.followers import CONNECT_S, Followers, FollowerSettings
from tests.unit.discovery.builders import a_state
from tests.unit.discovery.fake_agents import FakeAgents

HERE, THERE = Address("10.0.0.1", 50052), Address("10.0.0.2", 50052)
SILENCE_S = 15.0
LOST = UnavailableError("the agent can't be reached")


@dataclass
class World:
    clock: FakeClock = field(default_factory=FakeClock)
    heard: list[tuple[str, NodeState | None]] = field(default_factory=list)
    concurrent_connects: int = 10

    def __post_init__(self) -> None:
        self.agents = FakeAgents(self.clock)
        settings = FollowerSettings(self.concurrent_connects, SILENCE_S)
        self.followers = Followers(self.agents, self._hear, self.clock, settings)

    def _hear(self, name: str, state: NodeState | None) -> None:
        self.heard.append((name, state))


@asynccontextmanager
async def running(world: World) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(world.followers.run())
    await settle()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_states_and_heartbeats_are_heard_under_the_node_s_name() -> None:
    world = World()
    world.agents.greet[HERE] = (a_state(), None, a_state(utilization=0.5))
    world.followers.follow("n1", HERE)

    async with running(world):
        pass

    assert world.heard == [("n1", a_state()), ("n1", None), ("n1", a_state(utilization=0.5))]


async def test_an_agent_that_is_told_of_later_is_followed_too() -> None:
    world = World()

    async with running(world):
        world.followers.follow("n1", HERE)
        await settle()

        assert [stream.open for stream in world.agents.of(HERE)] == [True]


async def test_a_lost_agent_is_tried_again_ever_later_up_to_the_cap() -> None:
    world = World()
    world.agents.greet[HERE] = (LOST,)
    world.followers.follow("n1", HERE)

    async with running(world):
        await world.clock.advance(60.0)

    ceilings_s = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    gaps_s = [later.opened_s - earlier.opened_s for earlier, later in pairwise(world.agents.streams)]
    assert len(gaps_s) > len(ceilings_s)
    assert all(ceiling / 2 <= gap <= ceiling for gap, ceiling in zip(gaps_s, ceilings_s, strict=False))


async def test_an_agent_that_only_ever_greets_is_not_hammered() -> None:
    world = World()
    world.followers.follow("n1", HERE)

    async with running(world):
        for _ in range(200):
            stream = world.agents.streams[-1]
            if stream.open:
                stream.say(a_state())
                stream.end()
            await world.clock.advance(0.1)

    assert len(world.agents.streams) < 15


async def test_an_agent_that_spoke_for_a_while_is_tried_again_soon() -> None:
    world = World()
    world.agents.greet[HERE] = (LOST,)
    world.followers.follow("n1", HERE)

    async with running(world):
        await world.clock.advance(30.0)
        world.agents.greet[HERE] = (a_state(), None)
        await world.clock.advance(5.0)
        world.agents.streams[-1].say(LOST)
        lost_s = world.clock.monotonic()
        await world.clock.advance(0.2)

        assert lost_s < world.agents.streams[-1].opened_s <= lost_s + 0.2


async def test_a_stream_that_falls_silent_is_opened_anew() -> None:
    world = World()
    world.agents.greet[HERE] = (a_state(),)
    world.followers.follow("n1", HERE)

    async with running(world):
        await world.clock.advance(SILENCE_S - 1)
        before = [stream.open for stream in world.agents.streams]
        await world.clock.advance(2.0)

        assert before == [True]
        assert [stream.open for stream in world.agents.streams] == [False, True]


async def test_heartbeats_keep_a_stream_open() -> None:
    world = World()
    world.agents.greet[HERE] = (a_state(),)
    world.followers.follow("n1", HERE)

    async with running(world):
        for _ in range(10):
            await world.clock.advance(5.0)
            world.agents.streams[0].say(None)

        assert [stream.open for stream in world.agents.streams] == [True]


async def test_an_agent_at_a_new_address_is_followed_there_and_only_there() -> None:
    world = World()
    world.agents.greet = {HERE: (a_state(),), THERE: (a_state(utilization=1.0),)}
    world.followers.follow("n1", HERE)

    async with running(world):
        world.followers.follow("n1", THERE)
        await settle()

        assert world.agents.links == [THERE]
        assert [stream.open for stream in world.agents.streams] == [False, True]
        assert world.heard[-1] == ("n1", a_state(utilization=1.0))


async def test_a_forgotten_agent_is_let_go() -> None:
    world = World()
    world.followers.follow("n1", HERE)
    world.followers.follow("n2", THERE)

    async with running(world):
        world.followers.forget("n1")
        world.followers.forget("never-there")
        await settle()

        assert world.agents.links == [THERE]
        assert [stream.open for stream in world.agents.of(HERE)] == [False]


async def test_an_agent_that_is_told_of_again_is_not_disturbed() -> None:
    world = World()
    world.followers.follow("n1", HERE)

    async with running(world):
        world.followers.follow("n1", HERE)
        await settle()

        assert [stream.open for stream in world.agents.streams] == [True]


async def test_only_so_many_agents_are_connected_to_at_a_time() -> None:
    world = World(concurrent_connects=3)
    addresses = [Address(f"10.0.1.{i}", 50052) for i in range(10)]
    for i, address in enumerate(addresses):
        world.followers.follow(f"n{i}", address)

    async with running(world):
        at_once = []
        while world.agents.connecting():
            at_once.append(world.agents.connecting())
            next(stream for stream in world.agents.streams if not stream.has_spoken).say(a_state())
            await settle()

        assert max(at_once) == 3
        assert {stream.address for stream in world.agents.streams} == set(addresses)


async def test_an_agent_that_never_answers_does_not_keep_its_place() -> None:
    world = World(concurrent_connects=1)
    world.followers.follow("dead", HERE)
    world.followers.follow("alive", THERE)
    world.agents.greet[THERE] = (a_state(),)

    async with running(world):
        await world.clock.advance(SILENCE_S + 1)

        assert ("alive", a_state()) in world.heard


async def test_agents_that_do_not_answer_keep_nobody_waiting_who_comes_back() -> None:
    world = World(concurrent_connects=2)
    world.agents.greet[THERE] = (a_state(), None)
    world.followers.follow("alive", THERE)

    async with running(world):
        for i in range(40):
            world.followers.follow(f"dead{i}", Address(f"10.0.9.{i}", 50052))
        # By now every one of them has failed, and they queue apart.
        await world.clock.advance(40 / 2 * CONNECT_S)
        world.agents.of(THERE)[-1].say(LOST)
        lost_s = world.clock.monotonic()
        await world.clock.advance(1.0)

        assert world.agents.of(THERE)[-1].has_spoken
        assert world.agents.of(THERE)[-1].opened_s > lost_s


async def test_one_more_agent_disturbs_none_of_a_thousand() -> None:
    world = World(concurrent_connects=1000)
    addresses = [Address(f"10.2.{i // 250}.{i % 250}", 50052) for i in range(1000)]
    for i, address in enumerate(addresses):
        world.agents.greet[address] = (a_state(),)
        world.followers.follow(f"n{i}", address)

    async with running(world):
        before = list(world.agents.streams)
        world.followers.follow("one-more", HERE)
        await settle()

        assert len(before) == 1000
        assert world.agents.streams[:1000] == before
        assert all(stream.open for stream in world.agents.streams)


@pytest.mark.parametrize(
    "error", [LOST, InvalidRequestError("malformed"), ConflictError("a gap"), TimeoutError("no answer")]
)
async def test_an_error_of_one_agent_leaves_the_others_alone(error: Exception) -> None:
    world = World()
    world.agents.greet = {HERE: (error,), THERE: (a_state(),)}
    world.followers.follow("broken", HERE)
    world.followers.follow("n1", THERE)

    async with running(world) as task:
        await world.clock.advance(3.0)
        world.agents.of(THERE)[0].say(None)
        await settle()

        assert not task.done()
        assert len(world.agents.of(HERE)) > 1
        assert world.heard == [("n1", a_state()), ("n1", None)]


async def test_the_end_of_the_loop_closes_every_stream_and_link() -> None:
    world = World()
    world.agents.greet = {HERE: (a_state(),), THERE: (LOST,)}
    world.followers.follow("followed", HERE)
    world.followers.follow("backing-off", THERE)
    world.followers.follow("connecting", Address("10.0.0.3", 50052))

    async with running(world) as task:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert task.cancelled()
    assert world.agents.links == []
    assert not any(stream.open for stream in world.agents.streams)
