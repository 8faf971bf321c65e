"""Who must leave so that pods have a place: as few as possible, and only if that truly helps. Pure.

What leaves is a unit: a pod, or all pods of a gang. A node's units of the lowest priorities are taken until
the pod fits by the very functions that place it, then everyone who turns out not to be needed is spared. Of
the nodes the one wins whose victims have the lowest priority, then are fewest, then lose the least work.
Never chooses anybody who may not be evicted, breaks no disruption budget, and for a pod that would not fit
all the same chooses nobody.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from gpuloom.model.objects import LabelSelector
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.constraints.objects import SchedulablePod
from gpuloom.placement.fit import Fit, Refusal, fit
from gpuloom.placement.gangs.sites import Member, Seat, Site, Steps, in_tree_refusals, neighbours_of

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


def units_of(victims: Sequence[Victim], priority: int, protected: frozenset[str]) -> list[Unit]:
    """What a pod of this priority may have evicted. A gang with one pod that may not go stays whole."""
    gangs: defaultdict[str, list[Victim]] = defaultdict(list)
    units: list[Unit] = []
    for victim in victims:
        if victim.gang:
            gangs[victim.gang].append(victim)
        elif victim.pod.priority < priority and victim.uid not in protected:
            units.append(Unit(f"pod {victim.pod.namespace}/{victim.pod.name}", (victim,)))
    together = [Unit(f"gang {name}", tuple(members)) for name, members in sorted(gangs.items())]
    return units + [unit for unit in together if unit.priority < priority and not unit.uids & protected]


def plan_preemption(members: Sequence[Member], field_: Field) -> Steps[PreemptionPlan | None]:
    """For one pod, or for all of a gang in turn; None if no eviction helps."""
    chosen: list[Unit] = []
    seats: list[Seat] = []
    sites, without = dict(field_.sites), field_.without
    for member in members:
        ground = _Ground(sites, without, chosen, field_)
        found = yield from _cheapest(member, ground, anywhere=len(members) > 1)
        if found is None:
            return None
        node_name, units = found
        chosen += units
        site = ground.cleared(node_name, chosen)
        if site is None:
            return None
        devices = choose_devices(member.request, site.view)
        if isinstance(devices, Refusal):
            return None
        seats.append(Seat(member.uid, node_name, devices))
        without = _with_seat(without, member, seats[-1])
        for name in {victim.node_name for unit in chosen for victim in unit.victims} | {node_name}:
            changed = without(name, _uids(chosen))
            if changed is not None and name in sites:
                sites[name] = changed
    if len(members) == 1:
        return PreemptionPlan(tuple(seats), tuple(chosen))
    return (yield from _spared(members, field_, PreemptionPlan(tuple(seats), tuple(chosen))))


@dataclass(frozen=True, slots=True)
class _Ground:
    """The sites as they are once those chosen so far have left."""

    sites: Mapping[str, Site]
    without: Without
    chosen: Sequence[Unit]
    field: Field

    def cleared(self, node_name: str, units: Sequence[Unit]) -> Site | None:
        return self.without(node_name, _uids(units))

    def takes(self, member: Member, node_name: str, units: Sequence[Unit]) -> bool:
        """Whether the pod has a place there once these have left too."""
        gone = [*self.chosen, *units]
        site = self.cleared(node_name, gone)
        if site is None or in_tree_refusals(member, site):
            return False
        if not isinstance(fit(member.request, site.view), Fit):
            return False
        if not member.pod.minds_neighbours and not any(pod.anti_affinity for pod in site.pods):
            return True
        uids = _uids(gone)
        sites = [
            site if each.name == node_name else _without_pods(each, uids) for each in self.sites.values()
        ]
        return not neighbours_of(member.pod, sites).refusals(site.node)

    def allows(self, units: Sequence[Unit]) -> bool:
        return self.field.allows([*self.chosen, *units])


def _cheapest(member: Member, ground: _Ground, *, anywhere: bool) -> Steps[tuple[str, list[Unit]] | None]:
    """`anywhere`: also where nobody has to leave."""
    best: tuple[tuple[int, int, int, str], str, list[Unit]] | None = None
    taken = {unit.name for unit in ground.chosen}
    options = []
    for name in ground.sites:
        units = [unit for unit in ground.field.by_node.get(name, ()) if unit.name not in taken]
        if anywhere:
            options.append((_cost((), name), name, units))
        elif units:
            lowest = units[0].priority
            least = min(unit.lost_nano_usd for unit in units if unit.priority == lowest)
            options.append(((lowest, 1, least, name), name, units))
    for floor, name, units in sorted(options, key=lambda option: option[0]):
        if best is not None and best[0] <= floor:
            break
        yield
        if name in member.avoid:
            continue
        found = _least(member, name, units, ground)
        if found is not None:
            cost = _cost(found, name)
            if best is None or cost < best[0]:
                best = cost, name, found
    return None if best is None else (best[1], best[2])


def _least(member: Member, node_name: str, units: Sequence[Unit], ground: _Ground) -> list[Unit] | None:
    """The units of one node to evict; empty if it fits without. None if no eviction there helps."""
    if not ground.takes(member, node_name, units):
        return None
    if ground.takes(member, node_name, ()):
        return []
    for threshold in sorted({unit.priority for unit in units}):
        pool = [unit for unit in units if unit.priority <= threshold]
        alone = [unit for unit in pool if ground.allows([unit]) and ground.takes(member, node_name, [unit])]
        if alone:
            return [min(alone, key=lambda unit: (len(unit.victims), unit.lost_nano_usd, unit.name))]
        sets = [_irreducible(member, node_name, order, ground) for order in _orders(pool, node_name)]
        found = [each for each in sets if each is not None]
        if found:
            return min(found, key=lambda each: _cost(each, node_name))
    return None


def _irreducible(member: Member, node_name: str, units: Sequence[Unit], ground: _Ground) -> list[Unit] | None:
    """Take them in this order until the pod fits, then spare everybody it fits with; the dearest first."""
    chosen: list[Unit] = []
    for unit in units:
        if ground.allows([*chosen, unit]):
            chosen.append(unit)
            if ground.takes(member, node_name, chosen):
                break
    else:
        return None
    for unit in sorted(chosen, key=lambda each: each.order, reverse=True):
        rest = [each for each in chosen if each is not unit]
        if ground.takes(member, node_name, rest):
            chosen = rest
    return chosen


def _orders(units: Sequence[Unit], node_name: str) -> tuple[Sequence[Unit], Sequence[Unit]]:
    """The cheapest first; and the largest first, which may take fewer."""

    def size(unit: Unit) -> int:
        asked = [victim.pod.requests for victim in unit.victims if victim.node_name == node_name]
        return sum(amount for each in asked for name, amount in each.items() if "gpu" in name)

    return units, sorted(units, key=lambda unit: (unit.priority, -size(unit), unit.order))


def _spared(members: Sequence[Member], field_: Field, plan: PreemptionPlan) -> Steps[PreemptionPlan | None]:
    """Without those who were chosen for one pod and are not needed after the choice for another.

    None if the pods can't be there together after all.
    """
    kept, seats = list(plan.units), (yield from _seated(members, field_, plan.units, plan.seats))
    if seats is None:
        return None
    for unit in sorted(plan.units, key=lambda each: each.order, reverse=True):
        rest = [each for each in kept if each is not unit]
        found = yield from _seated(members, field_, rest, seats)
        if found is not None:
            kept, seats = rest, found
    return PreemptionPlan(seats, tuple(kept))


def _seated(
    members: Sequence[Member], field_: Field, units: Sequence[Unit], seats: Sequence[Seat]
) -> Steps[tuple[Seat, ...] | None]:
    """Devices on the same nodes when only these leave; None if a pod has no room, or is kept out."""
    by_uid, uids = {member.uid: member for member in members}, _uids(units)
    sites: dict[str, Site] = {}
    found: list[Seat] = []
    for seat in seats:
        yield
        member = by_uid[seat.uid]
        site = sites.get(seat.node_name) or field_.without(seat.node_name, uids)
        if site is None or in_tree_refusals(member, site):
            return None
        devices = choose_devices(member.request, site.view)
        if isinstance(devices, Refusal):
            return None
        found.append(Seat(seat.uid, seat.node_name, devices))
        sites[seat.node_name] = site.with_pod(member, devices)
    everywhere = [sites.get(name) or _without_pods(site, uids) for name, site in field_.sites.items()]
    keep_apart = any(pod.anti_affinity for site in everywhere for pod in site.pods)
    for seat in found:
        member = by_uid[seat.uid]
        if member.pod.minds_neighbours or keep_apart:
            yield
            if neighbours_of(member.pod, everywhere).refusals(sites[seat.node_name].node):
                return None
    return tuple(found)


def _with_seat(without: Without, member: Member, seat: Seat) -> Without:
    """The same nodes, with this pod in its seat."""

    def seen(name: str, uids: frozenset[str]) -> Site | None:
        site = without(name, uids)
        return site.with_pod(member, seat.devices) if site is not None and name == seat.node_name else site

    return seen


def _without_pods(site: Site, uids: frozenset[str]) -> Site:
    if not any(pod.uid in uids for pod in site.pods):
        return site
    left = tuple(pod for pod in site.pods if pod.uid not in uids)
    return Site(site.node, site.view, site.use, left)


def _cost(units: Sequence[Unit], node_name: str) -> tuple[int, int, int, str]:
    return (
        max((unit.priority for unit in units), default=-(2**31)),
        sum(len(unit.victims) for unit in units),
        sum(unit.lost_nano_usd for unit in units),
        node_name,
    )


def _uids(units: Sequence[Unit]) -> frozenset[str]:
    return frozenset().union(*(unit.uids for unit in units))
