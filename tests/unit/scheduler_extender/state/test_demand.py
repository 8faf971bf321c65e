"""What is learned of pods, when it is priced, and how it is kept."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import pytest

from gpuloom.errors import NotAllowedError, NotFoundError
from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import CONFIGMAPS, Resource
from gpuloom.placement.demand import Demand, demand_from_json, pods_until_repricing
from gpuloom.placement.fleet.fleet import Fleet
from gpuloom.placement.potential import Prices
from gpuloom.runtime.clock import FakeClock, settle
from services.scheduler_extender.adapters.demand import KEY, NAME, SAVE_INTERVAL_S, DemandStore
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.state.demand import Learning
from tests.unit.placement.builders import a_share
from tests.unit.scheduler_extender.builders import HandClock, a_pod, a_ref


class WatchedFleet(Fleet):
    def __init__(self) -> None:
        super().__init__()
        self.priced = asyncio.Event()

    def set_prices(self, prices: Prices) -> None:
        super().set_prices(prices)
        self.priced.set()


class ConfigMaps:
    """As much of the API as the store needs; `refusal` is its answer to everything while it is set."""

    def __init__(self, text: str | None = None) -> None:
        self.text = text
        self.writes = 0
        self.refusal: NotAllowedError | NotFoundError | None = None

    async def get(self, resource: Resource, name: str, namespace: str, *, timeout_s: float) -> JsonObject:
        self._check(resource, name)
        if self.text is None:
            raise NotFoundError("no such ConfigMap")
        return {"data": {KEY: self.text}}

    async def patch(
        self, resource: Resource, name: str, namespace: str, patch: JsonObject, *, timeout_s: float
    ) -> None:
        self._check(resource, name)
        if self.text is None:
            raise NotFoundError("no such ConfigMap")
        self._write(patch)

    async def create(self, resource: Resource, obj: JsonObject, *, timeout_s: float) -> None:
        self._check(resource, obj["metadata"]["name"])
        self._write(obj)

    def _write(self, obj: JsonObject) -> None:
        self.text = obj["data"][KEY]
        self.writes += 1

    def _check(self, resource: Resource, name: str) -> None:
        assert (resource, name) == (CONFIGMAPS, NAME)
        if self.refusal is not None:
            raise self.refusal


def a_store(maps: ConfigMaps, clock: FakeClock | None = None) -> DemandStore:
    return DemandStore(maps, "here", clock or FakeClock())  # type: ignore[arg-type]


@asynccontextmanager
async def running(coroutine: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(coroutine)
    await settle()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def test_a_pod_is_learned_once_when_it_comes_unbound() -> None:
    learning = Learning(Fleet())
    state = ClusterState(Ledger(30.0), lambda: False, HandClock())
    state.on_arrival(learning.learn)
    waiting, bound = a_pod(a_ref("a")), a_pod(a_ref("a"), node="node")

    state.observe_pod(Change(None, waiting))
    state.observe_pod(Change(waiting, waiting))
    state.observe_pod(Change(waiting, bound))
    state.observe_pod(Change(None, a_pod(a_ref("b"), node="node")))
    state.observe_pod(Change(None, a_pod(a_ref("c"), {"cpu": "1"})))

    assert learning.demand.pods == 1.0


async def test_prices_follow_what_was_learned() -> None:
    fleet = WatchedFleet()
    learning, neutral = Learning(fleet), fleet.prices

    async with running(learning.run()):
        for _ in range(pods_until_repricing(0)):
            assert fleet.prices is neutral
            learning.learn(a_share(300))
        async with asyncio.timeout(10):
            await fleet.priced.wait()

    assert fleet.prices.card_micro[200] != neutral.card_micro[200]


async def test_statistics_are_saved_by_the_leader_alone_and_only_if_they_changed() -> None:
    maps, clock, leads = ConfigMaps(), FakeClock(), False
    demand = Demand().with_pod(a_share(500))
    writes = []

    async with running(a_store(maps, clock).keep(lambda: demand, lambda: leads)):
        for _ in range(3):
            await clock.advance(SAVE_INTERVAL_S)
            writes.append(maps.writes)
            leads = True
        demand = demand.with_pod(a_share(500))
        await clock.advance(SAVE_INTERVAL_S / 2)
        writes.append(maps.writes)
        await clock.advance(SAVE_INTERVAL_S / 2)
        writes.append(maps.writes)

    assert writes == [0, 1, 1, 1, 2]
    assert maps.text == demand.to_json()


async def test_what_was_saved_is_read_again_and_not_saved_once_more() -> None:
    saved = demand_from_json(Demand().with_pod(a_share(500)).to_json())
    maps, clock = ConfigMaps(saved.to_json()), FakeClock()
    store = a_store(maps, clock)

    found = await store.load()
    async with running(store.keep(lambda: saved, lambda: True)):
        await clock.advance(SAVE_INTERVAL_S)

    assert found == saved
    assert maps.writes == 0


@pytest.mark.parametrize("text", ["", "{", '{"v":2}', None])
async def test_what_cannot_be_used_is_ignored(text: str | None) -> None:
    assert await a_store(ConfigMaps(text)).load() is None


async def test_without_rights_it_goes_on_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    maps, clock, demand = ConfigMaps(), FakeClock(), Demand().with_pod(a_share(500))
    maps.refusal = NotAllowedError("no rights")
    store = a_store(maps, clock)

    found = await store.load()
    async with running(store.keep(lambda: demand, lambda: True)):
        for _ in range(3):
            await clock.advance(SAVE_INTERVAL_S)
        maps.refusal = None
        await clock.advance(SAVE_INTERVAL_S)

    assert found is None
    assert len(caplog.records) == 1
    assert maps.text == demand.to_json()
