"""Who leaves for what is promised, step by step: told, given time to save its work, evicted.

The victims of a promise are those of its plan. A leader that finds a promise and does not know its plan makes
one for that very place: whoever is not needed any more stays. Works on promises alone, so it goes on where
another leader ended.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gpuloom.codec.pod import bound_node, is_terminal, pod_ref, pod_request
from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.placement.fit import Fit, fit
from gpuloom.placement.gangs.preemption import plan_preemption
from gpuloom.placement.gangs.sites import Member, Site, Steps
from gpuloom.placement.gangs.victims import Field, PreemptionPlan, units_of
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.guard import Board, only_held
from services.scheduler_extender.core.gangs.index import PLANNED, of_gang
from services.scheduler_extender.core.gangs.losses import run_of
from services.scheduler_extender.core.gangs.membership import gang_of
from services.scheduler_extender.core.gangs.phases import is_covered, priority_of
from services.scheduler_extender.planning.promises import Promises
from services.scheduler_extender.planning.sites import Grounds, Observed, SiteBook
from services.scheduler_extender.planning.slices import in_slices
from services.scheduler_extender.planning.tenants import Tenants
from services.scheduler_extender.ports import DisruptionBudgets, Evictions

TRIED_AGAIN_S = 10.0
"""So long after no plan was found for a promise none is looked for."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeavingParts:
    pods: Observed
    book: SiteBook
    promises: Promises
    board: Board
    evictions: Evictions
    budgets: DisruptionBudgets
    tenants: Tenants
    evicted: Callable[[], None] = lambda: None
    """Called for every pod that was asked to leave."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Of one promise, which is known by the UIDs of its holds: who leaves for it."""

    holds: frozenset[str]
    victims: frozenset[str]


class Leaving:
    def __init__(self, parts: LeavingParts, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._known: dict[str, _Known] = {}
        """By the UID of the pod that something is promised to."""
        self._tried_s: dict[str, float] = {}

    def begin(self, plan: PreemptionPlan) -> None:
        """Its places are promised: those whom it names leave for them."""
        for seat in plan.seats:
            here = [unit for unit in plan.units if any(v.node_name == seat.node_name for v in unit.victims)]
            victims = frozenset[str]().union(*(unit.uids for unit in here))
            self._known[seat.uid] = _Known(self._holds(seat.uid), victims)

    def is_enough(self, member: Member, grounds: Grounds, victims: frozenset[str]) -> bool:
        """Whether the pod has its promised place once these have left, as the ledger is now."""
        site = self._site(member.uid, replace(grounds, asker=replace(grounds.asker, uid=member.uid)), victims)
        return site is not None and isinstance(fit(member.request, site.view), Fit)

    async def go_on(self) -> None:
        plans: dict[str, tuple[str, frozenset[str]]] = {}
        owners = sorted({hold.owner.uid for hold in self._parts.promises.all() if hold.owner.uid})
        self._known = {uid: known for uid, known in self._known.items() if uid in owners}
        self._tried_s = {uid: at_s for uid, at_s in self._tried_s.items() if uid in owners}
        for uid, pod in await in_slices(self._short(owners), self._clock):
            victims = await self._victims(uid, pod)
            for victim in victims:
                await self._ask_to_leave(victim)
            held = self._parts.promises.of(uid)
            if victims and held:
                plans[uid] = held[0].node_name, frozenset(uid_of(victim) for victim in victims)
        self._parts.board.plans = plans

    def _short(self, owners: Sequence[str]) -> Steps[list[tuple[str, JsonObject]]]:
        """Pods that others have to leave for, or may have to. What is free once it is held stays free."""
        found: list[tuple[str, JsonObject]] = []
        for uid in owners:
            yield
            pod, known = self._parts.pods.by_uid(uid), self._known.get(uid)
            if pod is None or bound_node(pod) or not self._is_whole(uid, pod):
                continue
            holds = self._holds(uid)
            if known is None or known.holds != holds:
                member = member_of(pod, self._parts.book)
                if member is not None and self._fits(member, pod):
                    known = self._known[uid] = _Known(holds, frozenset())
            if known is None or known.holds != holds or known.victims:
                found.append((uid, pod))
        return found

    def _fits(self, member: Member, pod: JsonObject) -> bool:
        held = self._parts.promises.of(member.uid)
        asker = self._parts.book.asker([pod], priority_of(pod))
        view = self._parts.book.view(held[0].node_name, asker) if held else None
        return view is not None and isinstance(fit(member.request, only_held(view, held)), Fit)

    def _is_whole(self, uid: str, pod: JsonObject) -> bool:
        """Whether all is held that the pod, and its gang, needs: a crash may have come between."""
        standing = self._parts.board.gangs.get(uid)
        if gang_of(pod) and (standing is None or not standing.admitted):
            return False
        request = member_of(pod, self._parts.book)
        return request is not None and is_covered(request.request, self._parts.promises.of(uid))

    async def _victims(self, uid: str, pod: JsonObject) -> list[JsonObject]:
        known = self._known.get(uid)
        if known is None or known.holds != self._holds(uid):
            known = await self._plan(uid, pod)
        return [] if known is None else self._there(known.victims, priority_of(pod))

    def _there(self, uids: Iterable[str], priority: int) -> list[JsonObject]:
        """Of these the pods that are still on their nodes. A gang with one that must stay stays whole."""
        found = [pod for uid in uids if (pod := self._parts.pods.by_uid(uid)) is not None]
        gangs = {gang_of(pod) for pod in found} - {""}
        for name in gangs:
            found += self._parts.pods.by_index(PLANNED, of_gang(name))
        there = {uid_of(pod): pod for pod in found if bound_node(pod) and not is_terminal(pod)}
        stay = {uid for uid, pod in there.items() if priority_of(pod) >= priority or run_of(pod).protected}
        whole = {gang_of(there[uid]) for uid in stay} - {""}
        return [pod for uid, pod in sorted(there.items()) if uid not in stay and gang_of(pod) not in whole]

    async def _plan(self, uid: str, pod: JsonObject) -> _Known | None:
        """For a promise whose plan is not known, as that of another leader."""
        held, now_s = self._parts.promises.of(uid), self._clock.monotonic()
        if not held or now_s < self._tried_s.get(uid, 0.0):
            return None
        self._tried_s[uid] = now_s + TRIED_AGAIN_S
        member = member_of(pod, self._parts.book)
        victims = None if member is None else await self._found(member, pod, held[0].node_name)
        if victims is None:
            _log.info("no victims found for a promise", extra={"pod": str(pod_ref(pod))})
            return None
        self._known[uid] = _Known(self._holds(uid), victims)
        return self._known[uid]

    async def _found(self, member: Member, pod: JsonObject, node_name: str) -> frozenset[str] | None:
        priority = priority_of(pod)
        grounds = await in_slices(
            self._parts.book.grounds(self._parts.book.asker([pod], priority)), self._clock
        )
        found = await in_slices(self._parts.tenants.candidates(grounds, priority), self._clock)
        try:
            budgets = await self._parts.budgets.list()
        except GpuloomError:
            return None
        gone = found.leaving.get(node_name, frozenset())

        def without(name: str, uids: frozenset[str]) -> Site | None:
            if name != node_name:
                return self._parts.book.without(grounds, name, uids)
            return self._site(member.uid, grounds, uids | gone)

        now = without(node_name, frozenset())
        if now is None or isinstance(fit(member.request, now.view), Fit):
            return frozenset()
        units = await in_slices(units_of(found.victims, priority, found.protected), self._clock)
        plan = await in_slices(
            plan_preemption([member], Field({node_name: now}, units, without, budgets)), self._clock
        )
        return None if plan is None else frozenset(victim.uid for victim in plan.victims)

    def _site(self, uid: str, grounds: Grounds, gone: frozenset[str]) -> Site | None:
        """Its promised node with nothing but what is promised, without these pods."""
        held = self._parts.promises.of(uid)
        site = self._parts.book.without(grounds, held[0].node_name, gone) if held else None
        return None if site is None else replace(site, view=only_held(site.view, held))

    def _holds(self, uid: str) -> frozenset[str]:
        return frozenset(hold.uid for hold in self._parts.promises.of(uid))

    async def _ask_to_leave(self, victim: JsonObject) -> None:
        if metadata_of(victim).get("deletionTimestamp"):
            return
        run, now, ref = run_of(victim), self._clock.now(), pod_ref(victim)
        try:
            if not run.may_go(now):
                if not run.is_told(now):
                    await self._parts.evictions.request_checkpoint(ref, now)
                return
            refused = await self._parts.evictions.evict(ref)
        except GpuloomError as error:
            refused = str(error)
        if refused:
            _log.warning("victim not evicted yet", extra={"pod": str(ref), "reason": refused})
        else:
            self._parts.evicted()


def member_of(pod: JsonObject, book: SiteBook) -> Member | None:
    read = book.pod(pod)
    try:
        request = pod_request(pod)
    except InvalidRequestError:
        return None
    return None if read is None or request is None else Member(read, request)
