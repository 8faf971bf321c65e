"""Random mixes of gangs over time: all get their turn, and the cluster is used nearly as well as can be."""

from itertools import permutations
from random import Random

from gpuloom.placement.gangs.gang import GangPlan, plan_gang
from gpuloom.placement.gangs.sites import completed
from gpuloom.placement.gangs.turns import Turns, Waiting
from tests.unit.placement.gangs.builders import a_member, a_site

MIXES = 200
WITHIN = 0.05


class Mix:
    """Gangs of one card a pod, all there at the beginning; each runs for some rounds once it is placed."""

    def __init__(self, chance: Random) -> None:
        self.nodes = [chance.choice((2, 4)) for _ in range(chance.randint(1, 2))]
        self.gangs = {
            f"g{i}": (chance.randint(1, sum(self.nodes)), chance.randint(1, 3))
            for i in range(chance.randint(2, 4))
        }


def rounds_by_turns(mix: Mix) -> int:
    """Until all have run, as the leader takes them."""
    turns, left, running = Turns(), dict(mix.gangs), dict[str, tuple[int, list[str]]]()
    for now in range(100):
        running = {name: entry for name, entry in running.items() if entry[0] > now}
        if not left and not running:
            return now
        waiting = [Waiting(name, 0, f"{i:03d}") for i, name in enumerate(mix.gangs) if name in left]
        tried: list[Waiting] = []
        for one in turns.in_order(waiting, lambda _: True):
            used = [node for _, nodes in running.values() for node in nodes]
            sites = [a_site(f"n{i}", cards - used.count(f"n{i}")) for i, cards in enumerate(mix.nodes)]
            size, rounds = left[one.name]
            plan = completed(plan_gang([a_member(f"{one.name}-{i}") for i in range(size)], sites))
            if not isinstance(plan, GangPlan):
                tried.append(one)
                continue
            running[one.name] = now + rounds, [seat.node_name for seat in plan.seats]
            del left[one.name]
            turns.placed(one, tried)
    raise AssertionError(f"deadlock: {left} never ran on {mix.nodes}")


def rounds_in_order(mix: Mix, order: tuple[str, ...]) -> int:
    """Until all have run, tried in this order every round. Pods of one card go wherever one is free."""
    left, running = list(order), dict[str, int]()
    now = 0
    while left or running:
        running = {name: until for name, until in running.items() if until > now}
        for name in list(left):
            size, rounds = mix.gangs[name]
            if sum(mix.gangs[other][0] for other in running) + size <= sum(mix.nodes):
                running[name] = now + rounds
                left.remove(name)
        now += 1
    return now - 1


def test_no_mix_deadlocks_and_together_they_use_the_cluster_within_five_per_cent_of_the_best_order() -> None:
    """What is used in a round is the work, which is the same in every order, by the rounds that it takes."""
    took = best = 0
    for seed in range(MIXES):
        mix = Mix(Random(seed))
        took += rounds_by_turns(mix)
        best += min(rounds_in_order(mix, order) for order in permutations(mix.gangs))

    assert took <= best * (1 + WITHIN), f"{took} rounds, {best} in the best orders"
