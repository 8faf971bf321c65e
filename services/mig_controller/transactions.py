"""Carries out changes: hold, write down, have pods leave, ask the agent, see it shown, release, strike out.

At every point the controller, the agent or the extender may die: what is written down is gone on with, and
what is not was never begun. It never decides what to change.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError, NotAllowedError, NotFoundError
from gpuloom.model.claims import HoldTarget
from gpuloom.model.layout import ChangeState
from gpuloom.model.ledger import Hold
from gpuloom.runtime.clock import Clock
from services.mig_controller.core.cards import Card
from services.mig_controller.core.intents import (
    Intent,
    Leaver,
    hold_names,
    is_published,
    outcome_text,
    still_there,
    stray_holds,
    targets_of,
)
from services.mig_controller.metrics import MigMetrics
from services.mig_controller.ports import Agents, Evictor, Holds, IntentStore, Reach

_log = logging.getLogger(__name__)

FAILPOINTS = (
    "mig-after-hold",
    "mig-after-intent",
    "mig-after-eviction",
    "mig-after-agent",
    "mig-before-release",
    "mig-after-release",
)

_UNDER_WAY = "a change of its layout is under way"
_AVOID_FIRST_S = 30.0
_AVOID_MOST_S = 600.0


@dataclass(frozen=True, slots=True)
class TransactionOptions:
    hold_ttl_s: int = 120
    timeout_s: float = 600.0
    """A change whose agent does not say what became of it is given up after this; the agent's own journal
    brings its GPU to an end."""
    refused_for_s: float = 60.0
    """Who was asked to leave may be seen by the node for longer than by discovery."""


@dataclass(slots=True)
class _Open:
    intent: Intent
    since_s: float
    renewed_s: float
    ended: ChangeState | None = None
    note: str = "the agent has not answered yet"
    asked: set[str] = field(default_factory=set)
    """UIDs of pods whose eviction was accepted in this term."""
    refused_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Avoided:
    until_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class TransactionParts:
    holds: Holds
    agents: Agents
    evictor: Evictor
    store: IntentStore
    clock: Clock
    metrics: MigMetrics
    reach: Reach


class Transactions:
    """For one term of leadership."""

    def __init__(self, parts: TransactionParts, options: TransactionOptions | None = None) -> None:
        self._parts = parts
        self._options = options or TransactionOptions()
        self._open: dict[str, _Open] = {}
        self._avoided: dict[str, _Avoided] = {}
        self._wait_s: dict[str, float] = {}
        """How long a card is left alone after its next failure."""
        self._others: tuple[Hold, ...] = ()
        self._writing = asyncio.Lock()
        self._unwritten = False
        """The last write failed, so what is written may be more than what is open."""

    async def take_over(self) -> None:
        """Know what was under way, and let go of what belongs to nothing. Raise UnavailableError."""
        now_s = self._parts.clock.monotonic()
        for intent in await self._parts.store.load():
            self._open[intent.id] = _Open(intent, now_s, now_s - self._options.hold_ttl_s)
        intents = tuple(entry.intent for entry in self._open.values())
        for name in stray_holds(await self._parts.holds.list_own(), intents):
            await self._parts.holds.release(name)

    @property
    def gpus(self) -> frozenset[str]:
        """Cards with a change under way, or that are left alone for a while after one that failed."""
        self._forget_avoided()
        return (
            frozenset(entry.intent.request.gpu_uuid for entry in self._open.values()) | self._avoided.keys()
        )

    async def others_holds(self) -> tuple[Hold, ...]:
        """As of now, or as they were when the extender last answered."""
        try:
            self._others = await self._parts.holds.list_others()
        except GpuloomError as error:
            _log.info("holds of others are not known now", extra={"reason": str(error)})
        return self._others

    @property
    def intents(self) -> tuple[Intent, ...]:
        return tuple(entry.intent for _, entry in sorted(self._open.items()))

    def note_of(self, gpu_uuid: str) -> str:
        """What is being done to this card, or why it is left alone; empty if nothing."""
        for entry in self._open.values():
            if entry.intent.request.gpu_uuid == gpu_uuid:
                return entry.note
        avoided = self._avoided.get(gpu_uuid)
        return "" if avoided is None else f"left alone for a while: {avoided.reason}"

    async def begin(self, intent: Intent, reason: str) -> bool:
        """Hold, then write down. False if somebody has it by now, or holds can't be taken."""
        taken: list[str] = []
        try:
            for name, target in zip(hold_names(intent), targets_of(intent), strict=True):
                # Also one whose outcome is not known may have been taken.
                taken.append(name)
                await self._take(intent, name, target, reason)
            await self._parts.reach("mig-after-hold")
            now_s = self._parts.clock.monotonic()
            self._open[intent.id] = _Open(intent, now_s, now_s)
            await self._write()
        except GpuloomError as error:
            self._open.pop(intent.id, None)
            await self._release(taken)
            self._avoid(intent.request.gpu_uuid, str(error))
            self._parts.metrics.count("not-begun")
            _log.info("a change was not begun", extra={**_fields(intent), "reason": str(error)})
            return False
        await self._parts.reach("mig-after-intent")
        _log.info("a change is begun", extra=_fields(intent))
        return True

    def why_avoided(self, gpu_uuid: str) -> str:
        avoided = self._avoided.get(gpu_uuid)
        return "" if avoided is None else avoided.reason

    def forgive(self, gpu_uuids: Iterable[str]) -> None:
        """Leave them alone no longer."""
        for uuid in gpu_uuids:
            self._avoided.pop(uuid, None)
            self._wait_s.pop(uuid, None)

    async def withdraw(self, intents: Iterable[Intent]) -> None:
        """Undo beginnings of which nothing but holds and the note came. Raise nothing: else it goes on."""
        for intent in intents:
            entry = self._open.get(intent.id)
            if entry is not None:
                entry.ended, entry.note = ChangeState.ROLLED_BACK, "withdrawn"
                await self._end(entry)

    async def settle(self, cards: Mapping[str, Card], known_nodes: Callable[[str], bool]) -> None:
        """Ask after every change; end those that have ended and are published."""
        if self._unwritten:
            await self._write_again()
        waiting = list(self._open.values())
        await asyncio.gather(*(self._settle(entry, cards, known_nodes) for entry in waiting))

    async def _settle(
        self, entry: _Open, cards: Mapping[str, Card], known_nodes: Callable[[str], bool]
    ) -> None:
        intent = entry.intent
        await self._renew(entry)
        card = cards.get(intent.request.gpu_uuid)
        expired = self._parts.clock.monotonic() - entry.since_s > self._options.timeout_s
        staying = still_there(intent, card)
        if staying and entry.ended is None:
            await self._have_leave(entry, staying)
            if expired and entry.ended is None:
                entry.ended, entry.note = ChangeState.ROLLED_BACK, f"given up: {entry.note}"
        elif entry.ended is None:
            await self._ask(entry, known_nodes)
        if entry.ended is ChangeState.DONE and not is_published(intent, card) and not expired:
            entry.note = "made; not shown by discovery yet"
            return
        if entry.ended is None and expired:
            entry.ended, entry.note = ChangeState.UNKNOWN, "the agent did not say what became of it"
        if entry.ended is not None:
            await self._end(entry)

    async def _have_leave(self, entry: _Open, staying: tuple[Leaver, ...]) -> None:
        """The agent is not asked before all of them are gone, so until then nothing has to be undone."""
        notes = []
        for one in staying:
            if one.pod.uid in entry.asked:
                notes.append(f"{one.pod} is leaving")
                continue
            try:
                refused = await self._parts.evictor.evict(one.pod, _why(entry.intent))
            except NotAllowedError as error:
                self._parts.metrics.count_eviction("kept")
                entry.ended, entry.note = ChangeState.ROLLED_BACK, f"{one.pod} stays: {error}"
                return
            except GpuloomError as error:
                refused = str(error)
            if not refused:
                entry.asked.add(one.pod.uid)
            self._parts.metrics.count_eviction("refused" if refused else "asked")
            notes.append(f"{one.pod} stays for now: {refused}" if refused else f"{one.pod} is leaving")
            await self._parts.reach("mig-after-eviction")
        entry.note = "; ".join(notes)

    async def _ask(self, entry: _Open, known_nodes: Callable[[str], bool]) -> None:
        intent = entry.intent
        try:
            change = await self._parts.agents.change(intent.node_uid, intent.request)
        except (ConflictError, InvalidRequestError) as error:
            entry.note = f"the agent refuses: {error}"
            if self._gives_up(entry):
                entry.ended = ChangeState.ROLLED_BACK
            return
        except NotFoundError as error:
            if not known_nodes(intent.node_uid):
                entry.ended, entry.note = ChangeState.ROLLED_BACK, "its node is gone"
            else:
                entry.note = str(error)
            return
        except GpuloomError as error:
            entry.note = f"the agent can't be asked: {error}"
            return
        await self._parts.reach("mig-after-agent")
        entry.note = outcome_text(change) if change.state.ended else f"its agent is at it ({change.state})"
        if change.state.ended:
            entry.ended = change.state

    def _gives_up(self, entry: _Open) -> bool:
        """Whether a refusal is the last word: pods that have left would have done so in vain."""
        now_s = self._parts.clock.monotonic()
        if entry.refused_since_s is None:
            entry.refused_since_s = now_s
        waits = bool(entry.intent.leavers) and now_s - entry.refused_since_s < self._options.refused_for_s
        return not waits

    async def _end(self, entry: _Open) -> None:
        intent, ended = entry.intent, entry.ended or ChangeState.UNKNOWN
        await self._parts.reach("mig-before-release")
        try:
            for name in hold_names(intent):
                await self._parts.holds.release(name)
            await self._parts.reach("mig-after-release")
            self._open.pop(intent.id, None)
            await self._write()
        except GpuloomError as error:
            # Still open: the next round tries again.
            self._open[intent.id] = entry
            _log.warning("a change can't be closed yet", extra={**_fields(intent), "reason": str(error)})
            return
        self._parts.metrics.count(ended.value)
        _log.info("a change has ended", extra={**_fields(intent), "state": ended.value, "note": entry.note})
        if ended is ChangeState.DONE:
            self._wait_s.pop(intent.request.gpu_uuid, None)
        else:
            self._avoid(intent.request.gpu_uuid, entry.note)

    async def _renew(self, entry: _Open) -> None:
        now_s = self._parts.clock.monotonic()
        if now_s - entry.renewed_s < self._options.hold_ttl_s / 3:
            return
        intent = entry.intent
        for name, target in zip(hold_names(intent), targets_of(intent), strict=True):
            try:
                await self._parts.holds.renew(name, self._options.hold_ttl_s)
            except NotFoundError:
                await self._take_again(intent, name, target)
            except GpuloomError as error:
                _log.warning("a hold can't be renewed", extra={"hold": name, "reason": str(error)})
                return
        entry.renewed_s = now_s

    async def _take(self, intent: Intent, name: str, target: HoldTarget, reason: str) -> None:
        ttl_s, used = self._options.hold_ttl_s, bool(intent.leavers)
        await self._parts.holds.take(name, target, reason, ttl_s, allow_used=used)

    async def _take_again(self, intent: Intent, name: str, target: HoldTarget) -> None:
        """It ran out while nobody led. The agent refuses what somebody uses by now, so going on is safe."""
        try:
            await self._take(intent, name, target, _UNDER_WAY)
        except GpuloomError as error:
            _log.warning("a hold can't be taken again", extra={"hold": name, "reason": str(error)})

    async def _release(self, names: list[str]) -> None:
        for name in names:
            try:
                await self._parts.holds.release(name)
            except GpuloomError as error:
                # It runs out by itself, and whoever leads next lets go of it.
                _log.warning("a hold can't be released", extra={"hold": name, "reason": str(error)})

    async def _write(self) -> None:
        async with self._writing:
            self._unwritten = True
            await self._parts.store.save(self.intents)
            self._unwritten = False

    async def _write_again(self) -> None:
        """A change that was not begun may be written all the same, for whoever leads next to carry it out."""
        try:
            await self._write()
        except GpuloomError as error:
            _log.warning("changes under way can't be written", extra={"reason": str(error)})

    def _avoid(self, gpu_uuid: str, reason: str) -> None:
        wait_s = self._wait_s.get(gpu_uuid, _AVOID_FIRST_S)
        self._wait_s[gpu_uuid] = min(_AVOID_MOST_S, 2 * wait_s)
        self._avoided[gpu_uuid] = _Avoided(self._parts.clock.monotonic() + wait_s, reason)

    def _forget_avoided(self) -> None:
        now_s = self._parts.clock.monotonic()
        self._avoided = {u: a for u, a in self._avoided.items() if now_s < a.until_s}


def _why(intent: Intent) -> str:
    made = ", ".join(place.profile for place in intent.request.create)
    return f"room is made for {made} on {intent.node_name}"


def new_change_id() -> str:
    return secrets.token_hex(6)


def _fields(intent: Intent) -> dict[str, object]:
    return {
        "change": intent.id,
        "node": intent.node_name,
        "gpu": intent.request.gpu_uuid,
        "create": len(intent.request.create),
        "destroy": len(intent.request.destroy),
    }
