"""The node's GPUs through NVML, as the sampler reads them.

Every GPU has its own lane: one that is lost, slow or hung neither hides nor delays the others. What it was
is kept, and its health says what is wrong with it. The session is opened again when the driver went away,
and now and then while a GPU is lost, because a GPU that was reset shows itself only to a new session.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from gpuloom.catalog import Catalog
from gpuloom.errors import UnavailableError
from gpuloom.model.gpu import DeviceRef
from gpuloom.runtime.clock import Clock
from services.node_agent.core.readings import DriverReading, Process
from services.node_agent.nvml.account import processes_of, reading_of
from services.node_agent.nvml.binding import NvmlError, failure_of
from services.node_agent.nvml.core.device_ids import device_of
from services.node_agent.nvml.core.failure import LIBRARY_MISMATCH, SESSION_CODES
from services.node_agent.nvml.cutting import Card
from services.node_agent.nvml.inventory import SYSFS
from services.node_agent.nvml.keeper import BOOT_ID, Keeper
from services.node_agent.nvml.lane import Lane, LaneLimits, Outcome, wait_for
from services.node_agent.nvml.ledger import GONE, Ledger, Place
from services.node_agent.nvml.session import Listing, Look, Session
from services.node_agent.nvml.slots import HUNG, Answer, Slot, Tiers

T = TypeVar("T")

_log = logging.getLogger(__name__)

_SLOW = "the GPU did not answer in time"
_NOT_LISTED = "this driver can't list processes"
_LET_GO = "the driver is let go while a GPU is reset"


@dataclass(frozen=True, slots=True)
class NvmlOptions:
    """A sample waits `patience_s` for slow GPUs, opening the session up to `open_patience_s`.

    What a slow GPU said last is its sample until that is older than `hold_s`.

    `state_dir` is where GPUs and their faults are kept across restarts of the agent; None: nowhere.
    """

    sysfs: Path = SYSFS
    boot_id: Path = BOOT_ID
    state_dir: Path | None = None
    limits: LaneLimits = field(default_factory=LaneLimits)
    tiers: Tiers = field(default_factory=Tiers)
    patience_s: float = 0.5
    hold_s: float = 12.0
    open_patience_s: float = 5.0
    event_wait_s: float = 0.5
    first_reopen_s: float = 60.0
    reopen_cap_s: float = 600.0


class DriverReplacedError(Exception):
    """The driver was replaced by another version: only a new process can load the library that fits it."""


class NvmlDriver:
    """A context: it closes the session at the end, unless a call hangs in it."""

    def __init__(self, catalog: Catalog, clock: Clock, options: NvmlOptions | None = None) -> None:
        self._catalog = catalog
        self._clock = clock
        self._options = options or NvmlOptions()
        self._turn = asyncio.Lock()
        self._session: Session | None = None
        self._session_lane: Lane[Session] = Lane("session", clock, self._options.limits)
        self._slots: list[Slot] = []
        self._ledger = Ledger(self._options.hold_s)
        self._keeper = _keeper(self._options, clock)
        self._ever_opened = False
        self._reopen_wait_s = self._options.first_reopen_s
        self._reopen_at_s = 0.0
        self._resting: DriverReading | None = None

    async def __aenter__(self) -> Self:
        if self._keeper is not None:
            self._ledger.restore(await self._keeper.load(), self._clock.monotonic())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._keeper is not None:
            await self._keeper.close(self._ledger.record())
        session, self._session = self._session, None
        if session is None or self._in_flight():
            return
        lane: Lane[None] = Lane("close", self._clock, self._options.limits)
        closing = lane.start(partial(_close, session, self._slots))
        await wait_for(self._clock, self._options.open_patience_s, closing)

    async def read(self) -> DriverReading:
        """Raise UnavailableError if the driver as a whole does not answer."""
        if self._resting is not None:
            return self._resting
        async with self._turn:
            session = await self._opened()
            await self._look_at_all(session)
            self._hear(session)
            self._ledger.judge([_place(slot) for slot in self._slots], self._clock.monotonic())
            await self._look_at_wiring(session)
            if self._keeper is not None:
                self._keeper.keep(self._ledger.record())
            hears_xids = session.events is not None and session.events.works
            return reading_of(self._ledger, session.driver_version, hears_xids)

    async def list_processes(self) -> tuple[tuple[Process, ...], dict[str, str]]:
        """Ask now who computes; also the GPUs that did not answer, by UUID, with the reason.

        Raise UnavailableError if the driver as a whole does not answer.
        """
        async with self._turn:
            session = await self._opened()
            if any(slot.known is None and slot.failure is None for slot in self._slots):
                await self._look_at_all(session)
            for slot in self._slots:
                self._absorb(slot)
            started = [slot.start_listing(session) for slot in self._slots]
            await wait_for(self._clock, self._options.patience_s, *started)
            answers = {_place(slot).uuid: self._absorb(slot) for slot in self._slots}
            return self._sorted_out(answers)

    async def perform(self, gpu_uuid: str, job: Callable[[Card], T], patience_s: float) -> T:
        """Run a job on this GPU beside its samples; those that follow read its layout anew.

        Raise what the job raises, UnavailableError if it does not answer in time or can't be started.
        """
        if self._resting is not None:
            raise UnavailableError(_LET_GO)
        async with self._turn:
            session = await self._opened()
            if any(slot.known is None and slot.failure is None for slot in self._slots):
                await self._look_at_all(session)
            slot = next((slot for slot in self._slots if _place(slot).uuid == gpu_uuid), None)
            if slot is None or slot.known is None:
                raise UnavailableError("the driver does not show this GPU")
            slot.writes.take()
            started = slot.writes.start(partial(job, session.card(slot.known)))
        if started is None:
            raise UnavailableError("an earlier call for this GPU hangs")
        await wait_for(self._clock, patience_s, started)
        slot.read_all_next()
        if not started.done():
            raise UnavailableError(f"the driver did not answer for this GPU within {patience_s:g} s")
        outcome = started.result()
        slot.writes.take()
        if outcome.error is not None:
            raise outcome.error
        return outcome.value  # type: ignore[return-value]  # a lane carries jobs of all kinds

    async def rest(self, work: Callable[[], Awaitable[None]]) -> None:
        """Let go of the driver while this is done: a reset fails for as long as anybody has it open.

        What was known is shown meanwhile, without usage. Raise UnavailableError if a call is under way.
        """
        reading = await self.read()
        async with self._turn:
            if self._in_flight():
                raise UnavailableError("a call of the driver is under way")
            self._resting = replace(reading, usage=(), samples={}, activity={}, processes={})
            try:
                session, self._session = self._session, None
                if session is not None:
                    lane: Lane[None] = Lane("close", self._clock, self._options.limits)
                    closing = lane.start(partial(_close, session, self._slots))
                    await wait_for(self._clock, self._options.open_patience_s, closing)
                    self._hear(session)
                await work()
            finally:
                self._resting = None

    def device_of_id(self, device_id: str) -> DeviceRef:
        """The device that NVIDIA's device plugin means by its id."""
        memories = self._ledger.memories
        return device_of(device_id, {uuid: memory.layout.instances for uuid, memory in memories.items()})

    def uuid_of_minor(self, minor: int) -> str | None:
        """The GPU whose device file has this number; None if there is none, or two that say so."""
        roster = self._ledger.roster.values()
        uuids = [member.identity.uuid for member in roster if member.identity.minor == minor]
        return uuids[0] if len(uuids) == 1 else None

    async def _opened(self) -> Session:
        if self._session is not None and not self._reopening_due():
            return self._session
        before = self._session
        started = self._session_lane.start(partial(self._open, before, self._slots))
        await wait_for(self._clock, self._options.open_patience_s, started)
        outcome = self._session_lane.take()
        if outcome is None:
            raise UnavailableError("the NVIDIA driver does not answer: opening it takes too long or hangs")
        if before is not None:
            # What it reported between the last sample and its end.
            self._hear(before)
        self._session = None
        if outcome.value is None:
            raise self._not_opened(outcome)
        self._adopt(outcome.value)
        return outcome.value

    def _open(self, before: Session | None, slots: list[Slot]) -> Session:
        if before is not None:
            _close(before, slots)
        return Session(self._catalog, self._options.sysfs, self._options.event_wait_s)

    def _not_opened(self, outcome: Outcome[Session]) -> Exception:
        error = outcome.error
        if not isinstance(error, NvmlError):
            return error or UnavailableError("the NVIDIA driver did not open")
        failure = failure_of(error)
        if failure.code == LIBRARY_MISMATCH and self._ever_opened:
            return DriverReplacedError(failure.text)
        return UnavailableError(failure.text)

    def _adopt(self, session: Session) -> None:
        self._session, self._ever_opened = session, True
        limits, tiers = self._options.limits, self._options.tiers
        self._slots = [Slot(index, self._clock, limits, tiers) for index in range(session.gpu_count)]
        self._reopen_at_s = self._clock.monotonic() + self._reopen_wait_s
        fields = {"gpus": session.gpu_count, "version": session.driver_version}
        _log.info("the NVIDIA driver is open", extra=fields)

    def _reopening_due(self) -> bool:
        """Never while a call is in flight: closing a session under it is undefined."""
        if self._in_flight():
            return False
        if any(slot.failure is not None and slot.failure.code in SESSION_CODES for slot in self._slots):
            return True
        shown = {_place(slot).uuid for slot in self._slots if slot.known and not slot.failure}
        if len(shown) == len(self._slots) and self._ledger.roster.keys() <= shown:
            self._reopen_wait_s = self._options.first_reopen_s
            self._reopen_at_s = self._clock.monotonic() + self._reopen_wait_s
            return False
        if self._clock.monotonic() < self._reopen_at_s:
            return False
        self._reopen_wait_s = min(self._reopen_wait_s * 2, self._options.reopen_cap_s)
        return True

    def _in_flight(self) -> bool:
        return any(slot.in_flight for slot in self._slots)

    async def _look_at_all(self, session: Session) -> None:
        for slot in self._slots:
            slot.fresh = None
            if slot.listed_late:
                self._absorb(slot)
        started = [slot.start_look(session) for slot in self._slots]
        await wait_for(self._clock, self._options.patience_s, *started)
        for slot in self._slots:
            before = slot.failure
            self._absorb(slot)
            if slot.known is None and slot.failure is not None and slot.failure != before:
                # Without its UUID it may not be in the state, so nobody else would say so.
                fields = {"index": slot.index, "reason": slot.failure.text}
                _log.warning("a GPU can't be identified", extra=fields)

    def _absorb(self, slot: Slot) -> Answer | None:
        answer = slot.take()
        if isinstance(answer, Look):
            self._ledger.meet(answer, slot.index)
        elif answer is not None:
            self._ledger.note_processes(_place(slot).uuid, answer.processes)
        return answer

    def _hear(self, session: Session) -> None:
        known = self._ledger.memories
        for event in session.events.take(known) if session.events is not None else ():
            fields = {
                "gpu": event.gpu_uuid,
                "xid": event.xid,
                "instance": event.instance,
                "times": event.times,
            }
            _log.warning("a GPU reported an error", extra=fields)
            self._ledger.hear(event, self._clock.monotonic())
            for slot in self._slots:
                if _place(slot).uuid == event.gpu_uuid:
                    slot.read_all_next()

    async def _look_at_wiring(self, session: Session) -> None:
        """Pairs are asked of the GPU that comes first."""
        answered = [slot for slot in self._slots if slot.known and slot.fresh]
        started = [
            slot.start_wiring(session, (o.known for o in answered if o.known and o.index > slot.index))
            for slot in answered
        ]
        await wait_for(self._clock, self._options.patience_s, *started)
        for slot in self._slots:
            wiring = slot.take_wiring()
            if wiring is not None and slot.known is not None:
                self._ledger.note_wiring(slot.known.identity.uuid, wiring)

    def _sorted_out(self, answers: dict[str, Answer | None]) -> tuple[tuple[Process, ...], dict[str, str]]:
        processes: list[Process] = []
        unanswered = {}
        for uuid, memory in sorted(self._ledger.memories.items()):
            answer = answers.get(uuid)
            if isinstance(answer, Listing) and answer.processes is not None:
                processes.extend(processes_of(uuid, memory, answer.processes))
            elif isinstance(answer, Listing):
                unanswered[uuid] = _NOT_LISTED
            else:
                unanswered[uuid] = self._silence_of(uuid)
        return tuple(processes), unanswered

    def _silence_of(self, uuid: str) -> str:
        """Why a GPU did not answer."""
        index = self._ledger.roster[uuid].index
        for slot in self._slots:
            if uuid == _place(slot).uuid or (slot.known is None and slot.index == index):
                failure = HUNG if slot.hung else slot.failure
                return _SLOW if failure is None else failure.text
        return GONE


def _place(slot: Slot) -> Place:
    uuid = "" if slot.known is None else slot.known.identity.uuid
    return Place(slot.index, uuid, slot.fresh, slot.failure)


def _close(session: Session, slots: list[Slot]) -> None:
    for slot in slots:
        slot.history.close()
    session.close()


def _keeper(options: NvmlOptions, clock: Clock) -> Keeper | None:
    if options.state_dir is None:
        return None
    return Keeper(options.state_dir, options.boot_id, clock, options.limits)
