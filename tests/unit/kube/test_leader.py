import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.errors import InvalidRequestError
from gpuloom.kube.errors import LeadershipLostError
from gpuloom.kube.leader import LeaderElector, LeaderSettings
from gpuloom.kube.lease import record_from
from gpuloom.runtime.clock import FakeClock, settle
from tests.effort import examples
from tests.unit.kube.lease_store import Fault, LeaseLink, LeaseStore, PausableClock

KEY = ("gpuloom-system", "extender")
ACT_EVERY_S = 0.3
STOP_TAKES_S = 1.0


class Replica:
    """A process that leads whenever it can, and notes when two could have acted at once."""

    def __init__(self, name: str, cluster: "Cluster", faults: Sequence[Fault] = ()) -> None:
        self.clock = PausableClock(cluster.clock)
        self.link = LeaseLink(cluster.store, self.clock, cluster.clock, faults)
        self.elector = LeaderElector(self.link, *KEY, name, self.clock)
        self.working = False
        self.ended_by: BaseException | None = None
        self._cluster = cluster
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._lead_forever())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            while not self._task.done():
                await self._cluster.clock.advance(0.5)
            self._task = None

    def kill(self) -> None:
        """Nothing of it runs any more, so nothing is released."""
        self.clock.pause()

    async def _lead_forever(self) -> None:
        while True:
            try:
                await self.elector.run(self._work)
            except LeadershipLostError as error:
                self.ended_by = error

    async def _work(self) -> None:
        self.working = True
        try:
            while True:
                self._act()
                await self.clock.sleep(ACT_EVERY_S)
        finally:
            # A second cancellation, when the lease is lost during a shutdown, cuts this short.
            try:
                await self.clock.sleep(STOP_TAKES_S)
            finally:
                self.working = False

    def _act(self) -> None:
        others = [other for other in self._cluster.replicas if other is not self]
        if any(other.working for other in others):
            self._cluster.overlaps += 1
        # What a careful writer does: no write unless leadership certainly holds.
        if self.elector.is_leader and any(other.elector.is_leader for other in others):
            self._cluster.fenced_overlaps += 1


class Cluster:
    def __init__(self, *faults: Sequence[Fault]) -> None:
        self.clock = FakeClock()
        self.store = LeaseStore()
        self.overlaps = 0
        self.fenced_overlaps = 0
        self.replicas = [Replica(f"replica-{i}", self, some) for i, some in enumerate(faults)]

    def working(self) -> list[str]:
        return [f"replica-{i}" for i, replica in enumerate(self.replicas) if replica.working]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        for replica in self.replicas:
            replica.start()
            await settle()
        try:
            yield
        finally:
            for replica in self.replicas:
                replica.clock.resume()
                replica.link.heal()
                await replica.stop()


async def test_the_first_leads_and_the_second_waits() -> None:
    cluster = Cluster([], [])

    async with cluster.running():
        await cluster.clock.advance(30.0)
        working, lease = cluster.working(), record_from(cluster.store.leases[KEY])

    assert working == ["replica-0"]
    assert (lease.holder, lease.transitions, lease.duration_s) == ("replica-0", 0, 6)


async def test_a_dead_leader_is_replaced_within_ten_seconds() -> None:
    cluster = Cluster([], [])

    async with cluster.running():
        await cluster.clock.advance(10.0)
        cluster.replicas[0].kill()
        await cluster.clock.advance(9.9)
        is_leader, lease = cluster.replicas[1].elector.is_leader, record_from(cluster.store.leases[KEY])

    assert is_leader
    assert (lease.holder, lease.transitions) == ("replica-1", 1)


@pytest.mark.parametrize("lived_s", [10.0 + part / 10 for part in range(13)])
async def test_a_standby_takes_the_lease_as_soon_as_it_has_ended(lived_s: float) -> None:
    cluster = Cluster([], [])

    async with cluster.running():
        await cluster.clock.advance(lived_s)
        cluster.replicas[0].kill()
        # The lease, and how long ago its last renewal was seen at the first look after it.
        await cluster.clock.advance(6.0 + 1.2 + 0.1)
        is_leader = cluster.replicas[1].elector.is_leader

    assert is_leader


async def test_a_clean_exit_hands_over_within_two_seconds() -> None:
    cluster = Cluster([], [])

    async with cluster.running():
        await cluster.clock.advance(10.0)
        await cluster.replicas[0].stop()
        await cluster.clock.advance(2.0)
        working = cluster.working()

    assert working == ["replica-1"]


async def test_the_lease_is_kept_while_a_cancelled_work_drains() -> None:
    cluster = Cluster([], [])
    drained: list[bool] = []

    async def work() -> None:
        try:
            await cluster.clock.sleep(1e9)
        finally:
            await cluster.clock.sleep(20.0)
            drained.append(cluster.replicas[0].elector.is_leader)

    leader = asyncio.create_task(cluster.replicas[0].elector.run(work))
    await settle()
    leader.cancel()
    await cluster.clock.advance(21.0)

    assert drained == [True]
    assert record_from(cluster.store.leases[KEY]).holder == ""
    assert leader.cancelled()


@pytest.mark.parametrize("trouble", [Fault(lost="request"), Fault(lost="answer"), Fault(there_s=100.0)])
async def test_work_is_stopped_before_the_lease_of_a_cut_off_leader_ends(trouble: Fault) -> None:
    cluster = Cluster([], [])

    async with cluster.running():
        await cluster.clock.advance(10.0)
        leader = cluster.replicas[0]
        until_s = leader.elector.leader_until_s()
        leader.link.suffer(trouble)
        await cluster.clock.advance(until_s - cluster.clock.monotonic() - 0.01)
        stopped_in_time = not leader.working
        await cluster.clock.advance(14.0)
        working = cluster.working()

    assert stopped_in_time
    assert isinstance(leader.ended_by, LeadershipLostError)
    assert working == ["replica-1"]


async def test_the_works_own_error_comes_out_as_it_is_and_frees_the_lease() -> None:
    cluster = Cluster([])

    async def work() -> None:
        raise ValueError("broken loop")

    with pytest.raises(ValueError, match="broken loop"):
        await cluster.replicas[0].elector.run(work)

    assert record_from(cluster.store.leases[KEY]).holder == ""
    assert not cluster.replicas[0].elector.is_leader


async def test_a_work_that_returns_ends_the_run_and_frees_the_lease() -> None:
    cluster = Cluster([])
    led: list[bool] = []

    async def work() -> None:
        led.append(cluster.replicas[0].elector.is_leader)

    await cluster.replicas[0].elector.run(work)

    assert led == [True]
    assert record_from(cluster.store.leases[KEY]).holder == ""


async def test_two_processes_of_the_same_name_are_kept_apart() -> None:
    cluster = Cluster([], [])
    twin = cluster.replicas[1]
    twin.elector = LeaderElector(twin.link, *KEY, "replica-0", twin.clock)

    async with cluster.running():
        await cluster.clock.advance(30.0)
        working = cluster.working()

    assert working == ["replica-0"]
    assert cluster.overlaps == 0


async def test_a_deleted_lease_is_not_taken_while_its_holder_may_still_work() -> None:
    cluster = Cluster([], [])

    async with cluster.running():
        await cluster.clock.advance(10.0)
        del cluster.store.leases[KEY]
        await cluster.clock.advance(30.0)
        working = cluster.working()

    assert len(working) == 1
    assert cluster.overlaps == 0


async def test_a_remote_clock_that_is_wrong_by_years_changes_nothing() -> None:
    cluster = Cluster([], [])

    async with cluster.running():
        await cluster.clock.advance(3.0)
        cluster.store.leases[KEY]["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"
        await cluster.clock.advance(0.5)
        working = cluster.working()

    assert working == ["replica-0"]


def test_settings_that_leave_no_time_to_stop_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="renew_deadline_s"):
        LeaderSettings(lease_duration_s=6, renew_deadline_s=6.0)


DELAYS = st.sampled_from([0.0, 0.0, 0.1, 1.0, 1.9, 3.0, 7.0])
HEALTHY = st.just(Fault())
TROUBLE = st.builds(Fault, there_s=DELAYS, back_s=DELAYS, lost=st.sampled_from(["", "", "request", "answer"]))
FAULTS = st.lists(st.one_of(HEALTHY, TROUBLE), max_size=12)
SPANS = st.sampled_from([0.5, 1.5, 3.9, 6.1, 10.0])
OUTAGES = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), SPANS),
        st.tuples(st.just("restart"), st.integers(0, 1)),
    ),
    min_size=3,
    max_size=8,
)
PAUSES = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), SPANS),
        st.tuples(st.just("pause"), st.integers(0, 1)),
        st.tuples(st.just("resume"), st.integers(0, 1)),
    ),
    min_size=3,
    max_size=10,
)


async def play(cluster: Cluster, steps: Sequence[tuple[str, float]]) -> list[str]:
    """Who works half a minute after all trouble is over."""
    async with cluster.running():
        for name, argument in steps:
            if name == "advance":
                await cluster.clock.advance(argument)
                continue
            replica = cluster.replicas[int(argument)]
            if name == "pause":
                replica.clock.pause()
            elif name == "resume":
                replica.clock.resume()
            else:
                await replica.stop()
                replica.start()
        for replica in cluster.replicas:
            replica.clock.resume()
            replica.link.heal()
        await cluster.clock.advance(30.0)
        return cluster.working()


@settings(max_examples=examples(100))
@given(first=FAULTS, second=FAULTS, steps=OUTAGES)
def test_no_schedule_of_api_failures_lets_two_work_at_once(
    first: list[Fault], second: list[Fault], steps: list[tuple[str, float]]
) -> None:
    async def scenario() -> None:
        cluster = Cluster(first, second)

        working = await play(cluster, steps)

        assert cluster.overlaps == 0
        assert len(working) == 1

    asyncio.run(scenario())


@settings(max_examples=examples(100))
@given(first=FAULTS, second=FAULTS, steps=PAUSES)
def test_no_schedule_of_pauses_lets_two_be_sure_to_lead_at_once(
    first: list[Fault], second: list[Fault], steps: list[tuple[str, float]]
) -> None:
    async def scenario() -> None:
        cluster = Cluster(first, second)

        working = await play(cluster, steps)

        assert cluster.fenced_overlaps == 0
        assert len(working) == 1

    asyncio.run(scenario())
