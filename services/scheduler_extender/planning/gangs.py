"""The leader's loop for gangs: places for all pods of a gang at once, one gang after the other.

A turn looks at every gang, says on the board how far it is, and takes one step for each that needs one:
  - one that has all its pods is planned, and its places are made durable; only then may a pod of it be bound,
  - one with a place that kube-scheduler did not offer twice, or whose GPU broke, gets that place anew,
  - one whose time is over leaves whole: its bound pods are evicted, then its places are given back.
What is known of a gang is derived from pods and GPUHolds at every turn. The deadline is in the holds: they
expire `SLACK_S` after it. So a new leader goes on where the one before ended. Until its first turn no pod of
a gang is bound.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from gpuloom.codec.pod import bound_node, is_terminal, pod_ref, pod_request
from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.model.planning import GangReport
from gpuloom.placement.gangs.gang import DomainWish, GangPlan, GangRefusal, plan_gang
from gpuloom.placement.gangs.sites import Judge, Member
from gpuloom.placement.gangs.turns import Turns, Waiting
from gpuloom.placement.occupancy.nominations import Asker
from gpuloom.placement.potential import Prices, neutral_prices
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.guard import NO_RESERVATION, Board, Standing
from services.scheduler_extender.core.gangs.membership import gang_of
from services.scheduler_extender.core.gangs.phases import (
    Gang,
    Phase,
)
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.planning.promises import Promises
from services.scheduler_extender.planning.roll import SLACK_S, Roll, RollParts
from services.scheduler_extender.planning.sites import Grounds, Observed, SiteBook
from services.scheduler_extender.planning.slices import in_slices
from services.scheduler_extender.ports import Announcer, Evictions, GangSizes

REASON = "reserved for a gang"
MOST_MISSES = 2
AVOIDED_S = 300.0
JUDGED_S = 60.0
MOST_TRIED, TRIED_AGAIN_S = 8, 10.0
"""Of the gangs that wait the first few are planned at every turn, the others after so long again."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 300.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GangParts:
    """What the loop works on. `wake` is called with a node's name when something was promised there."""

    pods: Observed
    ledger: Ledger
    book: SiteBook
    promises: Promises
    board: Board
    evictions: Evictions
    announcer: Announcer
    sizes: GangSizes
    wake: Callable[[str], None]
    judge: Judge
    prices: Callable[[], Prices] = neutral_prices


class GangLoop:
    def __init__(self, parts: GangParts, clock: Clock, turns: Turns | None = None) -> None:
        self._parts = parts
        self._clock = clock
        self._turns = turns or Turns()
        self.roll = Roll(
            RollParts(parts.pods, parts.ledger, parts.promises, parts.board, parts.announcer, parts.sizes),
            clock,
        )
        self.unplaced: dict[str, tuple[Gang, str]] = {}
        """Gangs that wait for room, with the reason: preemption looks here."""

    @property
    def reports(self) -> tuple[GangReport, ...]:
        return self.roll.reports

    async def turn(self) -> None:
        await self.roll.learn()
        await self._give_back_orphans()
        gangs, phases = await in_slices(self.roll.look({}), self._clock)
        for name in sorted(name for name, phase in phases.items() if phase is Phase.OVERDUE):
            await self._end(gangs[name])
        for name, phase in phases.items():
            if phase is Phase.INCOMPLETE:
                await self._parts.promises.drop(self._unneeded(gangs[name]))
            elif phase in (Phase.WAITING, Phase.RESERVED):
                await self._give_back_useless(gangs[name])
        waiting = [gang for gang in gangs.values() if self.roll.phase(gang) is Phase.WAITING]
        refused = await self._place(waiting)
        await in_slices(self.roll.look(refused), self._clock)

    async def _give_back_orphans(self) -> None:
        """Promises for gangs to pods that are gone, or are in no gang any more."""
        orphans = [
            hold.name
            for hold in self._parts.promises.all()
            if hold.reason == REASON and not _is_alive(self._parts.pods.by_uid(hold.owner.uid or ""))
        ]
        if orphans:
            await self._parts.promises.give_back(orphans)

    def _unneeded(self, gang: Gang) -> list[str]:
        """What an incomplete gang has reserved, unless pods of it run already: then the rest must stay."""
        return [] if gang.has_begun else [uid_of(pod) for pod in gang.waiting]

    async def _end(self, gang: Gang) -> None:
        """Evict what is bound, then give the places back. Nothing of it can be bound meanwhile.

        Where enough is bound that stays, and only those too many lose their places.
        """
        why = f"gang {gang.name} was not bound whole in time; all of it leaves"
        # A Binding whose outcome is not known may still be applied: then its pod has to leave, too.
        left = bool(gang.in_flight)
        for pod in () if gang.is_whole else gang.placed:
            self._parts.announcer.tell(pod, "GangEvicted", why, warning=True)
            try:
                refused = await self._parts.evictions.evict(pod_ref(pod))
            except GpuloomError as error:
                refused = str(error)
            if refused:
                left = True
                _log.warning(
                    "pod of a gang not evicted yet", extra={"pod": str(pod_ref(pod)), "reason": refused}
                )
        if left:
            return
        await self._parts.promises.drop([uid_of(pod) for pod in [*gang.alive, *gang.leaving]])
        memory = self.roll.memory[gang.name]
        memory.deadline = None
        memory.pauses += 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(memory.pauses - 1, 10))
        memory.paused_until_s = self._clock.monotonic() + pause_s
        if not gang.is_whole:
            gang.placed.clear()
        _log.warning("gang ended", extra={"gang": gang.name, "pause_s": pause_s})

    async def _give_back_useless(self, gang: Gang) -> None:
        """Places whose GPU broke, and those that kube-scheduler, who knows more, did not offer twice."""
        board, memory = self._parts.board, self.roll.memory[gang.name]
        missed = [uid_of(pod) for pod in gang.waiting if board.misses[uid_of(pod)] >= MOST_MISSES]
        useless = {*missed, *(uid_of(pod) for pod in gang.waiting if self.roll.is_broken(pod))}
        if not useless:
            return
        for uid in missed:
            until_s = self._clock.monotonic() + AVOIDED_S
            memory.avoided |= {(uid, hold.node_name): until_s for hold in self._parts.promises.of(uid)}
            board.misses.pop(uid, None)
        # With pods bound already only these move; else the whole gang is planned anew.
        moving = sorted(useless) if gang.has_begun else [uid_of(pod) for pod in gang.waiting]
        for uid in moving:
            board.gangs[uid] = Standing(gang.name, admitted=False, reason="it is planned anew")
        await self._parts.promises.drop(moving)

    async def _place(self, waiting: Sequence[Gang]) -> dict[str, str]:
        """Why each did not get its places. Those that were tried are `unplaced`."""
        refused: dict[str, str] = {}
        self.unplaced = {}
        now_s = self._clock.monotonic()
        ready = [gang for gang in waiting if self.roll.memory[gang.name].paused_until_s <= now_s]
        by_name = {gang.name: gang for gang in waiting}
        refused |= {
            gang.name: "its time was over; it is tried again later" for gang in waiting if gang not in ready
        }
        entries = [Waiting(gang.name, gang.priority, gang.created) for gang in ready]
        tried: list[Waiting] = []
        for entry in self._turns.in_order(entries, lambda name: self.roll.memory[name].fits_ever):
            memory = self.roll.memory[entry.name]
            reason = memory.refused
            if len(tried) < MOST_TRIED or not reason or now_s >= memory.tried_again_s:
                reason = memory.refused = await self._place_one(by_name[entry.name])
                memory.tried_again_s = now_s + TRIED_AGAIN_S
            if reason:
                refused[entry.name] = reason
                self.unplaced[entry.name] = by_name[entry.name], reason
                await self._look_further(entry, by_name[entry.name])
                tried.append(entry)
            else:
                self._turns.placed(entry, tried)
        behind = [entry for entry in entries if entry.name in by_name and entry.name not in refused]
        for entry in behind:
            if self.roll.phase(by_name[entry.name]) is Phase.WAITING:
                refused[entry.name] = "a larger gang before it has waited long enough and comes first"
        return refused

    async def _place_one(self, gang: Gang) -> str:
        """Empty if all its pods have places now."""
        unpromised = [pod for pod in gang.waiting if not self.roll.is_promised(uid_of(pod), pod)]
        if not gang.has_begun:
            unpromised = gang.waiting
        if not await self._parts.promises.drop([uid_of(pod) for pod in unpromised]):
            return "places of an earlier plan are being given back"
        members = [self._member(gang, pod) for pod in unpromised]
        unreadable = [why for why in members if isinstance(why, str)]
        if unreadable:
            return unreadable[0]
        asker = self._parts.book.asker(unpromised, gang.priority)
        grounds = await in_slices(self._parts.book.grounds(asker), self._clock)
        outcome = await self._plan(gang, [m for m in members if isinstance(m, Member)], grounds)
        if isinstance(outcome, GangRefusal):
            return outcome.reason
        return await self._reserve(gang, unpromised, outcome, asker)

    async def _plan(self, gang: Gang, members: list[Member], grounds: Grounds) -> GangPlan | GangRefusal:
        """In what is reserved for it, if it fits there; else anywhere, unless it insists."""
        wish, insists = self._wish(gang, grounds), grounds.asker.insists
        outcome: GangPlan | GangRefusal = GangRefusal(NO_RESERVATION, len(members))
        everywhere = [] if insists else list(grounds.sites.values())
        for sites in (self._parts.book.within_reservations(grounds), everywhere):
            if sites:
                work = plan_gang(members, sites, wish, self._parts.judge, self._parts.prices())
                outcome = await in_slices(work, self._clock)
            if isinstance(outcome, GangPlan):
                break
        return outcome

    def _wish(self, gang: Gang, grounds: Grounds) -> DomainWish | None:
        wish = gang.membership.wish
        if wish is None or not wish.required:
            return wish
        nodes = [bound_node(pod) or "" for pod in gang.placed]
        nodes += [hold.node_name for hold in self.roll.holds(gang)]
        values = {grounds.sites[name].node.labels.get(wish.key) for name in nodes if name in grounds.sites}
        return replace(wish, value=min(value for value in values if value)) if any(values) else wish

    def _member(self, gang: Gang, pod: JsonObject) -> Member | str:
        """Why it can't be placed, if so."""
        try:
            request = pod_request(pod)
        except InvalidRequestError as error:
            return str(error)
        read = self._parts.book.pod(pod)
        if request is None or read is None:
            return f"its pod {pod_ref(pod)} asks for no GPU" if read is not None else "a pod can't be read"
        now_s, avoided = self._clock.monotonic(), self.roll.memory[gang.name].avoided
        nodes = {node for (uid, node), until_s in avoided.items() if uid == read.uid and until_s > now_s}
        return Member(read, request, frozenset(nodes))

    async def _reserve(self, gang: Gang, pods: Sequence[JsonObject], plan: GangPlan, asker: Asker) -> str:
        memory = self.roll.memory[gang.name]
        deadline = memory.deadline or self._clock.now() + timedelta(seconds=gang.membership.timeout_s)
        ttl_s = int((deadline - self._clock.now()).total_seconds()) + SLACK_S
        refs = {uid_of(pod): pod_ref(pod) for pod in pods}
        refused = await self._parts.promises.make(
            plan.seats, refs, REASON, max(ttl_s, SLACK_S), beside=self._parts.book.beside(asker)
        )
        if refused:
            return refused
        memory.deadline = deadline
        nodes = sorted({seat.node_name for seat in plan.seats})
        _log.info("gang reserved", extra={"gang": gang.name, "nodes": nodes, "domain": plan.domain})
        for pod in pods:
            self._parts.announcer.tell(
                pod, "GangReserved", f"gang {gang.name}: all its pods have their places"
            )
        self._parts.wake(nodes[0])
        return ""

    async def _look_further(self, entry: Waiting, gang: Gang) -> None:
        """Whether it would fit if nobody else were there; asked only of one that holds others back."""
        now_s, memory = self._clock.monotonic(), self.roll.memory[gang.name]
        if not self._turns.holds_back(entry.name) or now_s - memory.judged_s < JUDGED_S:
            return
        memory.judged_s = now_s
        asker = self._parts.book.asker(gang.waiting, gang.priority)
        grounds = await in_slices(self._parts.book.grounds(asker), self._clock)
        empty = await in_slices(self._parts.book.emptied(grounds), self._clock)
        members = [m for pod in gang.waiting if isinstance(m := self._member(gang, pod), Member)]
        memory.fits_ever = isinstance(await self._plan(gang, members, empty), GangPlan)


def _is_alive(pod: JsonObject | None) -> bool:
    """Whether it is in a gang, and neither over nor leaving."""
    if pod is None or is_terminal(pod) or metadata_of(pod).get("deletionTimestamp"):
        return False
    return bool(gang_of(pod))
