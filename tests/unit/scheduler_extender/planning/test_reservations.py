"""A reservation keeps what it says as long as it says, for those it selects, and is never sold twice."""

from datetime import timedelta
from typing import Any

import pytest

from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject
from gpuloom.model.claims import GpuReservation, GpuReservationStatus
from gpuloom.names import ANNOTATION_RESERVATION
from gpuloom.placement.gangs.sites import neutral_judge
from gpuloom.runtime.clock import FakeClock
from services.scheduler_extender.core.gangs.entitlements import ReservationBook
from services.scheduler_extender.planning.reservations import ReservationLoop, ReservationParts
from tests.unit.scheduler_extender.planning.desk import Kubernetes, Leader


class Reserving:
    """A leader with reservations, and what it last wrote of each."""

    def __init__(self, kubernetes: Kubernetes, clock: FakeClock, *made: JsonObject) -> None:
        self.book = ReservationBook()
        self.leader = Leader(kubernetes, clock, self.book.entitlement_of)
        self.written: dict[str, GpuReservationStatus] = {}
        leader = self.leader
        parts = ReservationParts(
            self.book,
            leader.book,
            kubernetes,
            leader.state.ledger,
            leader.promises,
            leader.holding,
            self,
            neutral_judge,
            leader.state.wake_for,
        )
        self.loop = ReservationLoop(parts, clock)
        for obj in made:
            self.book.observe(Change(None, obj))

    def state(self) -> str:
        return str(self.written["later"].state)

    async def write(self, reservation: GpuReservation, status: GpuReservationStatus) -> None:
        self.written[reservation.meta.name] = status


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def a_reservation(name: str = "later", *, gpus: int = 1, count: int = 1, **spec: Any) -> JsonObject:
    timing = {"ttl": "1h"} if "until" not in spec else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"request": {"gpuCount": gpus}, "count": count, **timing, **spec},
    }


FOR_TEAM: dict[str, Any] = {"selector": {"matchLabels": {"team": "a"}}}


async def test_what_is_reserved_is_kept_for_those_it_selects(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 2})
    here = Reserving(kubernetes, clock, a_reservation(count=2, **FOR_TEAM))
    await here.loop.turn()
    kubernetes.create("other")
    kubernetes.create("ours", labels={"team": "a"})

    assert here.leader.offered("other") == []
    assert await here.leader.schedule("ours") == {"ours": ""}
    assert here.state() == "Active"
    assert here.written["later"].reserved == 2
    assert kubernetes.pods["ours"]["metadata"]["annotations"][ANNOTATION_RESERVATION] == "later"


async def test_a_used_place_counts_and_is_kept_again_when_its_pod_has_gone(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 4})
    here = Reserving(kubernetes, clock, a_reservation(count=2, **FOR_TEAM))
    await here.loop.turn()
    kubernetes.create("ours", labels={"team": "a"})
    await here.leader.schedule("ours")
    await here.loop.turn()

    assert here.leader.free_cards() == 2
    assert len(kubernetes.holds.objects) == 1
    assert here.written["later"].reserved == 2
    kubernetes.delete("ours")
    await here.leader.released()
    await here.loop.turn()
    assert len(kubernetes.holds.objects) == 2
    assert here.leader.free_cards() == 2


async def test_it_survives_a_fail_over_and_is_never_sold_twice(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 1})
    made = a_reservation(**FOR_TEAM)
    first = Reserving(kubernetes, clock, made)
    await first.loop.turn()
    held = dict(kubernetes.holds.objects)
    first.leader.die()

    successor = Reserving(kubernetes, clock, made, a_reservation("second", **FOR_TEAM))
    kubernetes.create("other")
    assert successor.leader.offered("other") == []
    await successor.loop.turn()

    assert kubernetes.holds.objects.keys() == held.keys()
    assert successor.written["second"].reserved == 0
    for name in ("a", "b"):
        kubernetes.create(name, labels={"team": "a"})
    outcome = await successor.leader.schedule("a", "b")
    assert outcome == {"a": "", "b": "refused"}


async def test_it_begins_and_ends_when_it_says(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 1})
    times: dict[str, Any] = {"from": "2026-01-01T00:10:00Z", "until": "2026-01-01T00:20:00Z"}
    here = Reserving(kubernetes, clock, a_reservation(**times))

    await here.loop.turn()
    assert here.state() == "Pending"
    assert here.leader.free_cards() == 1
    await clock.advance(timedelta(minutes=10).total_seconds())
    await here.loop.turn()
    assert here.leader.free_cards() == 0
    await clock.advance(timedelta(minutes=10).total_seconds())
    await here.loop.turn()

    assert here.state() == "Expired"
    assert here.leader.free_cards() == 1
    assert not kubernetes.holds.objects


async def test_a_deleted_or_smaller_one_gives_back(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 4})
    here = Reserving(kubernetes, clock, a_reservation(count=3))
    await here.loop.turn()
    here.book.observe(Change(None, a_reservation(count=1)))
    await here.loop.turn()
    assert len(kubernetes.holds.objects) == 1

    here.book.observe(Change(a_reservation(), None))
    await here.loop.turn()

    assert not kubernetes.holds.objects


async def test_as_many_places_as_there_are_each_on_one_node(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 3, "n2": 3})
    here = Reserving(kubernetes, clock, a_reservation(gpus=2, count=4))

    await here.loop.turn()

    assert here.written["later"].reserved == 2
    assert here.written["later"].nodes == ("n1", "n2")
    assert here.leader.free_cards() == 2


async def test_a_pod_that_insists_goes_nowhere_else(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 1})
    here = Reserving(kubernetes, clock, a_reservation(**FOR_TEAM))
    notes = {ANNOTATION_RESERVATION: "missing"}
    kubernetes.create("lost", notes=notes, labels={"team": "a"})
    kubernetes.create("wrong", notes={ANNOTATION_RESERVATION: "later"})
    kubernetes.create("early", notes={ANNOTATION_RESERVATION: "later"}, labels={"team": "a"})

    assert [here.leader.offered(name) for name in ("lost", "wrong", "early")] == [[], [], []]
    assert "GPUReservation" in await here.leader.bind("early", "n1")
    await here.loop.turn()
    assert [here.leader.offered(name) for name in ("lost", "wrong", "early")] == [[], [], ["n1"]]
