"""Which machines to buy for the pods that wait: the cheapest mix found, and why not others. Pure.

First everything that exists or is on its way takes what it can. For the rest, greedily the machine with the
lowest price for what the pods on it are worth, several times in varied order; then each plan is improved by
dissolving, merging and shrinking its machines. Equal input and seed give an equal plan. The work is bounded
by `Effort`, not by a clock.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from services.autoscaler.core.buying.filling import (
    Fill,
    MachineForm,
    PodQueue,
    Purchase,
    Stencils,
    dominant_share,
    shape_of,
)
from services.autoscaler.core.buying.improvement import improved
from services.autoscaler.core.buying.mix import Mix
from services.autoscaler.core.buying.offerings import Offering, OfferingKey
from services.autoscaler.core.buying.pending import PendingPod, Unit, Worth
from services.autoscaler.core.buying.simulation import SimulatedNode, Simulation

_NOISE = 0.25
NO_OFFERING = "no machine that can be had now would take it"


@dataclass(frozen=True, slots=True)
class Effort:
    """`restarts` and `repairs` 0: as many as a batch of this size is worth, about a second of work."""

    restarts: int = 0
    repairs: int = 0
    most_nodes: int = 200
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """How many nodes may be added: in all, and by pool (absent: as many)."""

    nodes: int = 1000
    by_pool: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    units: Sequence[Unit]
    nodes: Sequence[SimulatedNode]
    offerings: Sequence[Offering]
    form: MachineForm = field(default_factory=MachineForm)
    limits: Limits = field(default_factory=Limits)
    mix: Mix = field(default_factory=Mix)


@dataclass(frozen=True, slots=True)
class PlannedNode:
    offering: Offering
    pods: tuple[PendingPod, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """`kept` are pods that fit on a node that is there or on its way, by pod UID."""

    nodes: tuple[PlannedNode, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    unplaced: tuple[tuple[PendingPod, str], ...] = ()

    @property
    def nano_usd_per_hour(self) -> int:
        return sum(node.offering.nano_usd_per_hour for node in self.nodes)


def make_plan(problem: Problem, effort: Effort | None = None) -> Plan:
    effort = effort or Effort()
    simulation = Simulation(problem.nodes)
    kept: dict[str, str] = {}
    waiting: list[Unit] = []
    for unit in problem.units:
        placed = simulation.place(unit)
        if placed is None:
            waiting.append(unit)
        else:
            kept |= placed
    if not waiting:
        return Plan(kept=kept)
    worths = Worths(problem)
    effort = _scaled(effort, sum(len(unit.pods) for unit in waiting))
    attempts = [
        _Attempt(problem, simulation, worths, replace(effort, seed=effort.seed + number))
        for number in range(effort.restarts)
    ]
    for attempt in attempts:
        attempt.run(waiting)
    best = min(attempts, key=lambda attempt: _rank(attempt.plan()))
    best.repair()
    best.spread()
    return replace(best.plan(), kept=kept)


def _scaled(effort: Effort, pods: int) -> Effort:
    """Small batches are tried often, large ones are cheap enough after few tries: waste averages out."""
    restarts = effort.restarts or max(2, min(5, 100 // max(1, pods)))
    repairs = effort.repairs or max(15, min(40, 1200 // max(1, pods)))
    return replace(effort, restarts=restarts, repairs=repairs)


def _rank(plan: Plan) -> tuple[int, float]:
    return (len(plan.unplaced), sum(node.offering.compared_nano_usd for node in plan.nodes))


class Worths:
    """What each kind of pod is worth, and fresh machines: the same for every attempt."""

    def __init__(self, problem: Problem) -> None:
        self.stencils = Stencils(problem.form)
        self._known: dict[Hashable, float] = {}
        cheapest: dict[str, Offering] = {}
        for one in sorted(problem.offerings, key=lambda one: (one.compared_nano_usd, one.key)):
            cheapest.setdefault(one.instance.name, one)
        self.cheapest_of_types = tuple(cheapest.values())

    def of(self, pod: PendingPod) -> float:
        shape = shape_of(pod)
        if shape not in self._known:
            prices = [
                one.compared_nano_usd * dominant_share(pod, node.node.allocatable)
                for one in self.cheapest_of_types
                if not (node := self.stencils.sample(one)).take(pod)
            ]
            self._known[shape] = min(prices, default=1.0)
        return self._known[shape]


class _Attempt:
    """One greedy pass and its improvement. Seed 0 is as values have it, the others vary the order."""

    def __init__(self, problem: Problem, simulation: Simulation, worths: Worths, effort: Effort) -> None:
        self._problem = problem
        self._existing = simulation
        self._effort = effort
        self._random = np.random.default_rng(effort.seed)
        self._noise = _NOISE if effort.seed else 0.05
        self._worths = worths
        self._stencils = worths.stencils
        self._bought: list[Purchase] = []
        self._unplaced: list[tuple[PendingPod, str]] = []

    def run(self, waiting: Sequence[Unit]) -> None:
        for worth in (Worth.ALWAYS_ON, Worth.CRITICAL, Worth.FLEXIBLE):
            units = [unit for unit in waiting if _worth(unit) is worth]
            for unit in units:
                if len(unit.pods) > 1:
                    self._buy_gang(unit, worth)
            self._buy_singles([unit.pods[0] for unit in units if len(unit.pods) == 1], worth)
        self._bought = improved(self._bought, self._problem.offerings, self._stencils)

    def repair(self) -> None:
        for _ in range(self._effort.repairs):
            self._repair()
        self._bought = improved(self._bought, self._problem.offerings, self._stencils)

    def plan(self) -> Plan:
        nodes = tuple(PlannedNode(one.offering, tuple(one.pods)) for one in self._bought if one.pods)
        return Plan(nodes, unplaced=tuple(self._unplaced))

    def _buy_gang(self, unit: Unit, worth: Worth) -> None:
        """All of it or nothing: nodes that were bought for a part are given up again."""
        before = [(one.node.view, one.node.use, len(one.node.pods), len(one.pods)) for one in self._bought]
        left = self._fill_open(list(unit.pods))
        left = self._buy(left, worth, fixed=True)
        if not left:
            return
        del self._bought[len(before) :]
        for one, (view, use, pods, mine) in zip(self._bought, before, strict=True):
            one.node.view, one.node.use = view, use
            del one.node.pods[pods:]
            del one.pods[mine:]
        self._unplaced.extend((pod, f"its gang {unit.name} fits only in part") for pod in unit.pods)

    def _buy_singles(self, pods: list[PendingPod], worth: Worth) -> None:
        left = self._buy(self._fill_open(pods), worth, fixed=False)
        self._unplaced.extend((pod, self._reason(pod)) for pod in left)

    def _fill_open(self, pods: list[PendingPod]) -> list[PendingPod]:
        """What machines that are bought already still take."""
        return [pod for pod in pods if not any(self._put(pod, one) for one in self._bought)]

    def _put(self, pod: PendingPod, bought: Purchase) -> bool:
        neighbours = self._existing.neighbours(pod, [one.node for one in self._bought])
        if neighbours is not None and neighbours.refusals(bought.node.node):
            return False
        return bought.put(pod)

    def _buy(self, pods: list[PendingPod], worth: Worth, *, fixed: bool) -> list[PendingPod]:
        """The pods that are left."""
        minding = [pod for pod in pods if pod.pod.minds_neighbours]
        others = [pod for pod in pods if not pod.pod.minds_neighbours]
        left = [pod for pod in minding if not self._buy_for_one(pod, worth)]
        others = self._fill_open(others) if minding else others
        queue = PodQueue(others, [self._worths.of(pod) * self._varied() for pod in others])
        # A gang is bought for whole, however large; only what the policy allows bounds it.
        while queue.left and (fixed or len(self._bought) < self._effort.most_nodes):
            if not self._buy_next(queue, worth, fixed):
                break
        return [*left, *(queue.pods[place] for place in queue.left)]

    def _buy_next(self, queue: PodQueue, worth: Worth, fixed: bool) -> bool:
        """Buy the machine with the lowest price for its value; False if none takes any pod."""
        for choice in self._choices(worth):
            best = self._best(queue, choice)
            if best is not None:
                offering, fill = best
                bought = self._add(offering, fixed)
                for place in fill.taken:
                    bought.put(queue.pods[place])
                queue.remove(fill.taken)
                return True
        return False

    def _buy_for_one(self, pod: PendingPod, worth: Worth) -> bool:
        """Spread and affinity depend on where others are, so such pods are bought for one at a time."""
        if any(self._put(pod, one) for one in self._bought):
            return True
        for choice in self._choices(worth):
            for offering in sorted(choice, key=lambda one: (one.compared_nano_usd, one.key)):
                bought = self._add(offering, True)
                if self._put(pod, bought):
                    return True
                self._bought.pop()
        return False

    def _choices(self, worth: Worth) -> list[list[Offering]]:
        """In the order of the mix; pools that are full are left out."""
        room = self._room()
        if self._problem.limits.nodes <= len(self._bought):
            return []
        open_ones = [one for one in self._problem.offerings if room.get(one.pool, 1) > 0]
        return self._problem.mix.choices(open_ones, [one.offering for one in self._bought], worth)

    def spread(self) -> None:
        """Spot machines of which too many are of one kind go elsewhere, where that costs little more."""
        placed: list[Offering] = []
        for place, one in enumerate(self._bought):
            other = self._problem.mix.elsewhere(one.offering, self._problem.offerings, placed)
            if other is not None and not one.fixed:
                moved = Purchase(other, self._stencils.node(other, one.node.name))
                if all(moved.put(pod) for pod in one.pods):
                    self._bought[place] = moved
            placed.append(self._bought[place].offering)

    def _room(self) -> dict[str, int]:
        used = Counter(one.offering.pool for one in self._bought)
        return {pool: most - used[pool] for pool, most in self._problem.limits.by_pool.items()}

    def _repair(self) -> None:
        """Take a few machines out and buy for their pods anew; keep it if it costs less."""
        movable = [one for one in self._bought if not one.fixed]
        if len(movable) < 2:
            return
        first = movable[int(self._random.integers(len(movable)))]
        alike = [
            one
            for one in movable
            if one is not first
            and one.offering.pool == first.offering.pool
            and one.offering.key.capacity_type is first.offering.key.capacity_type
        ]
        count = min(len(alike), 1 + int(self._random.integers(3)))
        chosen = self._random.choice(len(alike), size=count, replace=False) if alike else ()
        out = [first, *(alike[int(place)] for place in chosen)]
        others = [one.copy() for one in self._bought if not any(one is gone for gone in out)]
        pods = [pod for one in out for pod in one.pods]
        left = [pod for pod in pods if not any(one.put(pod) for one in others)]
        anew = self._bought_anew(left, first.offering)
        before = sum(one.offering.compared_nano_usd for one in out)
        if anew is not None and sum(one.offering.compared_nano_usd for one in anew) < before - 0.5:
            self._bought = [*others, *anew]

    def _bought_anew(self, pods: list[PendingPod], like: Offering) -> list[Purchase] | None:
        """Machines of the same pool and tier for these pods, no more than limits allow; None: not all fit."""
        offerings = [
            one
            for one in self._problem.offerings
            if one.pool == like.pool and one.key.capacity_type is like.key.capacity_type
        ]
        queue = PodQueue(pods, [self._worths.of(pod) * self._varied(2.0) for pod in pods])
        bought: list[Purchase] = []
        while queue.left:
            best = self._best(queue, offerings)
            if best is None:
                return None
            purchase = Purchase(best[0], self._stencils.sample(best[0]))
            for place in best[1].taken:
                purchase.put(queue.pods[place])
            queue.remove(best[1].taken)
            bought.append(purchase)
        room = self._room().get(like.pool)
        most = self._problem.limits.nodes - len(self._bought)
        # As many as were taken out may come; more only where there is room for them.
        return bought if len(bought) <= max(1, min(most, most if room is None else room)) + 1 else None

    def _best(self, queue: PodQueue, offerings: Sequence[Offering]) -> tuple[Offering, Fill] | None:
        best: tuple[float, OfferingKey, Offering, Fill] | None = None
        for offering in offerings:
            exact = (offering.pool, offering.key)
            look = exact if queue.particular else (offering.pool, offering.instance.name)
            fill = queue.fill(look, lambda one=offering: self._stencils.sample(one))  # type: ignore[misc]
            if fill.taken:
                ratio = offering.compared_nano_usd / max(fill.value, 1e-9) * self._varied(0.3)
                if best is None or (ratio, offering.key) < best[:2]:
                    best = (ratio, offering.key, offering, fill)
        return None if best is None else best[2:]

    def _add(self, offering: Offering, fixed: bool) -> Purchase:
        name = f"new-{offering.pool}-{len(self._bought)}"
        bought = Purchase(offering, self._stencils.node(offering, name), fixed=fixed)
        self._bought.append(bought)
        return bought

    def _varied(self, part: float = 1.0) -> float:
        return 1.0 + self._noise * part * (self._random.random() - 0.5) * 2.0 if self._noise else 1.0

    def _reason(self, pod: PendingPod) -> str:
        """Of the machine that comes closest: what the node itself would say."""
        if self._problem.limits.nodes <= len(self._bought):
            return "the policy allows no more nodes"
        room = self._room()
        reasons = Counter(
            self._stencils.sample(one).take(pod)
            for one in self._worths.cheapest_of_types
            if room.get(one.pool, 1) > 0
        )
        reasons.pop("", None)
        most = reasons.most_common(1)
        return f"{NO_OFFERING}: {most[0][0]}" if most else NO_OFFERING


def _worth(unit: Unit) -> Worth:
    found = {pod.worth for pod in unit.pods}
    return next((one for one in (Worth.ALWAYS_ON, Worth.CRITICAL) if one in found), Worth.FLEXIBLE)
