"""What is known of the node's GPUs, whichever session showed it: it outlives lost GPUs and hung calls.

Takes in what was read and heard, and says what is so now. It asks nobody, and waits for nothing.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from gpuloom.model.gpu import GpuHealth
from gpuloom.model.mig import MigPlacement
from services.node_agent.nvml.core.failure import Failure
from services.node_agent.nvml.core.health import (
    Condition,
    XidFault,
    answered,
    failed,
    forget_gone_instances,
    judge,
    judge_failure,
    report_xids,
)
from services.node_agent.nvml.core.topology import Wiring
from services.node_agent.nvml.core.xids import XidEvent
from services.node_agent.nvml.mig import MigLayout
from services.node_agent.nvml.processes import ListedProcess
from services.node_agent.nvml.record import KeptGpu, Record
from services.node_agent.nvml.roster import Member, Roster, enroll
from services.node_agent.nvml.session import Look

GONE = "the driver no longer shows this GPU"


@dataclass(slots=True)
class Memory:
    """One GPU. `look` is the newest, of `looked_at_s`; None if the GPU failed, or was silent for too long.

    `fresh`: it is of the last sample. `processes` is None if they are not known.
    """

    condition: Condition = field(default_factory=Condition)
    health: tuple[GpuHealth, str] = (GpuHealth.UNKNOWN, "the GPU was not sampled yet")
    layout: MigLayout = field(default_factory=MigLayout)
    wiring: Wiring | None = None
    look: Look | None = None
    looked_at_s: float = 0.0
    fresh: bool = False
    processes: tuple[ListedProcess, ...] | None = None
    last_xids: dict[MigPlacement | None, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """How one place in the driver's list answered: as which GPU, if that is known, and with what."""

    index: int
    uuid: str
    look: Look | None
    failure: Failure | None


class Ledger:
    def __init__(self, hold_s: float = 0.0) -> None:
        """What a GPU said stays shown for `hold_s` while it is slow to answer again."""
        self._hold_s = hold_s
        self.roster: Roster = {}
        self.memories: dict[str, Memory] = {}

    def restore(self, record: Record, now_s: float) -> None:
        """Begin with what an agent before this one knew."""
        self.roster = {gpu.identity.uuid: Member(gpu.identity, gpu.index) for gpu in record.gpus}
        self.memories = {gpu.identity.uuid: _remembered(gpu, now_s) for gpu in record.gpus}

    def record(self) -> Record:
        """What an agent after this one should know."""
        members = sorted(self.roster.values(), key=lambda member: member.index)
        return Record(tuple(_kept(member, self.memories[member.identity.uuid]) for member in members))

    def meet(self, look: Look, driver_index: int) -> None:
        identity, layout = look.known.identity, look.slow.layout
        self.roster = enroll(self.roster, identity, driver_index)
        memory = self.memories.setdefault(identity.uuid, Memory())
        self.memories = {uuid: kept for uuid, kept in self.memories.items() if uuid in self.roster}
        self.note_processes(identity.uuid, look.processes)
        if layout.failure is not None:
            # They are there, whoever may list them.
            memory.layout = replace(memory.layout, enabled=True)
            return
        memory.layout = layout
        memory.condition = forget_gone_instances(memory.condition, layout.instances)
        places = {None, *(instance.placement for instance in layout.instances)}
        memory.last_xids = {place: xid for place, xid in memory.last_xids.items() if place in places}

    def note_processes(self, uuid: str, processes: tuple[ListedProcess, ...] | None) -> None:
        if processes is not None and uuid in self.memories:
            self.memories[uuid].processes = processes

    def note_wiring(self, uuid: str, wiring: Wiring) -> None:
        if uuid in self.memories:
            self.memories[uuid].wiring = wiring

    def hear(self, event: XidEvent, now_s: float) -> None:
        """An error of an instance that is not known is its GPU's: somebody has it."""
        memory = self.memories.get(event.gpu_uuid)
        if memory is None:
            return
        instance = None if event.instance is None else memory.layout.instance(event.instance)
        memory.last_xids[None if instance is None else instance.placement] = event.xid
        memory.condition = report_xids(memory.condition, [event.xid], now_s, instance)

    def judge(self, places: Collection[Place], now_s: float) -> None:
        """Decide every GPU's health from how the places answered."""
        by_uuid = {place.uuid: place for place in places if place.uuid}
        # A GPU that fails before it says who it is sits where it sat, as far as anybody can tell.
        nameless = {place.index: place for place in places if not place.uuid}
        for uuid, memory in self.memories.items():
            place = by_uuid.get(uuid) or nameless.get(self.roster[uuid].index)
            self._take_look(memory, place, now_s)
            _judge(memory, place, now_s)

    def _take_look(self, memory: Memory, place: Place | None, now_s: float) -> None:
        memory.fresh = place is not None and place.look is not None
        if place is not None and place.look is not None:
            memory.look, memory.looked_at_s = place.look, now_s
        elif place is None or place.failure is not None or now_s - memory.looked_at_s > self._hold_s:
            memory.look = None


def _judge(memory: Memory, place: Place | None, now_s: float) -> None:
    if place is None:
        memory.condition = replace(memory.condition, was_lost=True)
        memory.health, memory.processes = (GpuHealth.LOST, GONE), None
    elif place.failure is not None:
        memory.condition = failed(memory.condition, place.failure)
        memory.health, memory.processes = judge_failure(memory.condition, place.failure), None
    elif place.look is not None:
        memory.condition = answered(memory.condition, place.look.facts, now_s)
        memory.health = judge(memory.condition, place.look.facts)


def _kept(member: Member, memory: Memory) -> KeptGpu:
    return KeptGpu(
        identity=member.identity,
        index=member.index,
        condition=memory.condition,
        mig_enabled=memory.layout.enabled,
        instances=memory.layout.instances,
        instance_ids=memory.layout.ids,
    )


def _remembered(gpu: KeptGpu, now_s: float) -> Memory:
    # A time to come would keep a fault open for too long.
    faults = tuple(replace(fault, at_s=min(fault.at_s, now_s)) for fault in gpu.condition.faults)
    return Memory(
        condition=Condition(faults, gpu.condition.was_lost),
        layout=MigLayout(gpu.mig_enabled, gpu.instances, gpu.instance_ids),
        last_xids={fault.placement: fault.xid for fault in sorted(faults, key=_age_order)},
    )


def _age_order(fault: XidFault) -> tuple[float, int]:
    return fault.at_s, fault.xid
