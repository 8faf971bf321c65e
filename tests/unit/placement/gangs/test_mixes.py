"""Random mixes of gangs over time: all of them get their turn, and capacity is used nearly as well as can be."""

from itertools import permutations
from random import Random

from gpuloom.placement.gangs.gang import GangPlan, plan_gang
from gpuloom.placement.gangs.sites import Site, completed
from gpuloom.placement.gangs.turns import Turns, Waiting
from tests.unit.placement.gangs.builders import a_member, a_site

MIXES = 200
WITHIN = 0.05


class Mix:
    """Gangs that are all there at the beginning; each runs for some rounds once it is placed."""

    def __init__(self, chance: Random) -> None:
        self.nodes = [chance.choice((2, 4)) for _ in range(chance.randint(1, 2))]
        biggest = sum(self.nodes)
        self.gangs = {
            f"g{i}": (chance.randint(1, max(1, biggest)), chance.randint(1, 3))
            for i in range(chance.randint(2, 4))
        }

    @property
    def work(self) -> int:
        """Cards times rounds."""
        return sum(size * rounds for size, rounds in self.gangs.values())


def rounds_taken(mix: Mix, order: list[str] | None = None) -> int:
    """Until all have run: in the turns that the leader takes, or tried in this order every round."""
    turns, left, running = Turns(), dict(mix.gangs), dict[str, tuple[int, dict[str, int]]]()
    for now in range(1000):
        for name in [name for name, (until, _) in running.items() if until <= now]:
            del running[name]
        if not left and not running:
            return now
        waiting = [Waiting(name, 0, f"{i:03d}") for i, name in enumerate(mix.gangs) if name in left]
        tried: list[Waiting] = []
        ordered = turns.in_order(waiting, lambda _: True)
        for one in ordered if order is None else _in(order, waiting):
            size, rounds = left[one.name]
            members = [a_member(f"{one.name}-{i}") for i in range(size)]
            plan = completed(plan_gang(members, _sites(mix, running)))
            if isinstance(plan, GangPlan):
                used: dict[str, int] = {}
                for seat in plan.seats:
                    used[seat.node_name] = used.get(seat.node_name, 0) + 1
                running[one.name] = now + rounds, used
                del left[one.name]
                turns.placed(one, tried)
            else:
                tried.append(one)
    raise AssertionError(f"deadlock: {left} never ran on {mix.nodes}")


def test_no_mix_deadlocks_and_together_they_use_the_cluster_within_five_per_cent_of_the_best_order() -> None:
    took = best = 0
    for seed in range(MIXES):
        mix = Mix(Random(seed))
        took += rounds_taken(mix)
        best += min(rounds_taken(mix, list(order)) for order in permutations(mix.gangs))

    assert took <= best * (1 + WITHIN), f"{took} rounds, {best} in the best orders"


def _in(order: list[str], waiting: list[Waiting]) -> list[Waiting]:
    by_name = {one.name: one for one in waiting}
    return [by_name[name] for name in order if name in by_name]


def _sites(mix: Mix, running: dict[str, tuple[int, dict[str, int]]]) -> list[Site]:
    sites = []
    for i, cards in enumerate(mix.nodes):
        name = f"n{i}"
        taken = sum(used.get(name, 0) for _, used in running.values())
        sites.append(a_site(name, cards - taken))
    return sites
