"""Who may leave, what that costs, and what keeps them: the values that preemptions are planned with. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from gpuloom.model.objects import LabelSelector
from gpuloom.placement.constraints.objects import SchedulablePod
from gpuloom.placement.gangs.sites import Seat, Site, Steps

VICTIMS_A_STEP = 200

Without = Callable[[str, frozenset[str]], Site | None]
"""A node, by name, as it would be without the pods of these UIDs."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that may be evicted. `lost_nano_usd`: what its work since the last checkpoint has cost."""

    pod: SchedulablePod
    node_name: str
    lost_s: float = 0.0
    lost_nano_usd: int = 0
    gang: str = ""

    @property
    def uid(self) -> str:
        return self.pod.uid


@dataclass(frozen=True, slots=True)
class Unit:
    """What leaves together. `order`: the lowest priority first, then the fewest pods, then the least loss."""

    name: str
    victims: tuple[Victim, ...]
    order: tuple[int, int, int, str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        victims = self.victims
        priority = victims[0].pod.priority if len(victims) == 1 else max(v.pod.priority for v in victims)
        lost = victims[0].lost_nano_usd if len(victims) == 1 else sum(v.lost_nano_usd for v in victims)
        object.__setattr__(self, "order", (priority, len(victims), lost, self.name))

    @property
    def priority(self) -> int:
        return self.order[0]

    @property
    def lost_nano_usd(self) -> int:
        return self.order[2]

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(victim.uid for victim in self.victims)


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget. `selector` None selects nobody; `allowed` is how many may go now."""

    namespace: str
    selector: LabelSelector | None
    allowed: int

    def covers(self, pod: SchedulablePod) -> bool:
        return (
            pod.namespace == self.namespace
            and self.selector is not None
            and self.selector.matches(pod.labels)
        )


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """`seats` are where the pods go once the victims have left."""

    seats: tuple[Seat, ...]
    units: tuple[Unit, ...]

    @property
    def victims(self) -> tuple[Victim, ...]:
        return tuple(victim for unit in self.units for victim in unit.victims)

    @property
    def lost_nano_usd(self) -> int:
        return sum(unit.lost_nano_usd for unit in self.units)

    @property
    def cost(self) -> tuple[int, int, int, str]:
        names = ",".join(sorted(seat.node_name for seat in self.seats))
        priority = max((unit.priority for unit in self.units), default=-(2**31))
        return priority, len(self.victims), self.lost_nano_usd, names


@dataclass(frozen=True, slots=True)
class Field:
    """All that a preemption is planned on. `units` are those that may be evicted for this preemptor."""

    sites: Mapping[str, Site]
    units: Sequence[Unit]
    without: Without
    budgets: Sequence[DisruptionBudget] = ()
    by_node: Mapping[str, Sequence[Unit]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        by_node: defaultdict[str, list[Unit]] = defaultdict(list)
        for unit in sorted(self.units, key=attrgetter("order")):
            if len(unit.victims) == 1:
                by_node[unit.victims[0].node_name].append(unit)
                continue
            for name in {victim.node_name for victim in unit.victims}:
                by_node[name].append(unit)
        object.__setattr__(self, "by_node", dict(by_node))

    def allows(self, units: Sequence[Unit]) -> bool:
        """Whether no budget is broken if all of these go."""
        spent: Counter[int] = Counter(
            place
            for unit in units
            for victim in unit.victims
            for place, budget in enumerate(self.budgets)
            if budget.covers(victim.pod)
        )
        return all(count <= self.budgets[place].allowed for place, count in spent.items())


def units_of(victims: Sequence[Victim], priority: int, protected: frozenset[str]) -> Steps[list[Unit]]:
    """What a pod of this priority may have evicted. A gang with one pod that may not go stays whole."""
    gangs: defaultdict[str, list[Victim]] = defaultdict(list)
    units: list[Unit] = []
    for count, victim in enumerate(victims, 1):
        if count % VICTIMS_A_STEP == 0:
            yield
        if victim.gang:
            gangs[victim.gang].append(victim)
        elif victim.pod.priority < priority and victim.uid not in protected:
            units.append(Unit(f"pod {victim.pod.namespace}/{victim.pod.name}", (victim,)))
    together = [Unit(f"gang {name}", tuple(members)) for name, members in sorted(gangs.items())]
    return units + [unit for unit in together if unit.priority < priority and not unit.uids & protected]
