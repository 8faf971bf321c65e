"""The leader's loop for preemptions: who leaves for a pod, or a gang, that has waited and fits nowhere.

kube-scheduler's own preemption never asks about a pod that only a card is missing for, so the leader plans.
The way of a pod, one step a turn:
  1. a set of victims is planned; explain shows it, and in a dry run that is all,
  2. the devices are held for the pod, beside those that still use them,
  3. victims are told, and given the time that they ask for to save their work,
  4. they are evicted by the Eviction API; the pod is bound where its place is held.
From the second step on the plan is in the GPUHolds: whoever leads next finds a pod with a promise whose
devices others still use, and evicts those.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from gpuloom.codec.pod import bound_node, is_terminal, pod_ref, pod_request
from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.kube.objects import JsonObject, metadata_of, resource_version_of, uid_of
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.ledger import Claim
from gpuloom.placement.constraints.objects import SchedulablePod
from gpuloom.placement.fit import Fit, fit
from gpuloom.placement.gangs.preemption import (
    DisruptionBudget,
    Field,
    PreemptionPlan,
    Victim,
    plan_preemption,
    units_of,
)
from gpuloom.placement.gangs.sites import Member, Steps, in_tree_refusals
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.guard import Board
from services.scheduler_extender.core.gangs.index import GANG, PLANNED, WAITING
from services.scheduler_extender.core.gangs.losses import Run, loss_text, lost_nano_usd, run_of
from services.scheduler_extender.core.gangs.membership import gang_of
from services.scheduler_extender.core.gangs.phases import is_covered, is_gated, priority_of
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs.filtering import was_tried
from services.scheduler_extender.planning.gangs import REASON as GANG_REASON
from services.scheduler_extender.planning.gangs import SLACK_S, GangLoop
from services.scheduler_extender.planning.promises import Promises
from services.scheduler_extender.planning.sites import A_STEP, Grounds, Observed, SiteBook
from services.scheduler_extender.planning.slices import in_slices
from services.scheduler_extender.ports import Announcer, Evictions

REASON = "kept for a pod that others leave for"
HELD_S = 900
PATIENCE_S = 5.0
"""A pod is refused for so long before anybody leaves for it: room may come by itself."""
COOLDOWN_S = 120.0
"""So long nobody else leaves for the same pod: what leaves needs its time, and flapping helps nobody."""

MOST_NAMED = 8
MOST_REMEMBERED = 50_000

_log = logging.getLogger(__name__)


class Mode(StrEnum):
    ON = "on"
    DRY_RUN = "dry-run"
    OFF = "off"


class DisruptionBudgets(Protocol):
    async def list(self) -> Sequence[DisruptionBudget]:
        """All of the cluster, as they are now. Raise a GpuloomError: then nobody is evicted."""


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

    @property
    def order(self) -> tuple[int, str, str]:
        created = min(str(metadata_of(pod).get("creationTimestamp") or "~") for pod in self.pods)
        return -self.priority, created, self.name


@dataclass(frozen=True, slots=True)
class _Tenant:
    """A pod that has GPUs; `milli` of them, 0 where that is not known."""

    pod: SchedulablePod
    node_name: str
    run: Run
    leaving: bool
    milli: int
    gang: str


@dataclass(slots=True)
class _Memory:
    seen_s: dict[str, float] = field(default_factory=dict)
    cooled_s: dict[str, float] = field(default_factory=dict)
    noted: set[str] = field(default_factory=set)
    tenants: OrderedDict[str, tuple[str, _Tenant | None]] = field(default_factory=OrderedDict)
    victims: dict[str, frozenset[str]] = field(default_factory=dict)
    """By the preemptor's UID, those that its plan names beside the users of its devices."""


class PreemptionLoop:
    def __init__(self, parts: PreemptionParts, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._memory = _Memory()

    async def turn(self) -> None:
        if self._parts.mode is Mode.OFF:
            return
        await self._give_back_orphans()
        await self._go_on()
        wishes = sorted(self._wishes(), key=lambda wish: wish.order)
        present = {wish.name for wish in wishes}
        now_s, memory = self._clock.monotonic(), self._memory
        memory.seen_s = {name: memory.seen_s.get(name, now_s) for name in present}
        for uid in memory.noted - {uid_of(pod) for wish in wishes for pod in wish.pods}:
            self._parts.board.notes.pop(uid, None)
        for wish in wishes:
            waited = now_s - memory.seen_s[wish.name] >= PATIENCE_S
            if waited and now_s >= memory.cooled_s.get(wish.name, 0.0):
                memory.cooled_s[wish.name] = now_s + COOLDOWN_S / 4
                if await self._plan(wish):
                    return

    def _wishes(self) -> Iterable[_Wish]:
        for pod in self._parts.pods.by_index(PLANNED, WAITING):
            if self._wants_room(pod):
                yield _Wish(str(pod_ref(pod)), [pod], priority_of(pod))
        for gang, _ in self._parts.gangs.unplaced.values():
            if not gang.has_begun and all(_may_preempt(pod) for pod in gang.waiting):
                timeout_s = gang.membership.timeout_s
                yield _Wish(f"gang {gang.name}", gang.waiting, gang.priority, True, timeout_s)

    def _wants_room(self, pod: JsonObject) -> bool:
        waits = not bound_node(pod) and not is_terminal(pod) and not metadata_of(pod).get("deletionTimestamp")
        if not waits or gang_of(pod) or is_gated(pod) or not was_tried(pod) or not _may_preempt(pod):
            return False
        uid = uid_of(pod)
        return not self._parts.ledger.has_attempt(uid) and not self._parts.promises.of(uid)

    async def _plan(self, wish: _Wish) -> bool:
        """Whether something was done for it."""
        members = [member for pod in wish.pods if (member := self._member(pod)) is not None]
        if len(members) != len(wish.pods):
            return False
        grounds = await in_slices(self._parts.book.grounds(wish.priority), self._clock)
        if len(members) == 1 and _fits_somewhere(members[0], grounds):
            return False
        try:
            budgets = await self._parts.budgets.list()
        except GpuloomError as error:
            _log.warning("disruption budgets not read, so nobody is evicted", extra={"reason": str(error)})
            return False
        victims, protected = await in_slices(self.candidates(grounds, wish.priority), self._clock)
        units = units_of(victims, wish.priority, protected)
        parts = self._parts
        ground = Field(
            grounds.sites, units, lambda name, uids: parts.book.without(grounds, name, uids), budgets
        )
        plan = await in_slices(plan_preemption(members, ground), self._clock)
        if plan is None or not plan.units:
            self._note(wish, "No eviction of pods of lower priority would make room for it.")
            return False
        return await self._begin(wish, plan)

    async def _begin(self, wish: _Wish, plan: PreemptionPlan) -> bool:
        text = plan_text(plan)
        dry = self._parts.mode is Mode.DRY_RUN
        self._note(wish, f"Preemption plan{' (dry run: nobody is evicted)' if dry else ''}: {text}.")
        if dry:
            return False
        self._memory.cooled_s[wish.name] = self._clock.monotonic() + COOLDOWN_S
        refs = {uid_of(pod): pod_ref(pod) for pod in wish.pods}
        reason, ttl_s = (GANG_REASON, wish.timeout_s + SLACK_S) if wish.gang else (REASON, HELD_S)
        refused = await self._parts.promises.make(plan.seats, refs, reason, ttl_s, allow_used=True)
        if refused:
            _log.info("preemption not begun", extra={"pod": wish.name, "reason": refused})
            return False
        first = wish.pods[0]
        self._memory.victims[uid_of(first)] = frozenset(victim.uid for victim in plan.victims)
        self._parts.announcer.tell(first, "Preempting", f"others leave for {wish.name}: {text}")
        for victim in plan.victims:
            lost = loss_text(victim.lost_s, victim.lost_nano_usd)
            message = f"it leaves for {wish.name} of priority {wish.priority}; lost: {lost}"
            self._parts.announcer.tell(victim.pod.raw, "Preempted", message, warning=True)
        _log.warning("preemption begun", extra={"pod": wish.name, "plan": text})
        return True

    async def _go_on(self) -> None:
        """Everybody who uses what is promised to somebody of higher priority leaves."""
        plans: dict[str, tuple[str, frozenset[str]]] = {}
        for uid in {hold.owner.uid for hold in self._parts.promises.all() if hold.owner.uid}:
            pod = self._parts.pods.by_uid(uid)
            if pod is None or bound_node(pod) or not self._is_whole(uid, pod):
                continue
            leaving = self._users(uid, pod)
            for victim in leaving:
                await self._ask_to_leave(victim)
            if leaving:
                node_name = self._parts.promises.of(uid)[0].node_name
                plans[uid] = node_name, frozenset(uid_of(victim) for victim in leaving)
        self._parts.board.plans = plans

    def _is_whole(self, uid: str, pod: JsonObject) -> bool:
        """Whether all is held that the pod, and its gang, needs: a crash may have come between."""
        standing = self._parts.board.gangs.get(uid)
        if gang_of(pod) and (standing is None or not standing.admitted):
            return False
        try:
            request = pod_request(pod)
        except InvalidRequestError:
            return False
        return request is not None and is_covered(request, self._parts.promises.of(uid))

    def _users(self, uid: str, pod: JsonObject) -> list[JsonObject]:
        """Pods of lower priority on what is held for this one, with their gangs."""
        held = self._parts.promises.of(uid)
        uuids = {hold.device.device.gpu_uuid for hold in held if hold.device is not None}
        everything = any(hold.device is None for hold in held)
        claims = self._parts.ledger.claims(held[0].node_name, uid)
        using = {claim.pod.uid for claim in claims if everything or _uses(claim, uuids)}
        using |= self._memory.victims.get(uid, frozenset())
        found = [other for each in sorted(using) if (other := self._parts.pods.by_uid(each)) is not None]
        below = [other for other in found if self._may_leave(other, priority_of(pod))]
        gangs = {gang_of(other) for other in below} - {""}
        mates = [other for other in self._parts.pods.by_index(PLANNED, GANG) if gang_of(other) in gangs]
        together = {uid_of(other): other for other in [*below, *mates]}
        if any(bound_node(mate) and not self._may_leave(mate, priority_of(pod)) for mate in mates):
            together = {key: other for key, other in together.items() if gang_of(other) not in gangs}
        return [
            other for _, other in sorted(together.items()) if bound_node(other) and not is_terminal(other)
        ]

    def _may_leave(self, pod: JsonObject, priority: int) -> bool:
        return priority_of(pod) < priority and not run_of(pod).protected

    async def _ask_to_leave(self, victim: JsonObject) -> None:
        if metadata_of(victim).get("deletionTimestamp"):
            return
        run, now, ref = run_of(victim), self._clock.now(), pod_ref(victim)
        try:
            if not run.may_go(now):
                if run.told is None:
                    await self._parts.evictions.request_checkpoint(ref, now)
                return
            refused = await self._parts.evictions.evict(ref)
        except GpuloomError as error:
            refused = str(error)
        if refused:
            _log.warning("victim not evicted yet", extra={"pod": str(ref), "reason": refused})
        else:
            self._parts.evicted()

    async def _give_back_orphans(self) -> None:
        """What was held for pods that are gone. Of one that is bound `holds/holding.py` ends it."""
        gone = [
            hold.name
            for hold in self._parts.promises.all()
            if hold.reason == REASON and self._parts.pods.by_uid(hold.owner.uid or "") is None
        ]
        await self._parts.promises.give_back(gone)

    def candidates(self, grounds: Grounds, priority: int) -> Steps[tuple[list[Victim], frozenset[str]]]:
        """Everybody below this priority, or in a gang, who has GPUs; and who of them may not be evicted."""
        victims: list[Victim] = []
        protected: set[str] = set()
        now = self._clock.now()
        for count, raw in enumerate(self._parts.pods.objects(), 1):
            if count % A_STEP == 0:
                yield
            if priority_of(raw) >= priority and not gang_of(raw):
                continue
            tenant = self._tenant(raw)
            site = None if tenant is None else grounds.sites.get(tenant.node_name)
            if tenant is None or site is None:
                continue
            run = tenant.run
            if run.protected or tenant.leaving or run.is_young(now, self._parts.min_run_s):
                protected.add(tenant.pod.uid)
            lost_s = run.lost_s(now)
            share = min(1.0, tenant.milli / max(1, MILLI_PER_GPU * len(site.view.gpus)))
            lost = lost_nano_usd(lost_s, share, site.node.labels) if lost_s else 0
            victims.append(Victim(tenant.pod, tenant.node_name, lost_s, lost, tenant.gang))
        return victims, frozenset(protected)

    def _tenant(self, raw: JsonObject) -> _Tenant | None:
        """None for a pod that has no GPUs now. One that did not change is read once."""
        uid, version = uid_of(raw), resource_version_of(raw)
        known = self._memory.tenants.get(uid)
        if known is not None and known[0] == version:
            return known[1]
        node_name, observed, read = bound_node(raw), self._parts.ledger.pod(uid), self._parts.book.pod(raw)
        tenant: _Tenant | None = None
        if node_name and read is not None and observed is not None and not is_terminal(raw):
            given = observed.allocation.devices if observed.allocation is not None else ()
            leaving = bool(metadata_of(raw).get("deletionTimestamp"))
            milli = sum(item.milli for item in given)
            tenant = _Tenant(read, node_name, run_of(raw), leaving, milli, gang_of(raw))
        self._memory.tenants[uid] = version, tenant
        self._memory.tenants.move_to_end(uid)
        if len(self._memory.tenants) > MOST_REMEMBERED:
            self._memory.tenants.popitem(last=False)
        return tenant

    def _member(self, pod: JsonObject) -> Member | None:
        read = self._parts.book.pod(pod)
        try:
            request = pod_request(pod)
        except InvalidRequestError:
            return None
        return None if read is None or request is None else Member(read, request)

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


def _fits_somewhere(member: Member, grounds: Grounds) -> bool:
    return any(
        not in_tree_refusals(member, site) and isinstance(fit(member.request, site.view), Fit)
        for site in grounds.sites.values()
    )


def _may_preempt(pod: JsonObject) -> bool:
    spec = pod.get("spec")
    return isinstance(spec, dict) and spec.get("preemptionPolicy") != "Never"


def _uses(claim: Claim, uuids: set[str]) -> bool:
    return any(item.device.gpu_uuid in uuids for item in claim.devices or ())
