"""Work under a lease: who does it, until when it may write, and what follows a loss."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from gpuloom.errors import NotReadyError
from gpuloom.kube.errors import LeadershipLostError
from gpuloom.kube.leadership import Leadership, LeadershipConfig, OnLoss, leadership_group
from gpuloom.kube.lease import record_from
from gpuloom.runtime.clock import FakeClock, settle
from gpuloom.runtime.config import load_config
from tests.unit.kube.lease_store import LeaseLink, LeaseStore, PausableClock

DURATION_S = 6.0
CONTESTED = {"GPULOOM_POD_NAMESPACE": "gpus", "GPULOOM_POD_NAME": "discovery-0"}


def a_config(**environ: str) -> LeadershipConfig:
    return load_config(Settings, environ).leadership


@dataclass(frozen=True)
class Settings:
    leadership: LeadershipConfig = leadership_group("discovery")


class Replica:
    def __init__(self, clock: FakeClock, on_loss: OnLoss, environ: Mapping[str, str]) -> None:
        self.clock = PausableClock(clock)
        self.store = LeaseStore()
        link = LeaseLink(self.store, self.clock, clock)
        self.leadership = Leadership(link, a_config(**environ), self.clock, {}, on_loss)
        self.terms = 0
        self.warm = True
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self.leadership.run(self._work, lambda: self.warm))

    async def _work(self) -> None:
        self.terms += 1
        await asyncio.Event().wait()


@asynccontextmanager
async def a_replica(on_loss: OnLoss = OnLoss.END, **environ: str) -> AsyncIterator[tuple[Replica, FakeClock]]:
    clock = FakeClock()
    replica = Replica(clock, on_loss, environ or CONTESTED)
    yield replica, clock
    if replica.task is not None and not replica.task.done():
        replica.task.cancel()
        await clock.advance(DURATION_S)
        await asyncio.gather(replica.task, return_exceptions=True)


def take_the_lease(replica: Replica) -> None:
    (lease,) = replica.store.leases.values()
    replica.store.replace({**lease, "spec": {**lease["spec"], "holderIdentity": "another"}})


async def test_nobody_stands_for_election_before_it_is_warm() -> None:
    async with a_replica() as (replica, clock):
        replica.warm = False
        replica.start()
        await clock.advance(20.0)
        cold_terms = replica.terms

        replica.warm = True
        await clock.advance(1.0)

        assert (cold_terms, replica.terms) == (0, 1)
        assert replica.leadership.is_leader()


async def test_the_lease_is_in_the_pods_namespace_under_the_services_name() -> None:
    async with a_replica() as (replica, clock):
        replica.start()
        await clock.advance(1.0)

        ((key, lease),) = replica.store.leases.items()

        assert key == ("gpus", "gpuloom-discovery")
        assert record_from(lease).holder.startswith("discovery-0-")


async def test_a_write_ends_with_the_lease_and_none_is_sent_after_a_pause() -> None:
    async with a_replica() as (replica, clock):
        replica.start()
        await clock.advance(1.0)
        soon_s = replica.leadership.write_timeout_s(1.0)
        long_s = replica.leadership.write_timeout_s(3600.0)

        replica.clock.pause()
        await clock.advance(DURATION_S)

        assert soon_s == 1.0
        assert 1.0 < long_s < DURATION_S
        with pytest.raises(NotReadyError):
            replica.leadership.write_timeout_s(1.0)
        assert not replica.leadership.is_leader()
        replica.clock.resume()


async def test_whoever_loses_its_lease_ends_unless_it_may_stand_again() -> None:
    async with a_replica(OnLoss.END) as (ending, clock):
        ending.start()
        await clock.advance(1.0)
        take_the_lease(ending)
        await clock.advance(DURATION_S)

        assert ending.task is not None
        with pytest.raises(LeadershipLostError):
            await ending.task

    async with a_replica(OnLoss.STAND_AGAIN) as (standing, clock):
        standing.start()
        await clock.advance(1.0)
        take_the_lease(standing)
        await clock.advance(4 * DURATION_S)

        assert standing.terms == 2
        assert standing.leadership.is_leader()


async def test_the_only_replica_asks_nobody_and_writes_without_a_bound() -> None:
    async with a_replica(GPULOOM_DISCOVERY_LEADER_ELECTION="false") as (replica, _):
        with pytest.raises(NotReadyError):
            replica.leadership.write_timeout_s(5.0)

        replica.start()
        await settle()

        assert replica.store.leases == {}
        assert replica.leadership.write_timeout_s(math.inf) == math.inf
