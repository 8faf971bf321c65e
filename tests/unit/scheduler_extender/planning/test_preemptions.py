"""A pod that only a card is missing for: exactly those leave who must, and it alone gets the room."""

from collections.abc import Sequence

import orjson
import pytest

from gpuloom.kube.objects import uid_of
from gpuloom.model.node import PodRef
from gpuloom.model.objects import LabelSelector
from gpuloom.placement.gangs.victims import DisruptionBudget
from gpuloom.runtime.clock import FakeClock
from services.scheduler_extender.core.gangs.losses import OVERDUE_S
from services.scheduler_extender.planning.preemptions import COOLDOWN_S, MOST_TRIED, PATIENCE_S, Mode
from tests.unit.scheduler_extender.planning.desk import Kubernetes, Leader


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def a_full_cluster(clock: FakeClock, **cards: int) -> tuple[Kubernetes, Leader]:
    """Every card is used by a pod of its own, of priority 0, that has run for an hour."""
    kubernetes = Kubernetes(cards or {"n1": 2, "n2": 2})
    leader = Leader(kubernetes, clock)
    names = [f"low-{i}" for i in range(sum(kubernetes.cards.values()))]
    for name in names:
        kubernetes.create(name)
        await leader.schedule(name)
        kubernetes.run(name)
    assert set(kubernetes.bound()) == set(names)
    await clock.advance(3600.0)
    return kubernetes, leader


async def turns(leader: Leader, seconds: float = PATIENCE_S) -> None:
    await leader.gangs.turn()
    await leader.preemptions.turn()
    await leader.clock.advance(seconds)
    leader.hear_facts()
    await leader.gangs.turn()
    await leader.preemptions.turn()
    await leader.preemptions.turn()


async def test_exactly_one_leaves_and_the_preemptor_alone_gets_its_place(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock)
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")

    await turns(leader)

    (victim,) = kubernetes.evicted
    node = kubernetes.pods[victim]["spec"]["nodeName"]
    kubernetes.create("rival")
    kubernetes.delete(victim)
    await leader.released()
    assert leader.offered("rival") == []
    assert await leader.schedule("high") == {"high": ""}
    assert kubernetes.bound()["high"] == node
    await turns(leader, COOLDOWN_S + 1)
    assert kubernetes.evicted == [victim]
    told = {(name, reason) for name, reason, _ in kubernetes.told}
    assert told == {("high", "Preempting"), (victim, "Preempted")}


async def test_a_place_whose_gpu_breaks_is_given_back_and_its_victim_stays(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock)
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")
    for name in list(kubernetes.bound()):
        kubernetes.run(name, checkpoint_grace_seconds="60")
    await turns(leader)
    ((hold,),) = (leader.promises.all(),)
    assert hold.device is not None

    kubernetes.broken.add(hold.device.device.gpu_uuid)
    leader.hear_facts()
    await leader.preemptions.turn()

    assert not kubernetes.holds.objects
    await turns(leader, COOLDOWN_S + 1)
    assert kubernetes.evicted == []
    (anew,) = leader.promises.all()
    assert anew.device != hold.device


async def test_nobody_leaves_before_the_pod_has_waited_or_where_it_fits(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock)
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")

    await leader.preemptions.turn()
    kubernetes.delete("low-0")
    await leader.released()
    await turns(leader)

    assert kubernetes.evicted == []


async def test_a_new_leader_goes_on_with_the_plan(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock)
    kubernetes.guarded.update(kubernetes.pods)
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")
    await turns(leader)
    assert kubernetes.evicted == []
    assert len(kubernetes.holds.objects) == 1
    leader.die()
    kubernetes.guarded.clear()

    successor = Leader(kubernetes, clock)
    await turns(successor, 0.0)

    assert len(kubernetes.evicted) == 1
    assert len(kubernetes.holds.objects) == 1


async def test_in_a_dry_run_explain_shows_the_plan_and_nobody_leaves(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock)
    leader.preempting(Mode.DRY_RUN)
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")

    await turns(leader)

    assert kubernetes.evicted == []
    assert not kubernetes.holds.objects
    note = leader.board.notes[uid_of(kubernetes.pods["high"])]
    assert "dry run" in note
    assert "low-" in note
    assert "60 min of work" in note


async def test_who_asks_for_time_to_save_its_work_gets_it(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock, n1=1)
    kubernetes.run("low-0", checkpoint_grace_seconds="30")
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")

    await turns(leader)
    assert (kubernetes.warned, kubernetes.evicted) == (["low-0"], [])
    await turns(leader, 20.0)
    assert kubernetes.evicted == []
    await turns(leader, 11.0)

    assert kubernetes.evicted == ["low-0"]
    assert kubernetes.warned == ["low-0"]


async def test_who_saved_its_work_last_leaves_first_of_equals(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock, n1=2)
    kubernetes.labels = {"n1": {"node.kubernetes.io/instance-type": "p4d.24xlarge"}}
    kubernetes.run("low-1", checkpoint_time="2026-01-01T00:59:00Z")
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")

    await turns(leader)

    assert kubernetes.evicted == ["low-1"]


@pytest.mark.parametrize("note", ["no_preempt", "no_disrupt"])
async def test_a_protected_pod_stays(clock: FakeClock, note: str) -> None:
    kubernetes, leader = await a_full_cluster(clock, n1=1)
    kubernetes.run("low-0", **{note: "true"})
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")

    await turns(leader)

    assert kubernetes.evicted == []
    assert "No eviction" in leader.board.notes[uid_of(kubernetes.pods["high"])]


async def test_a_budget_that_allows_nothing_keeps_everybody(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock)
    kubernetes.budgets.append(DisruptionBudget("default", LabelSelector({}), 0))
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")

    await turns(leader)

    assert kubernetes.evicted == []
    assert not kubernetes.holds.objects


async def test_a_pod_that_has_just_begun_stays(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock, n1=1)
    kubernetes.run("low-0", since="2026-01-01T00:59:50Z")
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")

    await turns(leader)

    assert kubernetes.evicted == []


async def test_a_gang_leaves_whole_for_one_pod(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 1, "n2": 1})
    leader = Leader(kubernetes, clock)
    names = kubernetes.gang("g", 2)
    await leader.gangs.turn()
    await leader.schedule(*names)
    await leader.holding.tidy()
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")

    await turns(leader)

    assert sorted(kubernetes.evicted) == names


async def test_a_gang_of_higher_priority_gets_room_for_all_its_pods(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock, n1=2, n2=2)
    names = kubernetes.gang("g", 3, priority=100)

    await turns(leader)
    await turns(leader)
    assert len(kubernetes.evicted) == 3
    for victim in kubernetes.evicted:
        kubernetes.delete(victim)
    await leader.released()
    await leader.gangs.turn()

    assert set((await leader.schedule(*names)).values()) == {""}


async def test_the_preempt_verb_confirms_the_plan_and_nothing_else(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock)
    kubernetes.guarded.update(kubernetes.pods)
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")
    high = kubernetes.pods["high"]

    def preempt() -> dict[str, object]:
        offered = {
            node: {"Pods": [{"UID": uid_of(pod)} for pod in kubernetes.pods.values()], "NumPDBViolations": 0}
            for node in kubernetes.cards
        }
        body = orjson.dumps({"Pod": high, "NodeNameToMetaVictims": offered})
        answer: dict[str, object] = orjson.loads(leader.verbs.answer_at_once("preempt", body))
        return answer

    assert preempt() == {"NodeNameToMetaVictims": {}}
    await turns(leader)

    (plan,) = leader.board.plans.values()
    victims = {"Pods": [{"UID": uid} for uid in sorted(plan[1])], "NumPDBViolations": 0}
    assert preempt() == {"NodeNameToMetaVictims": {plan[0]: victims}}
    assert len(plan[1]) == 1


@pytest.mark.parametrize("killed", [False, True], ids=["one leader", "a leader is killed"])
async def test_for_a_share_of_a_card_as_many_leave_as_must(clock: FakeClock, killed: bool) -> None:
    kubernetes = Kubernetes({"n1": 1})
    leader = Leader(kubernetes, clock)
    for name in ("a", "b", "c", "d"):
        kubernetes.create(name, milli=250)
        await leader.schedule(name)
        kubernetes.run(name)
    await clock.advance(3600.0)
    kubernetes.create("high", milli=250, priority=100)
    kubernetes.refuse("high")
    if killed:
        kubernetes.guarded.update(kubernetes.pods)
        await turns(leader)
        leader.die()
        kubernetes.guarded.clear()
        leader = Leader(kubernetes, clock)

    await turns(leader)

    assert len(kubernetes.evicted) == 1
    kubernetes.delete(kubernetes.evicted[0])
    await leader.released()
    assert await leader.schedule("high") == {"high": ""}


async def test_a_gang_that_must_be_together_has_others_leave_where_it_can_be(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 2, "n2": 2}, {"n1": {"rack": "a"}, "n2": {"rack": "b"}})
    leader = Leader(kubernetes, clock)
    for name, priority in (("a", 0), ("b", 2), ("c", 1), ("d", 0)):
        kubernetes.create(name, priority=priority)
        await leader.schedule(name)
        kubernetes.run(name)
    await clock.advance(3600.0)
    kubernetes.gang("g", 2, priority=100, notes={"gpuloom.dev/gang-topology": "rack"})

    await turns(leader)
    await turns(leader)

    assert sorted(kubernetes.evicted) == ["c", "d"]


async def test_nobody_leaves_for_a_gang_whose_time_was_over_a_moment_ago(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 2})
    leader = Leader(kubernetes, clock)
    names = kubernetes.gang("g", 2, priority=100, timeout_s=10)
    kubernetes.unbindable.update(names)
    await leader.gangs.turn()
    await clock.advance(11.0)
    await leader.gangs.turn()
    for name in ("a", "b"):
        kubernetes.create(name)
        await leader.schedule(name)
    assert set(kubernetes.bound()) == {"a", "b"}

    await turns(leader)

    assert kubernetes.evicted == []


async def test_what_is_about_to_become_free_is_waited_for(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock)
    await kubernetes.evict(PodRef("default", "low-3", uid_of(kubernetes.pods["low-3"])))
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")

    await turns(leader)
    assert kubernetes.evicted == ["low-3"]
    await turns(leader, OVERDUE_S)
    await turns(leader, COOLDOWN_S)

    # It hangs, so its place is no longer counted on.
    assert len(kubernetes.evicted) == 2


async def test_a_free_card_that_affinity_forbids_does_not_keep_others_from_leaving(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 2, "n2": 1}, {"n1": {"zone": "a"}, "n2": {"zone": "b"}})
    leader = Leader(kubernetes, clock)
    kubernetes.create("mate", labels={"app": "x"}, priority=200)
    kubernetes.create("low")
    assert (await leader.bind("mate", "n1"), await leader.bind("low", "n2")) == ("", "")
    kubernetes.run("low")
    await clock.advance(3600.0)
    apart = [{"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone"}]
    kubernetes.create(
        "high",
        priority=100,
        spec={"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}}},
    )
    kubernetes.refuse("high")

    await turns(leader)

    assert kubernetes.evicted == ["low"]


async def test_a_place_that_is_not_offered_though_all_have_left_is_given_up(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock, n1=1, n2=1)
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")
    await turns(leader)
    (victim,) = kubernetes.evicted
    node = kubernetes.pods[victim]["spec"]["nodeName"]
    assert leader.offered("high", without=[node]) == []
    assert leader.offered("high", without=[node]) == []
    await leader.preemptions.turn()
    assert kubernetes.holds.objects
    kubernetes.delete(victim)
    await leader.released()
    await leader.preemptions.turn()

    for _ in range(2):
        assert leader.offered("high", without=[node]) == []
    await turns(leader, COOLDOWN_S)

    assert len(kubernetes.evicted) == 2
    (hold,) = kubernetes.holds.objects.values()
    assert hold["spec"]["target"]["nodeName"] != node


async def test_who_was_told_for_a_plan_of_long_ago_is_told_anew(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock, n1=1)
    kubernetes.run("low-0", checkpoint_grace_seconds="30", checkpoint_requested="2026-01-01T00:10:00Z")
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")

    await turns(leader)
    assert (kubernetes.warned, kubernetes.evicted) == (["low-0"], [])
    await turns(leader, 31.0)

    assert kubernetes.evicted == ["low-0"]


async def test_one_turn_plans_for_a_few_only_and_all_have_their_turn(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 1})
    leader = Leader(kubernetes, clock)
    for i in range(3 * MOST_TRIED):
        kubernetes.create(f"big-{i}", 2, priority=100)
        kubernetes.refuse(f"big-{i}")
    await leader.preemptions.turn()
    await clock.advance(PATIENCE_S)

    noted = []
    for _ in range(3):
        await leader.preemptions.turn()
        noted.append(len(leader.board.notes))

    assert noted == [MOST_TRIED, 2 * MOST_TRIED, 3 * MOST_TRIED]


async def test_in_a_dry_run_nobody_leaves_for_an_earlier_plan_either(clock: FakeClock) -> None:
    kubernetes, leader = await a_full_cluster(clock)
    kubernetes.guarded.update(kubernetes.pods)
    kubernetes.create("high", priority=100)
    kubernetes.refuse("high")
    await turns(leader)
    assert kubernetes.holds.objects
    leader.die()
    kubernetes.guarded.clear()

    successor = Leader(kubernetes, clock)
    successor.preempting(Mode.DRY_RUN)
    await turns(successor)

    assert kubernetes.evicted == []


async def test_who_came_while_it_was_planned_need_not_leave(clock: FakeClock) -> None:
    kubernetes = Kubernetes({"n1": 2})
    leader = Leader(kubernetes, clock)
    kubernetes.create("low")
    kubernetes.create("late")
    await leader.schedule("low")
    kubernetes.run("low")
    await clock.advance(3600.0)
    kubernetes.create("high", 2, priority=100)
    kubernetes.refuse("high")
    budgets = kubernetes.list

    async def slow() -> Sequence[DisruptionBudget]:
        await leader.bind("late", "n1")
        return await budgets()

    kubernetes.list = slow  # type: ignore[method-assign]

    await turns(leader)

    assert kubernetes.bound().keys() == {"low", "late"}
    assert kubernetes.evicted == []
    assert not kubernetes.holds.objects
