"""A reservation keeps what it says as long as it says, for those it selects, and is never sold twice."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuloom.codec.planning import reservation_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject
from gpuloom.model.claims import GpuReservation, GpuReservationStatus
from gpuloom.model.planning import MOST_RESERVED_S, GangReport, ReservationReport
from gpuloom.names import ANNOTATION_RESERVATION
from gpuloom.placement.gangs.sites import neutral_judge
from gpuloom.runtime.clock import FakeClock
from gpuloom.v1 import scheduler_extender_pb2 as pb
from services.scheduler_extender.core.gangs.entitlements import ReservationBook
from services.scheduler_extender.planning.preemptions import PATIENCE_S
from services.scheduler_extender.planning.reservations import (
    UNFILLED_PAUSE_S,
    ReservationLoop,
    ReservationParts,
)
from services.scheduler_extender.planning.server import PlanServer
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


async def test_what_breaks_while_it_is_kept_is_kept_elsewhere(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 2, "n2": 2})
    here = Reserving(kubernetes, clock, a_reservation(gpus=2, **FOR_TEAM))
    await here.loop.turn()
    (node,) = here.written["later"].nodes
    kubernetes.broken.add(f"GPU-{node}-1")
    here.leader.hear_facts()

    await here.loop.turn()

    (elsewhere,) = here.written["later"].nodes
    assert elsewhere != node
    assert here.written["later"].reserved == 1
    assert len(kubernetes.holds.objects) == 2


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


async def test_half_a_place_that_a_crash_left_is_made_whole(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 3, "n2": 3})
    made = a_reservation(gpus=2, count=2)
    first = Reserving(kubernetes, clock, made)
    await first.loop.turn()
    kubernetes.holds.objects.popitem()
    first.leader.die()

    successor = Reserving(kubernetes, clock, made)
    await successor.loop.turn()

    assert successor.written["later"].reserved == 2
    assert len(kubernetes.holds.objects) == 4


async def test_a_smaller_one_keeps_places_and_not_halves_of_them(clock: FakeClock) -> None:
    kubernetes = Kubernetes({f"n{i}": 2 for i in range(6)})
    here = Reserving(kubernetes, clock, a_reservation(gpus=2, count=6))
    await here.loop.turn()

    here.book.observe(Change(None, a_reservation(gpus=2, count=3)))
    await here.loop.turn()
    await here.loop.turn()

    assert here.written["later"].reserved == 3
    assert len(here.written["later"].nodes) == 3


async def test_one_that_can_not_be_filled_is_not_tried_at_every_turn(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 1})
    here = Reserving(kubernetes, clock, a_reservation(count=2))
    await here.loop.turn()
    kubernetes.cards = {"n1": 1, "n2": 1}
    here.leader.state.observe_node(Change(None, here.leader.nodes.objects()[1]))
    here.leader.hear_facts()

    await here.loop.turn()
    assert here.written["later"].reserved == 1
    await clock.advance(UNFILLED_PAUSE_S)
    await here.loop.turn()

    assert here.written["later"].reserved == 2


async def test_one_that_ends_after_all_time_breaks_nothing(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 1})
    times: dict[str, Any] = {"from": "9999-12-31T23:00:00Z", "ttl": "99999h"}
    here = Reserving(kubernetes, clock, a_reservation(**times))

    await here.loop.turn()

    assert here.state() == "Pending"


@pytest.mark.parametrize(
    ("start", "end", "ttl_s", "problem"),
    [
        (None, datetime(2025, 1, 1, tzinfo=UTC), 0, "passed"),
        (datetime(2027, 1, 2, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC), 0, "after it begins"),
        (datetime(2025, 1, 1, tzinfo=UTC), None, 60, "over already"),
        (None, None, MOST_RESERVED_S, ""),
        (None, None, 2**32 - 1, "at most"),
        (datetime(2025, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC), 0, ""),
    ],
)
async def test_what_could_never_count_is_not_made(
    clock: FakeClock, start: datetime | None, end: datetime | None, ttl_s: int, problem: str
) -> None:
    made: list[JsonObject] = []

    class Objects:
        async def create(self, obj: JsonObject) -> JsonObject:
            made.append(obj)
            return obj

        async def delete(self, namespace: str, name: str) -> None:
            raise AssertionError

    class Nothing:
        def reports(self) -> tuple[GangReport, ...]:
            return ()

    book = ReservationBook()
    server = PlanServer(Nothing(), book, Objects(), lambda: "", clock)
    wanted = reservation_to_proto(ReservationReport("default", "r", start=start, end=end))
    request = pb.CreateReservationRequest(reservation=wanted, ttl_s=ttl_s)

    if problem:
        with pytest.raises(InvalidRequestError, match=problem):
            await server.CreateReservation(request, None)
        assert not made
        return
    await server.CreateReservation(request, None)
    given = {"metadata": {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    book.observe(Change(None, {**made[0], "metadata": {**made[0]["metadata"], **given["metadata"]}}))
    assert [each.state(clock.now()) for each in book.all()] == ["Active"]


async def test_a_gang_goes_where_places_are_reserved_for_it(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 2, "n2": 2, "n3": 4})
    here = Reserving(kubernetes, clock, a_reservation(count=4, **FOR_TEAM))
    await here.loop.turn()
    leader = here.leader
    kept = set(here.written["later"].nodes)
    names = kubernetes.gang("g", 4, labels={"team": "a"}, notes={ANNOTATION_RESERVATION: "later"})
    kubernetes.gang("other", 5)

    await leader.gangs.turn()
    kubernetes.create("single", labels={"team": "a"})
    free = leader.free_cards()
    assert await leader.schedule(*names) == dict.fromkeys(names, "")
    await leader.holding.tidy()
    await here.loop.turn()

    assert free == 4
    assert {kubernetes.bound()[name] for name in names} == kept
    assert here.written["later"].reserved == 4
    assert not kubernetes.holds.objects
    assert not set(leader.offered("single")) & kept


async def test_nobody_leaves_for_a_pod_that_insists_on_its_reservation(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 1, "n2": 1})
    here = Reserving(kubernetes, clock, a_reservation(**FOR_TEAM))
    await here.loop.turn()
    leader = here.leader
    for name, labels in (("user", {"team": "a"}), ("low", None)):
        kubernetes.create(name, labels=labels)
        await leader.schedule(name)
        kubernetes.run(name)
    await clock.advance(3600.0)
    insists = {ANNOTATION_RESERVATION: "later"}
    kubernetes.create("high", priority=100, labels={"team": "a"}, notes=insists)
    kubernetes.refuse("high")
    kubernetes.gang("g", 1, priority=100, labels={"team": "a"}, notes=insists)

    for _ in range(3):
        await leader.gangs.turn()
        await leader.preemptions.turn()
        await clock.advance(PATIENCE_S)

    assert kubernetes.evicted == []
