"""The leader's loop that keeps GPUs free for a gang that waits too long, so that single pods can't starve it.

Single pods take what becomes free, so a large gang might never find all of its places free at once. Of the
gangs that have waited for `after_s` the first is kept the places that are likely to be free soonest: their
devices are held for it beside those who still use them. Nobody is evicted; pods of higher priority pass.
It lasts until the gang has places, anywhere, and at most for `after_s` or half the time that it had waited.
Then nothing is kept for this gang for twice as long, so that what it can't have is not idle for good. While
somebody would have to end who has run for longer already, nothing is kept: he is likely to go on.
All of it is in the GPUHolds, whose expiry is its end: a new leader goes on where the one before ended.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.kube.parse import parse_time
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.claims import HoldOwner
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.ledger import GANG_OWNER, Hold
from gpuloom.placement.fit import Fit, fit
from gpuloom.placement.gangs.preemption import plan_preemption
from gpuloom.placement.gangs.sites import Member, Site, in_tree_refusals, neighbours_of
from gpuloom.placement.gangs.victims import Field, PreemptionPlan, Victim, units_of
from gpuloom.placement.occupancy.holds import conflicting
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.guard import SELF
from services.scheduler_extender.core.gangs.index import PLANNED, WAITING
from services.scheduler_extender.core.gangs.losses import run_of
from services.scheduler_extender.core.gangs.membership import gang_of
from services.scheduler_extender.core.gangs.phases import Gang, Phase, is_gated, priority_of
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs.filtering import was_tried
from services.scheduler_extender.planning.gangs import GangLoop
from services.scheduler_extender.planning.leaving import member_of
from services.scheduler_extender.planning.preemptions import domains
from services.scheduler_extender.planning.promises import Promises, hold_name
from services.scheduler_extender.planning.sites import Grounds, KeptFor, Observed, SiteBook
from services.scheduler_extender.planning.slices import in_slices
from services.scheduler_extender.planning.tenants import Tenants
from services.scheduler_extender.ports import Announcer

REASON = "kept free for a gang that has waited long"
AFTER_S = 600.0
MOST_KEPT_S = 43_200.0
TRIED_AGAIN_S = 10.0
MOST_PASSING = 4
"""So many pods of higher priority are looked at in one turn; who was let pass not again for a while."""
EVERYBODY = 2**31
"""Above every priority: nobody is evicted, so everybody counts as one who leaves by himself one day."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatheringParts:
    pods: Observed
    ledger: Ledger
    book: SiteBook
    promises: Promises
    announcer: Announcer
    gangs: GangLoop
    tenants: Tenants
    after_s: float = AFTER_S


class GatheringLoop:
    def __init__(self, parts: GatheringParts, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._again_s: dict[str, float] = {}
        """When something may be kept for a gang again."""
        self._passed_s: dict[str, float] = {}
        """Until when a pod that was let pass is not looked at, by UID."""

    async def turn(self) -> None:
        waiting = {each.name: each for each in self._parts.gangs.reports if each.phase == Phase.WAITING}
        self._again_s = {name: at_s for name, at_s in self._again_s.items() if name in waiting}
        kept = await self._still_needed(waiting)
        owner = _owner(kept[0], _by_key(waiting)) if kept else ""
        if owner:
            self._parts.book.kept_for = KeptFor(_key(owner), waiting[owner].priority)
            await self._let_pass(kept, waiting[owner].priority)
            return
        self._parts.book.kept_for = None
        for gang, _ in self._parts.gangs.unplaced.values():
            if self._is_due(gang):
                await self._begin(gang)
                return

    async def _still_needed(self, waiting: Iterable[str]) -> list[Hold]:
        """What is kept for a gang that still waits, and was not promised to any pod since."""
        promises = self._parts.promises.all()
        kept = [hold for hold in promises if hold.owner.kind == GANG_OWNER]
        by_key = _by_key(waiting) if kept else {}
        promised: defaultdict[str, list[Hold]] = defaultdict(list)
        for hold in promises if kept else ():
            if hold.owner.kind != GANG_OWNER:
                promised[hold.node_name].append(hold)
        over = [
            hold
            for hold in kept
            if not _owner(hold, by_key) or conflicting(promised[hold.node_name], hold) is not None
        ]
        over += self._parts.promises.broken(hold for hold in kept if hold not in over)
        await self._parts.promises.give_back([hold.name for hold in over])
        return [hold for hold in kept if hold not in over]

    async def _let_pass(self, kept: Sequence[Hold], priority: int) -> None:
        """Who is more important gets what is kept on a node if that is all that is in its way."""
        nodes, now_s = sorted({hold.node_name for hold in kept}), self._clock.monotonic()
        self._passed_s = {uid: at_s for uid, at_s in self._passed_s.items() if at_s > now_s}
        waiting = self._parts.pods.by_index(PLANNED, WAITING)
        higher = [pod for pod in waiting if priority_of(pod) > priority and self._is_single(pod)]
        for pod in sorted(higher, key=lambda each: (-priority_of(each), uid_of(each)))[:MOST_PASSING]:
            name = await self._place_of(pod, nodes)
            self._passed_s[uid_of(pod)] = now_s + TRIED_AGAIN_S
            if name:
                nodes.remove(name)
                await self._parts.promises.give_back([hold.name for hold in kept if hold.node_name == name])

    def _is_single(self, pod: JsonObject) -> bool:
        """Whether it waits for a place that nobody plans for it."""
        uid, parts = uid_of(pod), self._parts
        if gang_of(pod) or is_gated(pod) or not was_tried(pod) or uid in self._passed_s:
            return False
        leaves = bool(metadata_of(pod).get("deletionTimestamp"))
        return not (leaves or parts.ledger.has_attempt(uid) or parts.promises.of(uid))

    async def _place_of(self, pod: JsonObject, nodes: Sequence[str]) -> str:
        member = member_of(pod, self._parts.book)
        if member is None:
            return ""
        grounds = await self._grounds([pod], priority_of(pod))
        sites = [grounds.sites[name] for name in nodes if name in grounds.sites]
        fitting = [site for site in sites if _fits(member, site)]
        beside = neighbours_of(member.pod, list(grounds.sites.values())) if fitting else None
        return next((each.name for each in fitting if beside and not beside.refusals(each.node)), "")

    def _is_due(self, gang: Gang) -> bool:
        if gang.has_begun or self._clock.monotonic() < self._again_s.get(gang.name, 0.0):
            return False
        if self._parts.book.asker(gang.waiting, gang.priority).insists:
            return False
        return self._waited_s(gang) >= self._parts.after_s

    def _waited_s(self, gang: Gang) -> float:
        """Since its last pod came, by what Kubernetes says, which the next leader reads, too."""
        try:
            return (self._clock.now() - parse_time(gang.created)).total_seconds()
        except ValueError:
            return 0.0

    async def _begin(self, gang: Gang) -> None:
        now_s = self._clock.monotonic()
        self._again_s[gang.name] = now_s + self._parts.after_s
        members = [found for pod in gang.waiting if (found := member_of(pod, self._parts.book)) is not None]
        plan = await self._plan(gang, members) if len(members) == len(gang.waiting) else None
        lasts_s = min(MOST_KEPT_S, max(self._parts.after_s, self._waited_s(gang) / 2))
        if plan is None or not plan.units or self._is_in_vain(plan, lasts_s):
            return
        refused = await self._parts.promises.take(self._wanted(gang, plan), int(lasts_s), allow_used=True)
        if refused:
            self._again_s[gang.name] = now_s + TRIED_AGAIN_S
            _log.info("nothing kept for a gang", extra={"gang": gang.name, "reason": refused})
            return
        self._again_s[gang.name] = now_s + 3 * lasts_s
        self._parts.book.kept_for = KeptFor(_key(gang.name), gang.priority)
        self._tell(gang, plan, self._clock.now() + timedelta(seconds=lasts_s))

    def _is_in_vain(self, plan: PreemptionPlan, lasts_s: float) -> bool:
        """Whether somebody has run for longer already than he would be waited for now."""
        now = self._clock.now()
        return any(_age_s(victim, now) > lasts_s for victim in plan.victims)

    async def _plan(self, gang: Gang, members: Sequence[Member]) -> PreemptionPlan | None:
        """Where it has room once the fewest have left of those that are likely to leave soonest."""
        grounds = await self._grounds(gang.waiting, gang.priority)
        found = await in_slices(self._parts.tenants.candidates(grounds, EVERYBODY), self._clock)
        now = self._clock.now()
        victims = [_by_age(victim, now) for victim in found.victims]
        units = await in_slices(units_of(victims, EVERYBODY, frozenset()), self._clock)
        plans: list[PreemptionPlan] = []
        for sites in domains(grounds.sites, gang.membership.wish):
            field = Field(sites, units, self._without(grounds))
            plan = await in_slices(plan_preemption(members, field), self._clock)
            plans += [plan] if plan is not None else []
        return min(plans, key=lambda each: each.cost, default=None)

    def _without(self, grounds: Grounds) -> Callable[[str, frozenset[str]], Site | None]:
        return lambda name, uids: self._parts.book.without(grounds, name, uids)

    async def _grounds(self, pods: Sequence[JsonObject], priority: int) -> Grounds:
        """Without what is reserved: that is nobody's to keep."""
        asker = replace(self._parts.book.asker(pods, priority), reservations=(), insists=False)
        return await in_slices(self._parts.book.grounds(asker), self._clock)

    def _wanted(self, gang: Gang, plan: PreemptionPlan) -> list[Hold]:
        """One for each device; shares of one card, which several pods are to have, together."""
        namespace, _, name = _key(gang.name).partition("/")
        owner = HoldOwner(GANG_OWNER, name, namespace)
        found: dict[tuple[str, DeviceRef], AllocatedDevice] = {}
        for node_name, item in ((seat.node_name, item) for seat in plan.seats for item in seat.devices):
            had = found.get((node_name, item.device))
            milli, memory_mib = (had.milli, had.memory_mib) if had is not None else (0, 0)
            found[node_name, item.device] = replace(
                item, milli=milli + item.milli, memory_mib=memory_mib + item.memory_mib
            )
        return [
            Hold(_hold_name(gang.name, item), node_name, owner, REASON, self._node_uid(node_name), item, SELF)
            for (node_name, _), item in found.items()
        ]

    def _node_uid(self, node_name: str) -> str:
        return self._parts.ledger.node_uid(node_name) or ""

    def _tell(self, gang: Gang, plan: PreemptionPlan, until: datetime) -> None:
        nodes = sorted({seat.node_name for seat in plan.seats})
        message = (
            f"gang {gang.name} has waited long: what becomes free on {', '.join(nodes)} is kept for it until "
            f"{until:%Y-%m-%dT%H:%MZ}; {len(plan.victims)} pods still have to end there"
        )
        self._parts.announcer.tell(gang.waiting[0], "GangKeeps", message)
        _log.info("places kept for a gang", extra={"gang": gang.name, "nodes": nodes})


def _by_key(gangs: Iterable[str]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(gangs):
        found[_key(name)].append(name)
    return found


def _owner(hold: Hold, by_key: Mapping[str, Sequence[str]]) -> str:
    """Of these gangs the one that it is kept for, by its name: groups of a LeaderWorkerSet share the key."""
    names = by_key.get(f"{hold.owner.namespace}/{hold.owner.name}", ())
    return next((name for name in names if hold.name == _hold_name(name, hold.device)), "")


def _hold_name(gang: str, device: AllocatedDevice | None) -> str:
    return hold_name(f"gang {gang}", device)


def _key(gang: str) -> str:
    """Namespace and label, as holds have it: without the group of a LeaderWorkerSet."""
    return "/".join(gang.split("/")[:2])


def _by_age(victim: Victim, now: datetime) -> Victim:
    """Who has run for long goes on for long, as far as anybody can tell; about as long counts as equal."""
    age = int(_age_s(victim, now)).bit_length()
    return replace(victim, pod=replace(victim.pod, priority=age), lost_nano_usd=0)


def _age_s(victim: Victim, now: datetime) -> float:
    """0 for one that is about to go, too."""
    run = run_of(victim.pod.raw)
    since = run.started or run.bound
    return 0.0 if since is None or run.is_about_to_go(now) else max(0.0, (now - since).total_seconds())


def _fits(member: Member, site: Site) -> bool:
    return not in_tree_refusals(member, site) and isinstance(fit(member.request, site.view), Fit)
