"""The elected replica and its lease, on an API in this process and by a clock that the test moves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import ConflictError, NotFoundError, UnavailableError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import NODES, Resource
from gpuloom.runtime.clock import FakeClock, settle
from services.discovery.writer.config import WriterConfig
from services.discovery.writer.metrics import WriterMetrics
from services.discovery.writer.wiring import Writer, WriterParts
from tests.unit.discovery.writer.kubernetes import FakeModel, FakeNodes

LEASE_S = 6.0


class FakeApi:
    """Leases and the patches of nodes' status, with the timeouts they were sent with."""

    def __init__(self) -> None:
        self.lease: JsonObject | None = None
        self.down = False
        self.patched: list[str] = []
        self.timeouts_s: list[float] = []
        self._version = 0

    async def get(self, resource: Resource, name: str, namespace: str, *, timeout_s: float) -> JsonObject:
        self._require_up()
        if self.lease is None:
            raise NotFoundError(name)
        return self.lease

    async def create(self, resource: Resource, obj: JsonObject, **_: Any) -> JsonObject:
        self._require_up()
        if resource.plural != "leases":
            return obj
        return self._store(obj)

    async def replace(self, resource: Resource, obj: JsonObject, *, timeout_s: float) -> JsonObject:
        self._require_up()
        stored = self.lease or {}
        if obj["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]:
            raise ConflictError("another version")
        return self._store(obj)

    async def patch_status(
        self, resource: Resource, name: str, namespace: None, patch: JsonObject, **options: Any
    ) -> JsonObject:
        assert resource is NODES
        self.timeouts_s.append(options["timeout_s"])
        self._require_up()
        self.patched.append(name)
        return patch

    def take_lease(self) -> None:
        """As another replica would, after this one's time."""
        assert self.lease is not None
        self._store({**self.lease, "spec": {**self.lease["spec"], "holderIdentity": "another"}})

    def _store(self, obj: JsonObject) -> JsonObject:
        self._version += 1
        self.lease = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        return self.lease

    def _require_up(self) -> None:
        if self.down:
            raise UnavailableError("down")


class PausableClock(FakeClock):
    def pause(self, seconds: float) -> None:
        """The whole process is stopped: time goes on, and nobody has been woken yet."""
        self._elapsed_s += seconds


class Place:
    def __init__(self, ready: bool = True) -> None:
        self.clock, self.api = PausableClock(), FakeApi()
        self.nodes, self.model = FakeNodes("a"), FakeModel()
        self.ready = ready
        self.registry = CollectorRegistry()
        parts = WriterParts(
            cast(KubeClient, self.api), self.nodes.as_informer(), self.model.as_model(), lambda: self.ready
        )
        self.writer = Writer(parts, WriterConfig(), self.clock, WriterMetrics(self.registry))

    @property
    def elected(self) -> bool:
        return self.registry.get_sample_value("gpuloom_discovery_elected") == 1.0


@asynccontextmanager
async def standing(place: Place) -> AsyncIterator[Place]:
    running = asyncio.create_task(place.writer.run())
    await place.clock.advance(0.5)
    try:
        yield place
    finally:
        running.cancel()
        await settle()
        with pytest.raises(asyncio.CancelledError):
            await running


async def elect(place: Place) -> None:
    """Another's lease, if it was one, has to end first."""
    for _ in range(20):
        if place.elected:
            return
        await place.clock.advance(0.5)
    raise AssertionError("not elected")


async def test_a_replica_that_does_not_know_the_cluster_does_not_stand_for_election() -> None:
    async with standing(Place(ready=False)) as place:
        await place.clock.advance(20)
        early = place.api.lease

        place.ready = True
        await elect(place)

    assert early is None
    assert place.api.patched == ["a"]


async def test_while_another_holds_the_lease_nothing_is_written_or_said() -> None:
    place = Place()
    await place.api.create(Resource("", "v1", "leases", "Lease"), a_lease("another"))
    async with standing(place):
        for _ in range(30):
            place.api.take_lease()
            await place.clock.advance(1)

    assert (place.elected, place.api.patched) == (False, [])


async def test_a_replica_that_lost_its_lease_writes_again_only_after_another_election() -> None:
    async with standing(Place()) as place:
        await elect(place)
        place.api.take_lease()
        await place.clock.advance(2)
        place.nodes.change("a")
        place.nodes.tell("a")
        await place.clock.advance(2)
        without_lease = list(place.api.patched)

        await place.clock.advance(10)
        await elect(place)

    assert without_lease == ["a"]
    assert place.api.patched == ["a", "a"]


@pytest.mark.parametrize("paused_s", [LEASE_S, 3600.0])
async def test_news_that_reach_a_replica_right_after_a_pause_make_it_write_nothing(paused_s: float) -> None:
    """They may be read before the renewal of the lease gets its turn."""
    async with standing(Place()) as place:
        await elect(place)
        before = list(place.api.patched)
        place.clock.pause(paused_s)

        place.nodes.change("a")
        place.nodes.tell("a")
        await settle()

        assert place.elected
        assert place.api.patched == before == ["a"]


async def test_an_api_that_is_silent_ends_the_writing_before_the_lease_is_over() -> None:
    async with standing(Place()) as place:
        await elect(place)
        place.api.down = True

        await place.clock.advance(LEASE_S - 1)

        assert not place.elected


async def test_after_many_elections_the_next_still_comes_soon() -> None:
    async with standing(Place()) as place:
        for _ in range(6):
            await elect(place)
            place.api.down = True
            await place.clock.advance(LEASE_S)
            place.api.down = False
            await place.clock.advance(2 * LEASE_S)

            assert place.elected


def a_lease(holder: str) -> JsonObject:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 6, "renewTime": "2026-01-01T00:00:00.000000Z"}
    return {"metadata": {"namespace": "gpuloom-system", "name": "gpuloom-discovery"}, "spec": spec}
