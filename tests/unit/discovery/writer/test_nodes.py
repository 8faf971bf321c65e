import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import ConflictError, GpuloomError, NotFoundError, UnavailableError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.node import NodeMode
from gpuloom.runtime.clock import FakeClock, settle
from gpuloom.sim.kubeapi.objects.patches import merge
from services.discovery.core.desired import Desired
from services.discovery.writer.metrics import WriterMetrics
from services.discovery.writer.nodes import NodeWriter

EIGHT = Desired(NodeMode.GPULOOM, 8, 1000)


class Cluster:
    """Nodes as the API has them, as an observer has seen them, and what was written."""

    def __init__(self, *names: str) -> None:
        self.stored: dict[str, JsonObject] = {name: a_node(name) for name in names}
        self.seen = dict(self.stored)
        self.desired: dict[str, Desired] = {f"uid-{name}": EIGHT for name in names}
        self.written: list[str] = []
        self.failures: list[GpuloomError] = []
        self.lost_answers = 0

    def get(self, name: str, namespace: str = "") -> JsonObject | None:
        return self.seen.get(name)

    def objects(self) -> list[JsonObject]:
        return list(self.seen.values())

    async def patch(self, name: str, patch: JsonObject, resource_version: str) -> JsonObject:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        node = self.stored.get(name)
        if node is None:
            raise NotFoundError(name)
        if node["metadata"]["resourceVersion"] != resource_version:
            raise ConflictError("changed")
        self.stored[name] = bumped(merge(node, patch))
        self.written.append(name)
        if self.lost_answers:
            self.lost_answers -= 1
            raise UnavailableError("the answer was lost")
        return self.stored[name]

    def change(self, name: str, patch: JsonObject) -> None:
        """Somebody else writes."""
        self.stored[name] = bumped(merge(self.stored[name], patch))


def a_node(name: str) -> JsonObject:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}, "status": {}}


def bumped(node: JsonObject) -> JsonObject:
    version = str(int(node["metadata"]["resourceVersion"]) + 1)
    return {**node, "metadata": {**node["metadata"], "resourceVersion": version}}


class Place:
    def __init__(self, cluster: Cluster, clock: FakeClock) -> None:
        self.cluster, self.clock = cluster, clock
        metrics = WriterMetrics(CollectorRegistry())
        self.writer = NodeWriter(cluster, cluster.desired.get, cluster, clock, metrics)

    async def observe(self) -> None:
        """The informer catches up."""
        before, self.cluster.seen = self.cluster.seen, dict(self.cluster.stored)
        for name in before.keys() | self.cluster.seen.keys():
            if before.get(name) is not self.cluster.seen.get(name):
                self.writer.touch(name)
        await settle()


@asynccontextmanager
async def writing(cluster: Cluster) -> AsyncIterator[Place]:
    place = Place(cluster, FakeClock())
    running = asyncio.create_task(place.writer.loop.run())
    await settle()
    try:
        yield place
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_every_node_is_written_once_and_then_left_alone() -> None:
    async with writing(Cluster("a", "b", "c")) as place:
        for _ in range(3):
            await place.observe()

    assert sorted(place.cluster.written) == ["a", "b", "c"]


async def test_nothing_is_written_again_before_the_last_write_was_observed() -> None:
    cluster = Cluster("a")
    async with writing(cluster) as place:
        cluster.desired["uid-a"] = replace(EIGHT, gpu_count=7)
        for _ in range(5):
            place.writer.touch("a")
            await settle()
        before_observed = list(cluster.written)

        await place.observe()

    assert before_observed == ["a"]
    assert cluster.written == ["a", "a"]
    assert cluster.stored["a"]["status"]["capacity"]["gpuloom.dev/gpu-milli"] == "7000"


async def test_what_others_take_away_is_put_back() -> None:
    cluster = Cluster("a")
    async with writing(cluster) as place:
        await place.observe()
        cluster.change("a", {"status": {"allocatable": None}})

        await place.observe()
        await place.observe()

    assert cluster.stored["a"]["status"]["allocatable"]["gpuloom.dev/gpu-milli"] == "8000"
    assert cluster.written == ["a", "a"]


async def test_a_write_that_came_too_late_is_made_anew_on_what_is_there_now() -> None:
    cluster = Cluster("a")
    cluster.change("a", {"metadata": {"labels": {"theirs": "yes"}}})
    async with writing(cluster) as place:
        await place.observe()
        await place.observe()

    assert cluster.written == ["a"]
    assert cluster.stored["a"]["metadata"]["labels"] == {"theirs": "yes", "gpuloom.dev/mode": "gpuloom"}


async def test_an_api_that_fails_is_tried_again_and_holds_up_no_other_node() -> None:
    cluster = Cluster(*(f"n{number}" for number in range(20)))
    cluster.failures = [UnavailableError("down") for _ in range(10)]
    async with writing(cluster) as place:
        at_first = len(cluster.written)

        await place.clock.advance(2)
        await settle()

    assert at_first == 10
    assert sorted(cluster.written) == sorted(cluster.stored)


async def test_a_write_whose_answer_was_lost_is_not_made_twice() -> None:
    cluster = Cluster("a")
    cluster.lost_answers = 1
    async with writing(cluster) as place:
        await place.observe()

        await place.clock.advance(120)

    assert cluster.written == ["a"]


async def test_a_node_whose_agent_is_not_heard_is_left_as_it_is() -> None:
    cluster = Cluster("a")
    cluster.desired.clear()
    async with writing(cluster) as place:
        await place.observe()

    assert cluster.written == []


async def test_a_node_that_goes_meanwhile_is_forgotten() -> None:
    cluster = Cluster("a")
    del cluster.stored["a"]
    async with writing(cluster) as place:
        await place.observe()

        await place.clock.advance(120)

    assert cluster.written == []
