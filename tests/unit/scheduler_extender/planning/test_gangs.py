"""A gang is whole or absent: reserved at once, bound where it was reserved, gone whole at its deadline."""

from collections import Counter
from collections.abc import Sequence

import pytest

from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.placement.gangs.sites import Steps
from gpuloom.placement.occupancy.nominations import Asker
from gpuloom.runtime.clock import FakeClock
from services.scheduler_extender.core.gangs.phases import Phase
from services.scheduler_extender.planning.gangs import MOST_TRIED, TRIED_AGAIN_S
from services.scheduler_extender.planning.sites import Grounds
from tests.unit.scheduler_extender.builders import some_facts
from tests.unit.scheduler_extender.planning.desk import Kubernetes, Leader


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def a_cluster(clock: FakeClock, **cards: int) -> tuple[Kubernetes, Leader]:
    kubernetes = Kubernetes(cards or {"n1": 4, "n2": 4})
    return kubernetes, Leader(kubernetes, clock)


def phases(leader: Leader) -> dict[str, Phase]:
    return {report.name: Phase(report.phase) for report in leader.gangs.reports}


async def test_of_two_gangs_where_one_fits_one_runs_whole_and_the_other_holds_nothing(
    clock: FakeClock,
) -> None:
    kubernetes, leader = a_cluster(clock)
    first, second = kubernetes.gang("a", 8), kubernetes.gang("b", 8)

    await leader.gangs.turn()
    await leader.schedule(*second, *first)

    await leader.gangs.turn()
    assert set(kubernetes.bound()) == set(first)
    assert phases(leader) == {"default/a": Phase.PLACED, "default/b": Phase.WAITING}
    await leader.holding.tidy()
    assert not kubernetes.holds.objects
    assert "8 of 8 pods have no place" in leader.gangs.unplaced["default/b"][1]


async def test_no_pod_of_a_gang_is_offered_a_node_before_the_whole_gang_has_its_places(
    clock: FakeClock,
) -> None:
    kubernetes, leader = a_cluster(clock)
    names = kubernetes.gang("a", 4)

    before = leader.offered(names[0])
    answer = await leader.bind(names[0], "n1")
    await leader.gangs.turn()

    assert before == []
    assert "planned" in answer
    assert all(len(leader.offered(name)) == 1 for name in names)


async def test_what_is_reserved_for_a_pod_is_offered_to_it_alone(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock, n1=2, n2=2)
    names = kubernetes.gang("a", 4)
    await leader.gangs.turn()
    kubernetes.create("other")

    assert leader.offered("other") == []
    own = leader.offered(names[0])
    (elsewhere,) = {"n1", "n2"} - set(own)
    assert "another node" in await leader.bind(names[0], elsewhere)
    assert await leader.bind(names[0], own[0]) == ""


async def test_an_incomplete_a_gated_or_a_sizeless_gang_waits_and_says_why(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    kubernetes.create("few-0", gang="few", size=3)
    kubernetes.gang("gated", 2, gated=True)
    kubernetes.create("odd-0", gang="odd")

    await leader.gangs.turn()

    reasons = {report.name: report.reason for report in leader.gangs.reports}
    assert reasons["default/few"] == "1 of 3 pods exist"
    assert reasons["default/gated"] == "some of its pods have scheduling gates"
    assert "gpuloom.dev/gang-size" in reasons["default/odd"]
    assert not kubernetes.holds.objects


async def test_a_size_may_come_from_the_owner(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    kubernetes.sizes["owned"] = 2
    for i in range(2):
        kubernetes.create(f"owned-{i}", gang="owned")

    await leader.gangs.turn()

    assert phases(leader) == {"default/owned": Phase.RESERVED}


async def test_a_pod_without_gpus_is_no_member_though_its_template_says_so(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    launcher = kubernetes.create("launcher", gang="a", size=2, node="n1")
    launcher["spec"]["containers"][0]["resources"] = {}
    launcher["spec"]["nodeName"] = "n1"
    kubernetes.put(launcher)
    workers = kubernetes.gang("a", 2, timeout_s=60)
    kubernetes.delete(workers[1])
    await leader.gangs.turn()
    assert phases(leader) == {"default/a": Phase.INCOMPLETE}
    await clock.advance(61.0)
    await leader.gangs.turn()
    assert kubernetes.evicted == []

    kubernetes.create(workers[1], gang="a", size=2)
    leader.hear_facts()
    await leader.gangs.turn()

    assert set((await leader.schedule(*workers)).values()) == {""}


async def test_a_reservation_that_fails_half_way_leaves_nothing(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    names = kubernetes.gang("a", 4)
    kubernetes.holds.left_before_failure = 2

    await leader.gangs.turn()

    assert not kubernetes.holds.objects
    assert leader.free_cards() == 8
    assert leader.offered(names[0]) == []
    kubernetes.holds.left_before_failure = None
    await leader.gangs.turn()
    assert leader.offered(names[0])


@pytest.mark.parametrize("killed", [False, True], ids=["one leader", "a leader is killed"])
async def test_a_gang_that_is_not_bound_whole_in_time_leaves_whole(clock: FakeClock, killed: bool) -> None:
    kubernetes, leader = a_cluster(clock)
    names = kubernetes.gang("a", 8, timeout_s=60)
    kubernetes.unbindable.update(names[4:])
    await leader.gangs.turn()
    await leader.schedule(*names)
    assert set(kubernetes.bound()) == set(names[:4])
    await clock.advance(40.0)
    if killed:
        leader.die()
        leader = Leader(kubernetes, clock)
        await leader.gangs.turn()
        assert kubernetes.evicted == []

    await clock.advance(25.0)
    await leader.gangs.turn()

    assert sorted(kubernetes.evicted) == names[:4]
    assert not kubernetes.holds.objects
    for name in names[:4]:
        kubernetes.delete(name)
    await leader.released()
    assert leader.free_cards() == 8
    assert {reason for _, reason, _ in kubernetes.told} >= {"GangReserved", "GangEvicted"}


async def test_a_pod_whose_bind_is_never_answered_does_not_count_as_bound(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    names = kubernetes.gang("a", 8, timeout_s=60)
    kubernetes.unbindable.add(names[4])
    kubernetes.silent = True
    await leader.gangs.turn()
    await leader.schedule(*names)
    await leader.gangs.turn()
    assert phases(leader) == {"default/a": Phase.RESERVED}
    await clock.advance(61.0)

    await leader.gangs.turn()
    assert set(kubernetes.evicted) == set(names) - {names[4]}
    # Its pod is seen unbound at a newer version: no Binding of it can be applied any more.
    kubernetes.refuse(names[4])
    await leader.bindings.settle()
    await leader.gangs.turn()

    assert not kubernetes.holds.objects


async def test_an_eviction_that_is_forbidden_is_tried_again_and_keeps_the_places(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    names = kubernetes.gang("a", 4)
    kubernetes.unbindable.add(names[3])
    kubernetes.guarded.add(names[0])
    await leader.gangs.turn()
    await leader.schedule(*names)
    await clock.advance(61.0)

    await leader.gangs.turn()
    assert sorted(kubernetes.evicted) == names[1:3]
    kubernetes.unbindable.clear()
    assert await leader.schedule(names[3]) == {names[3]: "refused"}
    kubernetes.guarded.clear()
    await leader.gangs.turn()

    assert sorted(kubernetes.evicted) == names[:3]
    assert not kubernetes.holds.objects


async def test_a_new_leader_takes_up_what_was_reserved(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    names = kubernetes.gang("a", 8)
    await leader.gangs.turn()
    await leader.schedule(*names[:3])
    before = {name: leader.offered(name) for name in names[3:]}
    leader.die()

    successor = Leader(kubernetes, clock)
    assert successor.offered(names[3]) == []
    await successor.gangs.turn()

    assert {name: successor.offered(name) for name in names[3:]} == before
    assert set((await successor.schedule(*names[3:])).values()) == {""}


async def test_half_a_plan_of_a_leader_that_died_is_given_back(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    names = kubernetes.gang("a", 8)
    await leader.gangs.turn()
    for hold in sorted(kubernetes.holds.objects)[:5]:
        del kubernetes.holds.objects[hold]
    leader.die()
    kubernetes.delete(names[7])

    successor = Leader(kubernetes, clock)
    await successor.gangs.turn()

    assert phases(successor) == {"default/a": Phase.INCOMPLETE}
    assert not kubernetes.holds.objects


async def test_a_place_that_is_not_offered_twice_is_planned_anew(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock, n1=2, n2=2, n3=2)
    names = kubernetes.gang("a", 2, cards=2)
    await leader.gangs.turn()
    (place,) = leader.offered(names[0])
    for _ in range(2):
        assert leader.offered(names[0], without=[place]) == []

    await leader.gangs.turn()

    (anew,) = leader.offered(names[0])
    assert anew != place
    assert len(kubernetes.holds.objects) == 2


@pytest.mark.parametrize("cards", [1, 4], ids=["a card", "the whole node"])
async def test_a_gang_whose_promised_gpu_breaks_is_planned_anew_at_once(clock: FakeClock, cards: int) -> None:
    kubernetes, leader = a_cluster(clock, n1=4, n2=4, n3=4)
    names = kubernetes.gang("a", 8 // cards, cards=cards)
    await leader.gangs.turn()
    (place,) = leader.offered(names[0])
    kubernetes.broken.add(f"GPU-{place}-0")
    leader.hear_facts()

    await leader.gangs.turn()

    assert set((await leader.schedule(*names)).values()) == {""}
    assert place not in kubernetes.bound().values() or cards == 1


async def test_of_a_gang_that_is_bound_in_part_only_the_pod_whose_gpu_broke_moves(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock, n1=1, n2=1, n3=1, n4=1)
    names = kubernetes.gang("a", 3)
    await leader.gangs.turn()
    await leader.schedule(names[0])
    (lost,), kept = leader.offered(names[1]), leader.offered(names[2])
    kubernetes.broken.add(f"GPU-{lost}-0")
    leader.hear_facts()

    await leader.gangs.turn()

    assert leader.offered(names[2]) == kept
    assert set((await leader.schedule(*names[1:])).values()) == {""}


async def test_places_on_a_node_that_is_not_known_for_a_while_stay(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    names = kubernetes.gang("a", 8)
    await leader.gangs.turn()
    held = dict(kubernetes.holds.objects)
    leader.state.observe_facts("uid-n1", some_facts("n1", untrusted="its agent is silent"))

    await leader.gangs.turn()
    leader.hear_facts()

    assert kubernetes.holds.objects == held
    assert set((await leader.schedule(*names)).values()) == {""}


async def test_the_higher_priority_comes_first_then_the_older(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock, n1=2)
    kubernetes.gang("old", 2)
    kubernetes.gang("high", 2, priority=10)

    await leader.gangs.turn()

    assert phases(leader) == {"default/high": Phase.RESERVED, "default/old": Phase.WAITING}


async def test_a_large_gang_is_passed_only_so_often(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock, n1=4)
    kubernetes.create("runs", 1)
    await leader.schedule("runs")
    kubernetes.gang("large", 4)
    passed = 0
    for i in range(30):
        names = kubernetes.gang(f"small{i}", 2)
        await leader.gangs.turn()
        outcome = await leader.schedule(*names)
        passed += set(outcome.values()) == {""}
        for name in names:
            kubernetes.delete(name)
        await leader.released()

    assert passed == 8
    kubernetes.delete("runs")
    await leader.released()
    await leader.gangs.turn()
    assert phases(leader)["default/large"] is Phase.RESERVED


async def test_a_gang_that_lost_a_pod_gets_it_back_beside_the_others(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    names = kubernetes.gang("a", 4)
    await leader.gangs.turn()
    await leader.schedule(*names)
    kubernetes.delete(names[0])
    kubernetes.create("again", gang="a", size=4)
    await leader.gangs.turn()

    assert await leader.schedule("again") == {"again": ""}
    await leader.gangs.turn()
    assert phases(leader) == {"default/a": Phase.PLACED}
    assert kubernetes.evicted == []


async def test_promises_to_pods_that_are_gone_end(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    names = kubernetes.gang("a", 2)
    await leader.gangs.turn()
    assert all(leader.promises.of(uid_of(kubernetes.pods[name])) for name in names)
    for name in names:
        kubernetes.delete(name)

    await leader.gangs.turn()

    assert not kubernetes.holds.objects
    assert leader.free_cards() == 8


async def test_pods_that_an_earlier_gang_of_the_name_left_behind_do_not_count(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    old = kubernetes.gang("a", 4)
    await leader.gangs.turn()
    await leader.schedule(*old)
    for name in old:
        kubernetes.finish(name)
    await leader.released()

    kubernetes.create("again-0", gang="a", size=3)
    await leader.gangs.turn()
    assert leader.offered("again-0") == []
    for name in ("again-1", "again-2"):
        kubernetes.create(name, gang="a", size=3)
    await leader.gangs.turn()

    assert leader.offered("again-0")


async def test_a_pod_that_is_made_again_counts_with_those_of_its_job_that_are_done(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    owner = [{"kind": "Job", "name": "a", "uid": "uid-job", "controller": True}]
    names = kubernetes.gang("a", 3)
    await leader.gangs.turn()
    await leader.schedule(*names)
    for name in names[:2]:
        kubernetes.pods[name]["metadata"]["ownerReferences"] = owner
        kubernetes.finish(name)
    kubernetes.delete(names[2])
    await leader.released()

    again = kubernetes.create("again", gang="a", size=3)
    again["metadata"]["ownerReferences"] = owner
    kubernetes.put(again)
    await leader.gangs.turn()

    assert leader.offered("again")


@pytest.mark.parametrize(
    "notes",
    [
        {"gpuloom.dev/gang-size": "3"},
        {"gpuloom.dev/gang-timeout-seconds": "61"},
        {"gpuloom.dev/gang-topology": "rack"},
    ],
)
async def test_members_that_contradict_each_other_are_not_guessed_about(
    clock: FakeClock, notes: dict[str, str]
) -> None:
    kubernetes, leader = a_cluster(clock)
    kubernetes.gang("a", 2, notes={"gpuloom.dev/gang-topology": "zone:preferred"})
    pod = kubernetes.pods["a-1"]
    pod["metadata"]["annotations"] |= notes
    kubernetes.put(pod)

    await leader.gangs.turn()

    (report,) = leader.gangs.reports
    assert report.phase == Phase.UNREADABLE
    assert "its pods say different" in report.reason
    assert leader.offered("a-0") == []


async def test_a_gang_whose_unbound_pods_vanish_leaves_at_its_deadline(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    names = kubernetes.gang("a", 4, timeout_s=60)
    await leader.gangs.turn()
    await leader.schedule(*names[:2])
    for name in names[2:]:
        kubernetes.delete(name)
    await leader.gangs.turn()
    assert kubernetes.evicted == []

    await clock.advance(61.0)
    await leader.gangs.turn()

    assert sorted(kubernetes.evicted) == names[:2]
    await leader.holding.tidy()
    assert not kubernetes.holds.objects


async def test_a_gang_that_was_whole_stays_when_pods_of_it_end(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    names = kubernetes.gang("a", 4, timeout_s=60)
    await leader.gangs.turn()
    await leader.schedule(*names)
    await leader.gangs.turn()

    kubernetes.finish(names[0])
    kubernetes.delete(names[1])
    await leader.gangs.turn()
    await clock.advance(61.0)
    await leader.gangs.turn()

    assert kubernetes.evicted == []


async def test_of_many_gangs_that_wait_the_first_are_planned_at_every_turn(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock, n1=1)
    for i in range(2 * MOST_TRIED):
        kubernetes.gang(f"g{i:02d}", 2)
    planned: list[str] = []
    grounds = leader.book.grounds

    def counted(asker: Asker) -> Steps[Grounds]:
        planned.append(asker.uid)
        return grounds(asker)

    leader.book.grounds = counted  # type: ignore[method-assign]

    counts = []
    for _ in range(2):
        await leader.gangs.turn()
        counts.append(len(planned))
    await clock.advance(TRIED_AGAIN_S)
    await leader.gangs.turn()

    assert counts == [2 * MOST_TRIED, 3 * MOST_TRIED]
    assert len(planned) == 5 * MOST_TRIED
    assert len(leader.gangs.unplaced) == 2 * MOST_TRIED


async def test_what_a_gang_waits_for_is_told_once(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock, n1=2)
    kubernetes.gang("a", 3)
    for _ in range(3):
        await leader.gangs.turn()
        assert "1 of 3 pods have no place" in leader.board.gangs[uid_of(kubernetes.pods["a-0"])].reason

    ((_, reason, message),) = kubernetes.told
    assert reason == "GangWaits"
    assert "1 of 3 pods have no place" in message


class ImpatientClock(FakeClock):
    """Of which every look takes longer than a turn may; counts how often others were let run."""

    def __init__(self) -> None:
        super().__init__()
        self.rests = 0

    def monotonic(self) -> float:
        self._late_s = getattr(self, "_late_s", 0.0) + 0.01
        return super().monotonic() + self._late_s

    async def sleep(self, delay_s: float) -> None:
        if delay_s:
            await super().sleep(delay_s)
        self.rests += 1


async def test_others_run_between_any_two_gangs() -> None:
    clock = ImpatientClock()
    kubernetes, leader = a_cluster(clock, n1=1)
    for i in range(20):
        kubernetes.gang(f"g{i:02d}", 2)
    looked: list[int] = []
    by_index = kubernetes.by_index

    def counted(index: str, value: str) -> Sequence[JsonObject]:
        looked.append(clock.rests)
        return by_index(index, value)

    kubernetes.by_index = counted  # type: ignore[method-assign]

    await leader.gangs.turn()
    await leader.preemptions.turn()

    assert max(Counter(looked).values()) <= 3


@pytest.mark.parametrize("killed", [False, True], ids=["one leader", "a leader is killed"])
async def test_a_gang_that_has_all_its_pods_does_not_leave_for_one_more(
    clock: FakeClock, killed: bool
) -> None:
    """As a rollout makes one, or somebody who wants more workers than the gang needs."""
    kubernetes, leader = a_cluster(clock, n1=4)
    names = kubernetes.gang("a", 4, timeout_s=60)
    await leader.gangs.turn()
    await leader.schedule(*names)
    kubernetes.create("more", gang="a", size=4, timeout_s=60)
    await leader.gangs.turn()
    if killed:
        leader.die()
        leader = Leader(kubernetes, clock)
    for _ in range(3):
        await clock.advance(61.0)
        await leader.gangs.turn()

    assert kubernetes.evicted == []
    assert phases(leader) == {"default/a": Phase.WAITING}
    kubernetes.delete(names[0])
    await leader.released()
    await leader.gangs.turn()
    assert await leader.schedule("more") == {"more": ""}


async def test_a_pod_too_many_that_is_not_bound_in_time_gives_its_place_back_alone(clock: FakeClock) -> None:
    kubernetes, leader = a_cluster(clock)
    names = kubernetes.gang("a", 4, timeout_s=60)
    await leader.gangs.turn()
    await leader.schedule(*names)
    kubernetes.create("more", gang="a", size=4, timeout_s=60)
    await leader.gangs.turn()
    assert leader.offered("more")

    await clock.advance(61.0)
    await leader.gangs.turn()

    assert kubernetes.evicted == []
    assert leader.offered("more") == []
    await leader.holding.tidy()
    assert not kubernetes.holds.objects
    await clock.advance(31.0)
    leader.hear_facts()
    await leader.gangs.turn()
    assert await leader.schedule("more") == {"more": ""}
