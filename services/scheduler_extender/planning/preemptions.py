"""The leader's loop for preemptions: who leaves for a pod, or a gang, that has waited and fits nowhere.

kube-scheduler's own preemption never asks about a pod that only a card is missing for, so the leader plans.
The way of a pod, one step a turn:
  1. a set of victims is planned; explain shows it, and in a dry run that is all,
  2. the devices are held for the pod, beside those that still use them,
  3. victims are told, and given the time that they ask for to save their work,
  4. they are evicted by the Eviction API; the pod is bound where its place is held.
From the second step on the plan is in the GPUHolds, and `leaving.py` goes on with it, whoever leads.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpuloom.codec.pod import bound_node, is_terminal, pod_ref
from gpuloom.errors import GpuloomError
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.placement.fit import Fit, fit
from gpuloom.placement.gangs.gang import DomainWish
from gpuloom.placement.gangs.preemption import plan_preemption
from gpuloom.placement.gangs.sites import Member, Site, in_tree_refusals, neighbours_of
from gpuloom.placement.gangs.victims import Field, PreemptionPlan, units_of
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.guard import Board
from services.scheduler_extender.core.gangs.index import PLANNED, WAITING
from services.scheduler_extender.core.gangs.losses import loss_text, run_of
from services.scheduler_extender.core.gangs.membership import gang_of
from services.scheduler_extender.core.gangs.phases import is_gated, priority_of
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs.filtering import was_tried
from services.scheduler_extender.planning.gangs import AVOIDED_S, MOST_MISSES, GangLoop
from services.scheduler_extender.planning.gangs import REASON as GANG_REASON
from services.scheduler_extender.planning.leaving import Leaving, LeavingParts, member_of
from services.scheduler_extender.planning.promises import Promises
from services.scheduler_extender.planning.roll import SLACK_S
from services.scheduler_extender.planning.sites import Grounds, Observed, SiteBook
from services.scheduler_extender.planning.slices import in_slices
from services.scheduler_extender.planning.tenants import Candidates, Tenants
from services.scheduler_extender.ports import Announcer, DisruptionBudgets, Evictions

REASON = "kept for a pod that others leave for"
HELD_S = 900
PATIENCE_S = 5.0
"""A pod is refused for so long before anybody leaves for it: room may come by itself."""
COOLDOWN_S = 120.0
"""So long nobody else leaves for the same pod: what leaves needs its time, and flapping helps nobody."""

MOST_TRIED = 4
"""So many are planned for in one turn: gangs and reservations wait meanwhile."""
MOST_NAMED = 8

_log = logging.getLogger(__name__)


class Mode(StrEnum):
    ON = "on"
    DRY_RUN = "dry-run"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class PreemptionParts:
    pods: Observed
    ledger: Ledger
    book: SiteBook
    promises: Promises
    board: Board
    evictions: Evictions
    announcer: Announcer
    budgets: DisruptionBudgets
    gangs: GangLoop
    mode: Mode = Mode.ON
    min_run_s: float = 60.0
    evicted: Callable[[], None] = lambda: None
    """Called for every pod that was asked to leave."""


@dataclass(slots=True)
class _Wish:
    """One who wants room: a pod, or all waiting pods of a gang."""

    name: str
    pods: Sequence[JsonObject]
    priority: int
    gang: bool = False
    timeout_s: int = 0
    domain: DomainWish | None = None

    @property
    def order(self) -> tuple[int, str, str]:
        created = min(str(metadata_of(pod).get("creationTimestamp") or "~") for pod in self.pods)
        return -self.priority, created, self.name


@dataclass(slots=True)
class _Memory:
    seen_s: dict[str, float] = field(default_factory=dict)
    cooled_s: dict[str, float] = field(default_factory=dict)
    noted: set[str] = field(default_factory=set)
    avoided: dict[tuple[str, str], float] = field(default_factory=dict)
    """When each pod and node may be planned together again."""


class PreemptionLoop:
    def __init__(self, parts: PreemptionParts, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._memory = _Memory()
        self.tenants = Tenants(parts.pods, parts.ledger, parts.book, clock, parts.min_run_s)
        self._leaving = Leaving(
            LeavingParts(
                parts.pods,
                parts.book,
                parts.promises,
                parts.board,
                parts.evictions,
                parts.budgets,
                self.tenants,
                parts.evicted,
            ),
            clock,
        )

    async def turn(self) -> None:
        if self._parts.mode is Mode.OFF:
            return
        await self._give_back_orphans()
        if self._parts.mode is Mode.ON:
            await self._leaving.go_on()
            await self._give_back_useless()
        wishes = sorted(self._wishes(), key=lambda wish: wish.order)
        present = {wish.name for wish in wishes}
        now_s, memory = self._clock.monotonic(), self._memory
        memory.seen_s = {name: memory.seen_s.get(name, now_s) for name in present}
        memory.cooled_s = {name: until_s for name, until_s in memory.cooled_s.items() if until_s > now_s}
        memory.avoided = {key: until_s for key, until_s in memory.avoided.items() if until_s > now_s}
        over = memory.noted - {uid_of(pod) for wish in wishes for pod in wish.pods}
        for uid in over:
            self._parts.board.notes.pop(uid, None)
        memory.noted -= over
        due = [
            wish
            for wish in wishes
            if now_s - memory.seen_s[wish.name] >= PATIENCE_S and wish.name not in memory.cooled_s
        ]
        for wish in due[:MOST_TRIED]:
            memory.cooled_s[wish.name] = now_s + COOLDOWN_S / 4
            if await self._plan(wish):
                return

    def _wishes(self) -> Iterable[_Wish]:
        for pod in self._parts.pods.by_index(PLANNED, WAITING):
            if self._wants_room(pod):
                yield _Wish(str(pod_ref(pod)), [pod], priority_of(pod))
        for gang, _ in self._parts.gangs.unplaced.values():
            if gang.has_begun or not all(_may_preempt(pod) for pod in gang.waiting):
                continue
            if not self._parts.book.asker(gang.waiting, gang.priority).insists:
                wish, timeout_s = gang.membership.wish, gang.membership.timeout_s
                yield _Wish(f"gang {gang.name}", gang.waiting, gang.priority, True, timeout_s, wish)

    def _wants_room(self, pod: JsonObject) -> bool:
        waits = not bound_node(pod) and not is_terminal(pod) and not metadata_of(pod).get("deletionTimestamp")
        if not waits or gang_of(pod) or is_gated(pod) or not was_tried(pod) or not _may_preempt(pod):
            return False
        uid = uid_of(pod)
        if self._parts.ledger.has_attempt(uid) or self._parts.promises.of(uid):
            return False
        # Who goes nowhere but to its reservation has no use for a place elsewhere.
        return not self._parts.book.asker([pod], priority_of(pod)).insists

    async def _plan(self, wish: _Wish) -> bool:
        """Whether something was done for it."""
        members = [member for pod in wish.pods if (member := self._member(pod)) is not None]
        if len(members) != len(wish.pods):
            return False
        asker = self._parts.book.asker(wish.pods, wish.priority)
        grounds = await in_slices(self._parts.book.grounds(asker), self._clock)
        found = await in_slices(self.tenants.candidates(grounds, wish.priority), self._clock)
        without, sites = self._soon(grounds, found)
        if len(members) == 1 and _fits_somewhere(members[0], sites):
            return False
        try:
            budgets = await self._parts.budgets.list()
        except GpuloomError as error:
            _log.warning("disruption budgets not read, so nobody is evicted", extra={"reason": str(error)})
            return False
        units = await in_slices(units_of(found.victims, wish.priority, found.protected), self._clock)
        plans: list[PreemptionPlan] = []
        for domain in domains(sites, wish.domain):
            plan = await in_slices(
                plan_preemption(members, Field(domain, units, without, budgets)), self._clock
            )
            plans += [plan] if plan is not None else []
        if not plans:
            self._note(wish, "No eviction of pods of lower priority would make room for it.")
            return False
        plan = min(plans, key=lambda each: each.cost)
        return await self._begin(wish, plan, members, grounds, found) if plan.units else False

    def _soon(
        self, grounds: Grounds, found: Candidates
    ) -> tuple[Callable[[str, frozenset[str]], Site | None], dict[str, Site]]:
        """The nodes as they are when those have gone who are about to: nobody has to leave for their room."""

        def without(name: str, uids: frozenset[str]) -> Site | None:
            return self._parts.book.without(grounds, name, uids | found.leaving.get(name, frozenset()))

        sites = dict(grounds.sites)
        for name in found.leaving:
            site = without(name, frozenset())
            if site is not None:
                sites[name] = site
        return without, sites

    async def _begin(
        self,
        wish: _Wish,
        plan: PreemptionPlan,
        members: Sequence[Member],
        grounds: Grounds,
        found: Candidates,
    ) -> bool:
        text = plan_text(plan)
        dry = self._parts.mode is Mode.DRY_RUN
        self._note(wish, f"Preemption plan{' (dry run: nobody is evicted)' if dry else ''}: {text}.")
        if dry:
            return False
        self._memory.cooled_s[wish.name] = self._clock.monotonic() + COOLDOWN_S
        refs = {uid_of(pod): pod_ref(pod) for pod in wish.pods}
        reason, lasts_s = (GANG_REASON, wish.timeout_s + SLACK_S) if wish.gang else (REASON, HELD_S)
        saving_s = max(run_of(victim.pod.raw).grace_s for victim in plan.victims)
        beside = self._parts.book.beside(grounds.asker)
        promises = self._parts.promises
        refused = await promises.make(
            plan.seats, refs, reason, lasts_s + saving_s, allow_used=True, beside=beside
        )
        if not refused and not self._is_enough(plan, members, grounds, found):
            # Others came while it was planned: they would have to leave, too.
            await promises.drop(refs)
            refused = "the place has changed since it was planned"
        if refused:
            _log.info("preemption not begun", extra={"pod": wish.name, "reason": refused})
            return False
        self._leaving.begin(plan)
        self._announce(wish, plan)
        _log.warning("preemption begun", extra={"pod": wish.name, "plan": text})
        return True

    def _is_enough(
        self, plan: PreemptionPlan, members: Sequence[Member], grounds: Grounds, found: Candidates
    ) -> bool:
        gone = frozenset(victim.uid for victim in plan.victims).union(*found.leaving.values())
        return all(self._leaving.is_enough(member, grounds, gone) for member in members)

    def _announce(self, wish: _Wish, plan: PreemptionPlan) -> None:
        self._parts.announcer.tell(
            wish.pods[0], "Preempting", f"others leave for {wish.name}: {plan_text(plan)}"
        )
        for victim in plan.victims:
            lost = loss_text(victim.lost_s, victim.lost_nano_usd)
            message = f"it leaves for {wish.name} of priority {wish.priority}; lost: {lost}"
            self._parts.announcer.tell(victim.pod.raw, "Preempted", message, warning=True)

    async def _give_back_useless(self) -> None:
        """Places whose GPU broke, and those that are not offered though nobody is in the way any more."""
        board, now_s = self._parts.board, self._clock.monotonic()
        owners = {hold.owner.uid: hold for hold in self._parts.promises.all() if hold.reason == REASON}
        for uid, hold in owners.items():
            if uid and self._is_broken(uid):
                await self._parts.promises.drop([uid])
            elif uid in board.plans:
                board.misses.pop(uid, None)
            elif uid and board.misses[uid] >= MOST_MISSES:
                board.misses.pop(uid)
                self._memory.avoided[uid, hold.node_name] = now_s + AVOIDED_S
                await self._parts.promises.drop([uid])

    def _is_broken(self, uid: str) -> bool:
        pod, promises = self._parts.pods.by_uid(uid), self._parts.promises
        member = None if pod is None else self._member(pod)
        return member is not None and bool(promises.broken(promises.of(uid), member.request.gpu.count))

    async def _give_back_orphans(self) -> None:
        """What was held for pods that are gone. Of one that is bound `holds/holding.py` ends it."""
        gone = [
            hold.name
            for hold in self._parts.promises.all()
            if hold.reason == REASON and self._parts.pods.by_uid(hold.owner.uid or "") is None
        ]
        await self._parts.promises.give_back(gone)

    def _member(self, pod: JsonObject) -> Member | None:
        member = member_of(pod, self._parts.book)
        avoid = frozenset(name for uid, name in self._memory.avoided if uid == uid_of(pod))
        return None if member is None else replace(member, avoid=avoid)

    def _note(self, wish: _Wish, text: str) -> None:
        for pod in wish.pods:
            self._memory.noted.add(uid_of(pod))
            self._parts.board.notes[uid_of(pod)] = text


def plan_text(plan: PreemptionPlan) -> str:
    nodes = ", ".join(sorted({seat.node_name for seat in plan.seats}))
    who = ", ".join(
        f"{victim.pod} (priority {victim.pod.priority}, {loss_text(victim.lost_s, victim.lost_nano_usd)})"
        for victim in plan.victims[:MOST_NAMED]
    )
    more = f" and {len(plan.victims) - MOST_NAMED} more" if len(plan.victims) > MOST_NAMED else ""
    return f"on {nodes}, by evicting {who}{more}"


def _fits_somewhere(member: Member, sites: Mapping[str, Site]) -> bool:
    fitting = [
        site
        for site in sites.values()
        if site.name not in member.avoid
        and not in_tree_refusals(member, site)
        and isinstance(fit(member.request, site.view), Fit)
    ]
    if not fitting:
        return False
    beside = neighbours_of(member.pod, list(sites.values()))
    return any(not beside.refusals(site.node) for site in fitting)


def domains(sites: Mapping[str, Site], wish: DomainWish | None) -> list[dict[str, Site]]:
    """Where all of a gang may be together."""
    if wish is None or not wish.required:
        return [dict(sites)]
    found: defaultdict[str, dict[str, Site]] = defaultdict(dict)
    for name, site in sites.items():
        if wish.key in site.node.labels:
            found[site.node.labels[wish.key]][name] = site
    return list(found.values())


def _may_preempt(pod: JsonObject) -> bool:
    spec = pod.get("spec")
    return isinstance(spec, dict) and spec.get("preemptionPolicy") != "Never"
