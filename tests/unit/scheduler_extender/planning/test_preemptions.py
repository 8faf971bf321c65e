"""A pod that only a card is missing for: exactly those leave who must, and it alone gets the room."""

import orjson
import pytest

from gpuloom.kube.objects import uid_of
from gpuloom.model.objects import LabelSelector
from gpuloom.placement.gangs.preemption import DisruptionBudget
from gpuloom.runtime.clock import FakeClock
from services.scheduler_extender.planning.preemptions import COOLDOWN_S, PATIENCE_S, Mode
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
