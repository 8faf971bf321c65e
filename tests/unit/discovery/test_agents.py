import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from gpuloom.errors import InvalidRequestError
from gpuloom.kube.cache import Change
from gpuloom.runtime.clock import FakeClock, settle
from gpuloom.runtime.parsers import Address
from services.discovery.adapters.informers import finding_agents_by_node, finding_agents_by_pod
from services.discovery.agents import AgentPods, AgentsFile, WantedAgents
from services.discovery.core.cluster import ClusterModel
from services.discovery.followers import Followers, FollowerSettings
from tests.unit.discovery.builders import TTL_S, a_state
from tests.unit.discovery.fake_agents import FakeAgents
from tests.unit.discovery.kubernetes_objects import AGENT_LABELS, a_node_object, an_agent_s_pod

PORT = 50052
GPU_NODE = a_node_object(offers={"nvidia.com/gpu": "8"})


@dataclass
class World:
    clock: FakeClock
    agents: FakeAgents
    model: ClusterModel
    wanted: WantedAgents

    def nodes(self, *changes: Change) -> None:
        handle = finding_agents_by_node(self.wanted, PORT)
        for change in changes:
            handle(change)

    def unsynced_reason(self) -> str:
        return self.model.unsynced_reason(self.clock.monotonic())


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    clock = FakeClock()
    agents, model = FakeAgents(clock), ClusterModel(TTL_S)

    def hear(name: str, state: Any) -> None:
        model.hear(name, clock.monotonic(), state)

    followers = Followers(agents, hear, clock, FollowerSettings(10, TTL_S))
    task = asyncio.create_task(followers.run())
    try:
        yield World(clock, agents, model, WantedAgents(model, followers, clock))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_agents_are_where_nodes_offer_gpus() -> None:
    async with a_world() as world:
        world.nodes(Change(None, GPU_NODE), Change(None, a_node_object("cpu-only", offers={"cpu": "8"})))
        await settle()

        assert world.agents.links == [Address("10.0.0.1", PORT)]
        assert world.unsynced_reason() == "1 of 1 agents not heard yet"


@pytest.mark.parametrize("label", [{"nvidia.com/gpu.present": "true"}, {"gpuloom.dev/mode": "gpuloom"}])
async def test_agents_are_where_a_label_says_that_there_are_gpus(label: dict[str, str]) -> None:
    async with a_world() as world:
        world.nodes(Change(None, a_node_object(labels=label)))
        await settle()

        assert world.agents.links == [Address("10.0.0.1", PORT)]


async def test_an_agent_goes_with_its_node_or_its_gpus() -> None:
    without = a_node_object(offers={"nvidia.com/gpu": "0"})
    for change in (Change(GPU_NODE, None), Change(GPU_NODE, without)):
        async with a_world() as world:
            world.nodes(Change(None, GPU_NODE))
            await settle()
            world.nodes(change)
            await settle()

            assert world.agents.links == []
            assert world.unsynced_reason() == ""


async def test_a_list_of_many_nodes_is_taken_in_at_once() -> None:
    async with a_world() as world:
        nodes = [
            a_node_object(f"n{i}", f"10.1.{i // 250}.{i % 250}", offers={"nvidia.com/gpu": "8"})
            for i in range(2000)
        ]
        world.nodes(*(Change(None, node) for node in nodes))

        assert world.unsynced_reason() == "2000 of 2000 agents not heard yet"


class Pods:
    """Agents' pods as they come and go in Kubernetes."""

    def __init__(self, world: World) -> None:
        found = AgentPods(world.wanted, PORT)
        self._handle = finding_agents_by_pod(found, "gpuloom-system", AGENT_LABELS)
        self._seen: dict[str, Any] = {}

    async def see(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        self._handle(Change(self._seen.get(uid), pod))
        self._seen[uid] = pod
        await settle()

    async def delete(self, uid: str) -> None:
        self._handle(Change(self._seen.pop(uid), None))
        await settle()


async def test_agents_are_found_by_their_own_pods() -> None:
    async with a_world() as world:
        await Pods(world).see(an_agent_s_pod("agent-1", "n1", "10.0.0.7"))

        assert world.agents.links == [Address("10.0.0.7", PORT)]
        assert world.unsynced_reason() == "1 of 1 agents not heard yet"


@pytest.mark.parametrize(
    "other",
    [
        an_agent_s_pod("x", "n1", "10.0.0.7", namespace="somebody"),
        an_agent_s_pod("x", "n1", "10.0.0.7", labels={"app.kubernetes.io/name": "node-agent"}),
        an_agent_s_pod("x", "n1", "10.0.0.7", phase="Failed"),
        an_agent_s_pod("x", "", "10.0.0.7"),
    ],
)
async def test_a_pod_that_is_no_agent_s_is_not_followed(other: dict[str, Any]) -> None:
    async with a_world() as world:
        await Pods(world).see(other)

        assert world.agents.links == []
        assert world.unsynced_reason() == ""


async def test_an_agent_is_expected_before_it_has_an_address() -> None:
    async with a_world() as world:
        pods = Pods(world)
        await pods.see(an_agent_s_pod("agent-1", "n1", "", phase="Pending"))
        starting = world.unsynced_reason(), list(world.agents.links)
        await pods.see(an_agent_s_pod("agent-1", "n1", "10.0.0.7"))

        assert starting == ("1 of 1 agents not heard yet", [])
        assert world.agents.links == [Address("10.0.0.7", PORT)]


async def test_while_an_agent_is_replaced_the_one_that_stays_is_followed() -> None:
    async with a_world() as world:
        pods = Pods(world)
        await pods.see(an_agent_s_pod("old", "n1", "10.0.0.7"))
        await pods.see(an_agent_s_pod("old", "n1", "10.0.0.7", leaving=True))
        alone = list(world.agents.links)
        await pods.see(an_agent_s_pod("new", "n1", "10.0.0.8"))
        both = list(world.agents.links)
        await pods.delete("old")

        assert alone == [Address("10.0.0.7", PORT)]
        assert both == world.agents.links == [Address("10.0.0.8", PORT)]


async def test_an_agent_restarted_within_its_ttl_keeps_its_node_s_trust() -> None:
    async with a_world() as world:
        pods = Pods(world)
        for host in ("10.0.0.7", "10.0.0.8"):
            world.agents.greet[Address(host, PORT)] = (a_state(),)
        await pods.see(an_agent_s_pod("old", "n1", "10.0.0.7"))
        await pods.delete("old")
        await world.clock.advance(TTL_S - 1)
        world.model.check_silence(world.clock.monotonic())
        gap = list(world.agents.links)
        await pods.see(an_agent_s_pod("new", "n1", "10.0.0.8"))

        assert gap == []
        assert world.model.agent_counts(world.clock.monotonic()) == (1, 1)


async def test_a_replaced_agents_file_is_read_again(tmp_path: Path) -> None:
    path = an_agents_file(tmp_path, n1="127.0.0.1:1", n2="127.0.0.1:2")
    async with a_world() as world:
        file = AgentsFile(path, world.wanted, world.clock)
        file.read()
        task = asyncio.create_task(file.run())
        an_agents_file(tmp_path, n2="127.0.0.1:2", n3="127.0.0.1:3")
        await world.clock.advance(file.interval_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        assert world.agents.links == [Address("127.0.0.1", 2), Address("127.0.0.1", 3)]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"n1": 7}', b'{"n1": "no port"}', None])
async def test_a_broken_agents_file_keeps_what_was_read_before(tmp_path: Path, body: bytes | None) -> None:
    path = an_agents_file(tmp_path, n1="127.0.0.1:1")
    async with a_world() as world:
        file = AgentsFile(path, world.wanted, world.clock)
        file.read()
        if body is None:
            path.unlink()
        else:
            path.write_bytes(body)
        task = asyncio.create_task(file.run())
        await world.clock.advance(10 * file.interval_s)

        assert not task.done()
        assert world.agents.links == [Address("127.0.0.1", 1)]
        with pytest.raises(InvalidRequestError, match=r"agents\.json"):
            file.read()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def an_agents_file(folder: Path, **agents: str) -> Path:
    path = folder / "agents.json"
    path.write_bytes(orjson.dumps(agents))
    return path
