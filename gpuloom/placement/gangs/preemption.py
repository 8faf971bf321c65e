"""Who must leave so that pods have a place: as few as possible, and only if that truly helps. Pure.

What leaves is a unit: a pod, or all pods of a gang. A node's units of the lowest priorities are taken until
the pod fits by the very functions that place it, then everyone who turns out not to be needed is spared. Of
the nodes the one wins whose victims have the lowest priority, then are fewest, then lose the least work.
Never chooses anybody who may not be evicted, breaks no disruption budget, and for a pod that would not fit
all the same chooses nobody.
"""

from collections import defaultdict
from collections.abc import Sequence

from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.request import RequestKind
from gpuloom.names import RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU, RESOURCE_NVIDIA_MIG_PREFIX
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.fit import Fit, Refusal, fit
from gpuloom.placement.gangs.gang import GangPlan, free_milli, hardest_first, plan_gang, wanted_milli
from gpuloom.placement.gangs.sites import (
    Member,
    Seat,
    Site,
    Steps,
    in_tree_refusals,
    minded,
    neighbours_of,
)
from gpuloom.placement.gangs.victims import Field, PreemptionPlan, Unit

SITES_A_STEP = 16


def plan_preemption(members: Sequence[Member], field_: Field) -> Steps[PreemptionPlan | None]:
    """For one pod, or for all of a gang in turn; None if no eviction helps."""
    ground = _Ground(field_)
    for member in sorted(members, key=hardest_first):
        found = yield from ground.cheapest(member, anywhere=len(members) > 1)
        if found is None or not ground.seat(member, *found):
            return None
    plan = PreemptionPlan(tuple(ground.seats), tuple(ground.chosen))
    return plan if len(members) == 1 else (yield from _spared(members, field_, plan))


_Option = tuple[tuple[int, int, int, str], str, list[Unit]]


class _Ground:
    """The sites as they become: those chosen so far have left, and those who have their seats are there."""

    def __init__(self, field_: Field) -> None:
        self.field = field_
        self.sites = dict(field_.sites)
        self.chosen: list[Unit] = []
        self.seats: list[Seat] = []
        self._gone: frozenset[str] = frozenset()
        self._seated: defaultdict[str, list[tuple[Member, Seat]]] = defaultdict(list)
        self._options: dict[str, _Option | None] = {}
        """Where somebody might leave, and what that costs at least."""
        self._full: set[str] = set()
        """Where there is no place unless somebody leaves."""
        self._kind: Member | None = None
        """For whom, and for whoever is alike, these two hold."""
        self._beside: list[Site] = []
        """With those pods alone that the present member may mind, or that may mind it."""

    def cheapest(self, member: Member, *, anywhere: bool) -> Steps[tuple[str, list[Unit]] | None]:
        """`anywhere`: also where nobody has to leave."""
        self._beside = (yield from minded(member.pod, self.sites.values())) if self._minds(member) else []
        if self._beside or not self._is_of_that_kind(member):
            self._kind, self._options, self._full = member, {}, set()
        if anywhere:
            free = yield from self._free(member)
            if free:
                return free, []
        best: tuple[tuple[int, int, int, str], str, list[Unit]] | None = None
        for floor, name, units in (yield from self._sorted_options(member)):
            if best is not None and best[0] <= floor:
                break
            yield
            if name in member.avoid:
                continue
            found = yield from _least(member, name, units, self, floor[1])
            if found is not None:
                cost = _cost(found, name)
                if best is None or cost < best[0]:
                    best = cost, name, found
        return None if best is None else (best[1], best[2])

    def seat(self, member: Member, node_name: str, units: Sequence[Unit]) -> bool:
        """These leave, and the pod comes; False if that can't be after all."""
        self.chosen += units
        self._gone = _uids(self.chosen)
        site = self.cleared(node_name, ())
        devices = None if site is None else choose_devices(member.request, site.view)
        if devices is None or isinstance(devices, Refusal):
            return False
        seat = Seat(member.uid, node_name, devices)
        self.seats.append(seat)
        self._seated[node_name].append((member, seat))
        for name in {victim.node_name for unit in units for victim in unit.victims} | {node_name}:
            changed = self.cleared(name, ()) if name in self.sites else None
            if changed is not None:
                self.sites[name] = changed
            self._options.pop(name, None)
            self._full.discard(name)
        return True

    def cleared(self, node_name: str, units: Sequence[Unit]) -> Site | None:
        """The node once these have left, too."""
        site = self.field.without(node_name, self._gone | _uids(units))
        for member, seat in self._seated[node_name] if site is not None else ():
            site = site.with_pod(member, seat.devices) if site is not None else None
        return site

    def takes(self, member: Member, node_name: str, units: Sequence[Unit]) -> bool:
        """Whether the pod has a place there once these have left too."""
        site = self.cleared(node_name, units)
        return site is not None and self._fits(member, site, _uids(units))

    def allows(self, units: Sequence[Unit]) -> bool:
        return self.field.allows([*self.chosen, *units])

    def _fits(self, member: Member, site: Site, gone: frozenset[str]) -> bool:
        if in_tree_refusals(member, site) or not isinstance(fit(member.request, site.view), Fit):
            return False
        if not self._beside:
            return True
        sites = [site if each.name == site.name else _without_pods(each, gone) for each in self._beside]
        return not neighbours_of(member.pod, sites).refusals(site.node)

    def _is_of_that_kind(self, member: Member) -> bool:
        return self._kind is not None and self._kind.is_like(member) and self._kind.avoid == member.avoid

    def _minds(self, member: Member) -> bool:
        return member.pod.minds_neighbours or any(
            pod.anti_affinity for site in self.sites.values() for pod in site.pods
        )

    def _free(self, member: Member) -> Steps[str]:
        """Where it has a place as things are; empty if nowhere."""
        for count, (name, site) in enumerate(self.sites.items(), 1):
            if count % SITES_A_STEP == 0:
                yield
            if name in self._full or name in member.avoid:
                continue
            if self._fits(member, site, frozenset()):
                return name
            self._full.add(name)
        return ""

    def _sorted_options(self, member: Member) -> "Steps[list[_Option]]":
        taken = {unit.name for unit in self.chosen}
        for count, name in enumerate(self.sites, 1):
            if count % SITES_A_STEP == 0:
                yield
            if name in self._options:
                continue
            units = [unit for unit in self.field.by_node.get(name, ()) if unit.name not in taken]
            fewest = _fewest(member, self.sites[name], units)
            lost = 0
            if fewest == 1:
                lost = min(unit.lost_nano_usd for unit in units if unit.priority == units[0].priority)
            elif fewest:
                lost = sum(sorted(unit.lost_nano_usd for unit in units)[:fewest])
            self._options[name] = ((units[0].priority, fewest, lost, name), name, units) if fewest else None
        return sorted((option for option in self._options.values() if option), key=lambda each: each[0])


def _fewest(member: Member, site: Site, units: Sequence[Unit]) -> int:
    """No fewer units than these would do, by the bare sum of cards; 0 if all of them would not do."""
    gpu = member.request.gpu
    cards = site.view.gpus
    is_open = not site.view.closed_reason and not any(card.closed_reason for card in cards)
    if not units or gpu.kind is not RequestKind.WHOLE or gpu.count == 1 or not is_open:
        return min(1, len(units))
    short = gpu.count * gpu.milli - sum(card.free_share_milli for card in cards)
    fewest = 0
    for size in sorted((_milli(unit, site.name) for unit in units), reverse=True):
        if short <= 0:
            break
        short -= size
        fewest += 1
    return 0 if short > 0 else max(1, fewest)


def _milli(unit: Unit, node_name: str) -> int:
    """At most so much of the node's cards becomes free with it."""
    asked = [victim.pod.requests for victim in unit.victims if victim.node_name == node_name]
    whole = sum(each.get(RESOURCE_NVIDIA_GPU, 0) for each in asked)
    slices = sum(
        amount
        for each in asked
        for name, amount in each.items()
        if name.startswith(RESOURCE_NVIDIA_MIG_PREFIX)
    )
    return sum(each.get(RESOURCE_GPU_MILLI, 0) for each in asked) + MILLI_PER_GPU * (whole + slices)


def _least(
    member: Member, node_name: str, units: Sequence[Unit], ground: _Ground, fewest: int
) -> Steps[list[Unit] | None]:
    """The units of one node to evict; empty if it fits without. None if no eviction there helps."""
    if not ground.takes(member, node_name, units):
        return None
    if ground.takes(member, node_name, ()):
        return []
    for threshold in sorted({unit.priority for unit in units}):
        pool = [unit for unit in units if unit.priority <= threshold]
        alone: list[Unit] = []
        for unit in pool if fewest <= 1 else ():
            yield
            if ground.allows([unit]) and ground.takes(member, node_name, [unit]):
                alone.append(unit)
        if alone:
            return [min(alone, key=lambda unit: (len(unit.victims), unit.lost_nano_usd, unit.name))]
        found: list[list[Unit]] = []
        for order in _orders(pool, node_name):
            enough = yield from _irreducible(member, node_name, order, ground)
            found += [enough] if enough is not None else []
        if found:
            return min(found, key=lambda each: _cost(each, node_name))
    return None


def _irreducible(
    member: Member, node_name: str, units: Sequence[Unit], ground: _Ground
) -> Steps[list[Unit] | None]:
    """Take them in this order until the pod fits, then spare everybody it fits with; the dearest first."""
    chosen: list[Unit] = []
    for unit in units:
        yield
        if ground.allows([*chosen, unit]):
            chosen.append(unit)
            if ground.takes(member, node_name, chosen):
                break
    else:
        return None
    for unit in sorted(chosen, key=lambda each: each.order, reverse=True):
        yield
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
    spare = _spare_milli(members, (yield from _cleared(field_, kept)))
    for unit in sorted(plan.units, key=lambda each: each.order, reverse=True):
        yield
        rest = [each for each in kept if each is not unit]
        lost = _freed_milli(unit, field_, kept) - _freed_milli(unit, field_, rest)
        if spare is not None and lost > spare:
            continue
        found = yield from _seated(members, field_, rest, seats)
        if found is None:
            outcome = yield from plan_gang(members, (yield from _cleared(field_, rest)))
            found = outcome.seats if isinstance(outcome, GangPlan) else None
        if found is not None:
            kept, seats = rest, found
            spare = None if spare is None else spare - lost
    return PreemptionPlan(seats, tuple(kept))


def _cleared(field_: Field, units: Sequence[Unit]) -> Steps[list[Site]]:
    """All nodes when these have left."""
    uids, changed = _uids(units), {victim.node_name for unit in units for victim in unit.victims}
    sites: list[Site] = []
    for count, (name, site) in enumerate(field_.sites.items(), 1):
        cleared = field_.without(name, uids) if name in changed else site
        sites += [cleared] if cleared is not None else []
        if name in changed or count % SITES_A_STEP == 0:
            yield
    return sites


def _spare_milli(members: Sequence[Member], sites: Sequence[Site]) -> int | None:
    """By how much the bare sum of cards is more than they need; None where that says nothing."""
    wanted = wanted_milli(members)
    return None if wanted is None else sum(free_milli(site.view) for site in sites) - wanted


def _freed_milli(unit: Unit, field_: Field, gone: Sequence[Unit]) -> int:
    """What is free on the nodes of one unit when these have left."""
    sites = (
        field_.without(name, _uids(gone))
        for name in sorted({victim.node_name for victim in unit.victims} & field_.sites.keys())
    )
    return sum(free_milli(site.view) for site in sites if site is not None)


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
            beside = yield from minded(member.pod, everywhere)
            if neighbours_of(member.pod, beside).refusals(sites[seat.node_name].node):
                return None
    return tuple(found)


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
