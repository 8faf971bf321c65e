"""The node's GPUs through NVML, as the sampler reads them.

Every GPU has its own lane: one that is lost, slow or hung neither hides nor delays the others. What it was
is kept, and its health says what is wrong with it. The session is opened again when the driver went away,
and now and then while a GPU is lost, because a GPU that was reset shows itself only to a new session.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from gpuloom.catalog import Catalog
from gpuloom.errors import UnavailableError
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth
from gpuloom.model.topology import Topology
from gpuloom.runtime.clock import Clock
from services.node_agent.nvml.binding import NvmlError, failure_of
from services.node_agent.nvml.device_ids import device_of
from services.node_agent.nvml.failure import LIBRARY_MISMATCH, SESSION_CODES, Failure
from services.node_agent.nvml.gpm import Activity, ActivityHistory
from services.node_agent.nvml.health import (
    Condition,
    answered,
    failed,
    judge,
    judge_failure,
    report_xids,
)
from services.node_agent.nvml.inventory import SYSFS
from services.node_agent.nvml.lane import Lane, LaneLimits, Outcome, wait_for
from services.node_agent.nvml.mig import MigReading
from services.node_agent.nvml.roster import Member, Roster, enroll
from services.node_agent.nvml.session import Acquaintance, Look, LookOrder, Session
from services.node_agent.nvml.topology import WiredGpu, Wiring, topology_of
from services.node_agent.nvml.usage import GpuSample, Process, usage_of
from services.node_agent.readings import DriverReading

_log = logging.getLogger(__name__)

_GONE = "the driver no longer shows this GPU"
_HUNG = Failure(0, "the driver does not answer for this GPU: a call hangs")


@dataclass(frozen=True, slots=True)
class NvmlOptions:
    """A look waits `patience_s` for slow GPUs, opening the session up to `open_patience_s`."""

    sysfs: Path = SYSFS
    limits: LaneLimits = field(default_factory=LaneLimits)
    patience_s: float = 0.5
    open_patience_s: float = 5.0
    wiring_interval_s: float = 60.0
    process_interval_s: float = 10.0
    event_wait_s: float = 0.5
    first_reopen_s: float = 60.0
    reopen_cap_s: float = 600.0


class DriverReplacedError(Exception):
    """The driver was replaced by another version: only a new process can load the library that fits it."""


class _Slot:
    """One place in the driver's list of GPUs, for one session."""

    def __init__(self, index: int, clock: Clock, limits: LaneLimits) -> None:
        self.index = index
        self.lane: Lane[Look] = Lane(f"gpu-{index}", clock, limits)
        self.wiring_lane: Lane[Wiring] = Lane(f"links-{index}", clock, limits)
        self.known: Acquaintance | None = None
        self.history = ActivityHistory()
        self.failure: Failure | None = None
        self.fresh: Look | None = None
        self.wired_with: frozenset[str] = frozenset()
        self.wiring_due_s = 0.0
        self.processes_due_s = 0.0


@dataclass(slots=True)
class _Memory:
    """What outlives sessions, by the GPU's UUID."""

    condition: Condition = field(default_factory=Condition)
    health: tuple[GpuHealth, str] = (GpuHealth.UNKNOWN, "the GPU was not looked at yet")
    mig: MigReading = field(default_factory=MigReading)
    wiring: Wiring | None = None
    sample: GpuSample | None = None
    activity: Mapping[int | None, Activity] = field(default_factory=dict)
    processes: tuple[Process, ...] | None = None


class NvmlDriver:
    """A context: it closes the session at the end, unless a call hangs in it."""

    def __init__(self, catalog: Catalog, clock: Clock, options: NvmlOptions | None = None) -> None:
        self._catalog = catalog
        self._clock = clock
        self._options = options or NvmlOptions()
        self._session: Session | None = None
        self._session_lane: Lane[Session] = Lane("session", clock, self._options.limits)
        self._slots: list[_Slot] = []
        self._roster: Roster = {}
        self._memories: dict[str, _Memory] = {}
        self._ever_opened = False
        self._reopen_wait_s = self._options.first_reopen_s
        self._reopen_at_s = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is None or self._in_flight():
            return
        lane: Lane[None] = Lane("close", self._clock, self._options.limits)
        await wait_for(self._clock, self._options.open_patience_s, lane.start(session.close))

    async def read(self) -> DriverReading:
        """Raise UnavailableError if the driver as a whole does not answer."""
        session = await self._opened()
        await self._look_at_all(session)
        self._hear(session)
        self._judge_all()
        await self._look_at_wiring(session)
        return self._reading()

    def samples(self) -> dict[str, GpuSample]:
        """The newest full readings, by GPU UUID; a GPU that did not answer the last look has none."""
        return {uuid: memory.sample for uuid, memory in self._memories.items() if memory.sample is not None}

    def processes(self) -> dict[str, tuple[Process, ...]]:
        """Who computes on which GPU, as of a few seconds ago; a GPU whose list is not known is left out."""
        known = ((uuid, memory.processes) for uuid, memory in self._memories.items())
        return {uuid: processes for uuid, processes in known if processes is not None}

    def activity(self) -> dict[DeviceRef, Activity]:
        """How busy GPUs and MIG instances were between the last two looks, on cards that measure it."""
        found = {}
        for uuid, memory in self._memories.items():
            places = dict(zip(memory.mig.ids, memory.mig.instances, strict=True))
            for number, activity in memory.activity.items():
                placement = places[number].placement if number in places else None
                found[DeviceRef(uuid, placement)] = activity
        return found

    def instance_memory_mib(self) -> dict[DeviceRef, int]:
        """What is used of each MIG instance's memory; one that does not tell is left out."""
        return {
            DeviceRef(uuid, instance.placement): used_mib
            for uuid, memory in self._memories.items()
            if memory.sample is not None
            for instance, used_mib in zip(memory.mig.instances, memory.mig.memory_used_mib, strict=True)
            if used_mib is not None
        }

    def device_of_id(self, device_id: str) -> DeviceRef:
        """The device that NVIDIA's device plugin means by its id."""
        instances = {uuid: memory.mig.instances for uuid, memory in self._memories.items()}
        return device_of(device_id, instances)

    async def _opened(self) -> Session:
        if self._session is not None and not self._reopening_due():
            return self._session
        started = self._session_lane.start(partial(self._open, self._session))
        await wait_for(self._clock, self._options.open_patience_s, started)
        outcome = self._session_lane.take()
        if outcome is None:
            raise UnavailableError("the NVIDIA driver does not answer")
        self._session = None
        if outcome.value is None:
            raise self._not_opened(outcome)
        self._adopt(outcome.value)
        return outcome.value

    def _open(self, before: Session | None) -> Session:
        if before is not None:
            before.close()
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
        self._slots = [_Slot(index, self._clock, self._options.limits) for index in range(session.gpu_count)]
        self._reopen_at_s = self._clock.monotonic() + self._reopen_wait_s
        _log.info("the NVIDIA driver is open", extra={"gpus": session.gpu_count})

    def _reopening_due(self) -> bool:
        """Never while a call is in flight: closing a session under it is undefined."""
        if self._in_flight():
            return False
        if any(slot.failure is not None and slot.failure.code in SESSION_CODES for slot in self._slots):
            return True
        shown = {slot.known.identity.uuid for slot in self._slots if slot.known and not slot.failure}
        if len(shown) == len(self._slots) and self._roster.keys() <= shown:
            self._reopen_wait_s = self._options.first_reopen_s
            self._reopen_at_s = self._clock.monotonic() + self._reopen_wait_s
            return False
        if self._clock.monotonic() < self._reopen_at_s:
            return False
        self._reopen_wait_s = min(self._reopen_wait_s * 2, self._options.reopen_cap_s)
        return True

    def _in_flight(self) -> bool:
        lanes: list[Lane[Look] | Lane[Wiring]] = [slot.lane for slot in self._slots]
        lanes += [slot.wiring_lane for slot in self._slots]
        return any(lane.busy or lane.hung_threads for lane in lanes)

    async def _look_at_all(self, session: Session) -> None:
        await wait_for(
            self._clock, self._options.patience_s, *[self._start_look(session, slot) for slot in self._slots]
        )
        for slot in self._slots:
            before = slot.failure
            self._take_look(slot)
            if slot.known is None and slot.failure is not None and slot.failure != before:
                # Without its UUID it can't be in the state, so nobody else would say so.
                fields = {"index": slot.index, "reason": slot.failure.text}
                _log.warning("a GPU can't be identified", extra=fields)

    def _start_look(self, session: Session, slot: _Slot) -> "asyncio.Future[Outcome[Look]] | None":
        now_s = self._clock.monotonic()
        with_processes = now_s >= slot.processes_due_s
        if slot.lane.hung:
            # The thread that hangs may still use the old one.
            slot.history = ActivityHistory()
        order = LookOrder(slot.index, slot.known, slot.history, with_processes)
        started = slot.lane.start(partial(session.look, order))
        if started is not None and with_processes:
            slot.processes_due_s = now_s + self._options.process_interval_s
        return started

    def _take_look(self, slot: _Slot) -> None:
        slot.fresh = None
        outcome = slot.lane.take()
        if outcome is None:
            slot.failure = _HUNG if slot.lane.hung else slot.failure
        elif outcome.value is not None:
            slot.failure, slot.fresh, slot.known = None, outcome.value, outcome.value.known
            self._enroll(slot, outcome.value)
        elif isinstance(outcome.error, NvmlError):
            slot.failure = failure_of(outcome.error)
        elif outcome.error is not None:
            raise outcome.error

    def _enroll(self, slot: _Slot, look: Look) -> None:
        identity = look.known.identity
        self._roster = enroll(self._roster, identity, slot.index)
        memory = self._memories.setdefault(identity.uuid, _Memory())
        self._memories = {uuid: kept for uuid, kept in self._memories.items() if uuid in self._roster}
        memory.processes = look.processes if look.processes is not None else memory.processes
        # The instances as they were are kept when they can't be read: they are there, whoever may list them.
        memory.mig = look.mig if look.mig.failure is None else replace(memory.mig, enabled=True)

    def _hear(self, session: Session) -> None:
        for event in session.events.take() if session.events is not None else ():
            memory = self._memories.get(event.gpu_uuid)
            if memory is None:
                continue
            _log.warning("a GPU reported an error", extra={"gpu": event.gpu_uuid, "xid": event.xid})
            memory.condition = report_xids(memory.condition, [event.xid], self._clock.monotonic())

    def _judge_all(self) -> None:
        by_uuid = {slot.known.identity.uuid: slot for slot in self._slots if slot.known is not None}
        for uuid, memory in self._memories.items():
            slot = by_uuid.get(uuid)
            fresh = None if slot is None else slot.fresh
            memory.sample = None if fresh is None else fresh.sample
            memory.activity = {} if fresh is None else fresh.activity
            self._judge(memory, slot)

    def _judge(self, memory: _Memory, slot: _Slot | None) -> None:
        if slot is None:
            memory.condition = Condition(memory.condition.faults, was_lost=True)
            memory.health = GpuHealth.LOST, _GONE
        elif slot.failure is not None:
            memory.condition = failed(memory.condition, slot.failure)
            memory.health = judge_failure(memory.condition, slot.failure)
        elif slot.fresh is not None:
            memory.condition = answered(memory.condition, slot.fresh.facts, self._clock.monotonic())
            memory.health = judge(memory.condition, slot.fresh.facts)

    async def _look_at_wiring(self, session: Session) -> None:
        started = [self._start_wiring(session, slot) for slot in self._slots]
        await wait_for(self._clock, self._options.patience_s, *started)
        for slot in self._slots:
            outcome = slot.wiring_lane.take()
            if outcome is None or slot.known is None:
                continue
            if outcome.value is not None:
                self._memories[slot.known.identity.uuid].wiring = outcome.value
            elif not isinstance(outcome.error, NvmlError) and outcome.error is not None:
                raise outcome.error

    def _start_wiring(self, session: Session, slot: _Slot) -> "asyncio.Future[Outcome[Wiring]] | None":
        """Pairs are asked of the GPU that comes first. One that did not answer just now is not asked."""
        if slot.known is None or slot.fresh is None:
            return None
        later = [
            other.known for other in self._slots if other.index > slot.index and other.known and other.fresh
        ]
        uuids, now_s = frozenset(peer.identity.uuid for peer in later), self._clock.monotonic()
        if uuids <= slot.wired_with and now_s < slot.wiring_due_s:
            return None
        started = slot.wiring_lane.start(partial(session.wiring, slot.known, later))
        if started is not None:
            slot.wired_with, slot.wiring_due_s = uuids, now_s + self._options.wiring_interval_s
        return started

    def _reading(self) -> DriverReading:
        members = sorted(self._roster.values(), key=lambda member: member.index)
        return DriverReading(
            gpus=tuple(self._gpu(member) for member in members),
            usage=tuple(usage_of(uuid, sample) for uuid, sample in sorted(self.samples().items())),
            topology=self._topology(members),
        )

    def _gpu(self, member: Member) -> Gpu:
        identity, memory = member.identity, self._memories[member.identity.uuid]
        health, reason = memory.health
        return Gpu(
            uuid=identity.uuid,
            index=member.index,
            model=identity.model,
            architecture=identity.architecture,
            memory_mib=identity.memory_mib,
            health=health,
            health_reason=reason,
            pci_bus_id=identity.pci_bus_id,
            numa_node=identity.numa_node,
            serial=identity.serial,
            mig_enabled=memory.mig.enabled,
            mig_instances=memory.mig.instances,
        )

    def _topology(self, members: list[Member]) -> Topology | None:
        return topology_of(
            tuple(
                WiredGpu(
                    uuid=member.identity.uuid,
                    index=member.index,
                    pci_bus_id=member.identity.pci_bus_id.upper(),
                    wiring=self._memories[member.identity.uuid].wiring,
                )
                for member in members
            )
        )
