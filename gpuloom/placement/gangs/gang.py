"""Places for all pods of a gang at once, or the reason why there are none. Pure.

Pods that ask for most choose first; each takes the node that the same exact scores rank first, as the ones
before it have left it. kube-scheduler's own filters are asked about every node, so no place is planned that
it would not offer. With a wish for a topology domain every domain is tried, and the best total wins.
Never places a part of a gang.
"""

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpuloom.model.request import PodRequest, RequestKind
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.constraints.neighbours import Neighbours
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Refusal
from gpuloom.placement.gangs.sites import (
    Judge,
    Member,
    Seat,
    Site,
    Steps,
    in_tree_refusals,
    neighbours_of,
    neutral_judge,
)
from gpuloom.placement.potential import Prices
from gpuloom.placement.score import Scored

EVALUATIONS_A_STEP = 16
NOT_TOGETHER = "its affinity or spreading rules can't hold for all its members at once"


@dataclass(frozen=True, slots=True)
class DomainWish:
    """All pods on nodes that share the value of this label; where pods run already, this very `value`."""

    key: str
    required: bool = True
    value: str | None = None


@dataclass(frozen=True, slots=True)
class GangPlan:
    """`score` is the mean of the members' scores, 0 to 100."""

    seats: tuple[Seat, ...]
    score: float
    domain: str = ""


@dataclass(frozen=True, slots=True)
class GangRefusal:
    """`missing` is how many pods had no place where most of them had one."""

    reason: str
    missing: int


def plan_gang(
    members: Sequence[Member],
    sites: Sequence[Site],
    wish: DomainWish | None = None,
    judge: Judge = neutral_judge,
    prices: Prices | None = None,
) -> Steps[GangPlan | GangRefusal]:
    if wish is None:
        return (yield from _place(members, [sites], sites, judge, prices))
    domains = _domains(sites, wish)
    found: list[GangPlan] = []
    refused: list[GangRefusal] = []
    for value, group in domains:
        if _roomy(members, group):
            outcome = yield from _place(members, [group], sites, judge, prices)
            if isinstance(outcome, GangPlan):
                found.append(replace(outcome, domain=value))
            else:
                refused.append(outcome)
    if found:
        return min(found, key=lambda plan: (-plan.score, plan.domain))
    if not wish.required:
        groups = [group for _, group in domains]
        rest = [site for site in sites if wish.key not in site.node.labels]
        return (yield from _place(members, [*groups, rest], sites, judge, prices))
    missing = min((outcome.missing for outcome in refused), default=len(members))
    why = f": {min(refused, key=lambda each: each.missing).reason}" if refused else ""
    where = f"{wish.key}={wish.value}" if wish.value is not None else f"one value of {wish.key}"
    return GangRefusal(f"no room for all on nodes with {where}{why}", missing)


def _place(
    members: Sequence[Member],
    groups: Sequence[Sequence[Site]],
    everywhere: Sequence[Site],
    judge: Judge,
    prices: Prices | None,
) -> Steps[GangPlan | GangRefusal]:
    """Group by group, as many as fit; by scores first, and if that leaves some, as densely as possible."""
    outcome: GangPlan | GangRefusal = GangRefusal("it has no members", 0)
    for dense in (False, True):
        filling = _Filling(everywhere, judge, prices, dense)
        left = sorted(members, key=hardest_first)
        for group in groups:
            left = yield from filling.fill(left, group)
        if left:
            outcome = GangRefusal(filling.reason(left, members), len(left))
            continue
        if not filling.holds_together(members):
            return GangRefusal(NOT_TOGETHER, len(members))
        return filling.plan()
    return outcome


class _Filling:
    """Sites as they become. `dense`: the node with the least left comes first, whatever its score."""

    def __init__(self, sites: Sequence[Site], judge: Judge, prices: Prices | None, dense: bool) -> None:
        self._sites = {site.name: site for site in sites}
        self._judge = judge
        self._prices = prices
        self._dense = dense
        self._keep_apart = any(pod.anti_affinity for site in sites for pod in site.pods)
        self._seats: list[Seat] = []
        self._totals: list[float] = []
        self._reasons: Counter[str] = Counter()
        self._judged: dict[tuple[PodRequest, Hashable], float | str] = {}
        """What a request gets on nodes that are alike: its total, or why it does not fit."""

    def plan(self) -> GangPlan:
        return GangPlan(tuple(self._seats), sum(self._totals) / max(1, len(self._totals)))

    def fill(self, members: Sequence[Member], group: Sequence[Site]) -> Steps[list[Member]]:
        """Who has no place in this group."""
        left: list[Member] = []
        for alike in _classes(members):
            left += yield from self._fill_alike(alike, [site.name for site in group])
        return left

    def holds_together(self, members: Sequence[Member]) -> bool:
        """Whether each may be where it is with all the others there: they are bound in any order."""
        place = {seat.uid: seat.node_name for seat in self._seats}
        return all(
            not neighbours_of(member.pod, self._all()).refusals(self._sites[place[member.uid]].node)
            for member in members
            if member.pod.minds_neighbours
        )

    def reason(self, left: Sequence[Member], members: Sequence[Member]) -> str:
        why = "; ".join(
            f"{count} {text}"
            for text, count in sorted(self._reasons.items(), key=lambda it: (-it[1], it[0]))[:3]
        )
        return f"{len(left)} of {len(members)} pods have no place" + (f" ({why})" if why else "")

    def _fill_alike(self, members: Sequence[Member], names: Sequence[str]) -> Steps[list[Member]]:
        first = members[0]
        minds = first.pod.minds_neighbours or self._keep_apart
        queue: list[tuple[float, str]] = []
        self._reasons = Counter()
        for count, name in enumerate(names, 1):
            self._push(queue, first, name)
            if count % EVALUATIONS_A_STEP == 0:
                yield
        for place, member in enumerate(members):
            beside = neighbours_of(member.pod, self._all()) if minds else None
            if not self._take_best(queue, member, beside):
                return list(members[place:])
            yield
        return []

    def _push(self, queue: list[tuple[float, str]], member: Member, name: str) -> None:
        site = self._sites[name]
        refused = in_tree_refusals(member, site)
        if refused:
            self._reasons[refused[0]] += 1
            return
        outcome = self._outcome(member.request, site.view)
        if isinstance(outcome, float):
            order = free_milli(site.view) if self._dense else -outcome
            heapq.heappush(queue, (order, name))
        else:
            self._reasons[outcome] += 1

    def _outcome(self, request: PodRequest, view: NodeView) -> float | str:
        alike = likeness(view)
        known = None if alike is None else self._judged.get((request, alike))
        if known is not None:
            return known
        outcome = self._judge(request)(view)
        found = float(outcome.total) if isinstance(outcome, Scored) else outcome.reason
        if alike is not None:
            self._judged[request, alike] = found
        return found

    def _take_best(self, queue: list[tuple[float, str]], member: Member, beside: Neighbours | None) -> bool:
        skipped: list[tuple[float, str]] = []
        taken = False
        while queue and not taken:
            entry = heapq.heappop(queue)
            site = self._sites[entry[1]]
            if site.name in member.avoid or (beside is not None and beside.refusals(site.node)):
                self._reasons["kept away by other pods, or not offered by kube-scheduler"] += 1
                skipped.append(entry)
                continue
            devices = choose_devices(member.request, site.view, self._prices)
            if isinstance(devices, Refusal):
                continue
            self._seats.append(Seat(member.uid, site.name, devices))
            self._totals.append(0.0 if self._dense else -entry[0])
            self._sites[site.name] = site.with_pod(member, devices)
            self._push(queue, member, site.name)
            taken = True
        for entry in skipped:
            heapq.heappush(queue, entry)
        return taken

    def _all(self) -> list[Site]:
        return list(self._sites.values())


def _domains(sites: Sequence[Site], wish: DomainWish) -> list[tuple[str, list[Site]]]:
    """Largest room first: where one domain is not enough, the fewest are used."""
    groups: dict[str, list[Site]] = {}
    for site in sites:
        value = site.node.labels.get(wish.key)
        if value is not None and wish.value in (None, value):
            groups.setdefault(value, []).append(site)
    return sorted(groups.items(), key=lambda item: (-sum(free_milli(s.view) for s in item[1]), item[0]))


def _roomy(members: Sequence[Member], sites: Iterable[Site]) -> bool:
    """Whether the bare sum of cards would do; far less to look at than a plan."""
    wanted = wanted_milli(members)
    return wanted is None or wanted <= sum(free_milli(site.view) for site in sites)


def wanted_milli(members: Sequence[Member]) -> int | None:
    """Of cards that are wholly free; None where slices or shares are wanted, which fit in beside others."""
    if any(member.request.gpu.kind is not RequestKind.WHOLE for member in members):
        return None
    return sum(member.request.gpu.milli * member.request.gpu.count for member in members)


def likeness(view: NodeView) -> Hashable:
    """Equal only for nodes on which every request gets the same; None for one with cards that are cut."""
    if any(card.gpu.mig_enabled for card in view.gpus):
        return None
    cards = tuple(
        (
            card.free_milli,
            card.free_memory_mib,
            card.closed_reason,
            card.gpu.model,
            card.gpu.architecture,
            card.gpu.memory_mib,
            card.gpu.health,
            card.gpu.sharing,
            bool(card.gpu.changing),
        )
        for card in view.gpus
    )
    # A table is the same object for all nodes of one shape.
    return view.mode, view.delivery, view.closed_reason, view.host, view.links, cards


def free_milli(view: NodeView) -> int:
    return 0 if view.closed_reason else sum(card.free_share_milli for card in view.gpus)


def hardest_first(member: Member) -> tuple[int, int, str]:
    gpu = member.request.gpu
    return -gpu.count * gpu.milli, -gpu.count, member.uid


def _classes(members: Sequence[Member]) -> Iterator[list[Member]]:
    """Neighbours in the order that are alike to kube-scheduler and to us."""
    alike: list[Member] = []
    for member in members:
        if alike and not alike[0].is_like(member):
            yield alike
            alike = []
        alike.append(member)
    if alike:
        yield alike
