import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import InvalidRequestError
from gpuloom.kube.cache import Change
from gpuloom.model.node import NodeMode
from gpuloom.runtime.clock import FakeClock, settle
from gpuloom.runtime.parsers import Address
from services.discovery.adapters.kubernetes import cluster_node, internal_address
from services.discovery.app import AgentsFile, WantedAgents, _want
from services.discovery.cluster import ClusterModel
from services.discovery.followers import Followers, FollowerSettings
from services.discovery.metrics import DiscoveryMetrics
from services.discovery.readmodel import ReadModel
from tests.unit.discovery.builders import TTL_S
from tests.unit.discovery.fake_agents import FakeAgents


@dataclass
class World:
    clock: FakeClock
    agents: FakeAgents
    model: ReadModel
    wanted: WantedAgents


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    clock = FakeClock()
    agents = FakeAgents(clock)
    model = ReadModel(ClusterModel(TTL_S), lambda: True, clock, DiscoveryMetrics(CollectorRegistry()))
    followers = Followers(agents, model.hear, clock, FollowerSettings(10, TTL_S))
    task = asyncio.create_task(followers.run())
    try:
        yield World(clock, agents, model, WantedAgents(model, followers))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def a_node(name: str = "n1", address: str = "10.0.0.1", **allocatable: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "status": {
            "allocatable": allocatable,
            "addresses": [
                {"type": "Hostname", "address": name},
                {"type": "InternalIP", "address": address},
            ],
        },
    }


GPU_NODE = a_node(**{"nvidia.com/gpu": "8"})


async def test_agents_are_where_nodes_offer_gpus() -> None:
    async with a_world() as world:
        _want(world.wanted, Change(None, GPU_NODE), 50052)
        _want(world.wanted, Change(None, a_node("cpu-only", cpu="8")), 50052)
        await settle()

        assert world.agents.links == [Address("10.0.0.1", 50052)]
        assert world.model.unsynced_reason() == "1 of 1 agents not heard yet"


async def test_an_agent_goes_with_its_node_or_its_gpus() -> None:
    without = a_node(**{"nvidia.com/gpu": "0"})
    for change in (Change(GPU_NODE, None), Change(GPU_NODE, without)):
        async with a_world() as world:
            _want(world.wanted, Change(None, GPU_NODE), 50052)
            await settle()
            _want(world.wanted, change, 50052)
            await settle()

            assert world.agents.links == []
            assert world.model.unsynced_reason() == ""


async def test_a_list_of_many_nodes_is_taken_in_at_once() -> None:
    async with a_world() as world:
        nodes = [
            a_node(f"n{i}", f"10.1.{i // 250}.{i % 250}", **{"nvidia.com/gpu": "8"}) for i in range(2000)
        ]
        for node in nodes:
            _want(world.wanted, Change(None, node), 50052)

        assert world.model.unsynced_reason() == "2000 of 2000 agents not heard yet"


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


def test_a_node_of_kubernetes_is_read_as_far_as_discovery_needs_it() -> None:
    node = a_node(**{"nvidia.com/mig-1g.5gb": "7", "gpuloom.dev/gpu-milli": "0"})
    node["metadata"]["labels"] = {"gpuloom.dev/mode": "nvidia"}

    read = cluster_node(node)

    assert (read.name, read.uid, read.mode) == ("n1", "uid-n1", NodeMode.NVIDIA)
    assert (read.offers_nvidia, read.offers_gpuloom) == (True, False)
    assert internal_address(node) == "10.0.0.1"


def test_a_mode_that_does_not_exist_is_no_mode() -> None:
    node = a_node()
    node["metadata"]["labels"] = {"gpuloom.dev/mode": "both"}

    assert cluster_node(node).mode is NodeMode.UNKNOWN


def test_an_amount_that_can_not_be_read_counts_as_some() -> None:
    read = cluster_node(a_node(**{"nvidia.com/gpu": "many", "gpuloom.dev/gpu-milli": "-"}))

    assert read.offers_nvidia
    assert read.offers_gpuloom


def test_a_node_without_status_offers_nothing_and_has_no_address() -> None:
    node = {"metadata": {"name": "n1", "uid": "u1"}}

    assert not cluster_node(node).offers_nvidia
    assert internal_address(node) == ""


def an_agents_file(folder: Path, **agents: str) -> Path:
    path = folder / "agents.json"
    path.write_bytes(orjson.dumps(agents))
    return path
