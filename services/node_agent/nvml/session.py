"""One initialised session with the driver, and one sample of one GPU in it. Everything here may block."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuloom.catalog import Catalog
from services.node_agent.core.readings import Activity, GpuCounters, GpuSample
from services.node_agent.nvml.binding import Handle, NvmlError, nvml, optional, text
from services.node_agent.nvml.core.health import HealthFacts
from services.node_agent.nvml.core.topology import Wiring
from services.node_agent.nvml.counters import COUNTER_FIELDS, read_counters
from services.node_agent.nvml.cutting import Card
from services.node_agent.nvml.events import EventWatcher
from services.node_agent.nvml.fields import Field, Fields, read_fields
from services.node_agent.nvml.gpm import ActivityHistory, measures_activity
from services.node_agent.nvml.inventory import Identity, identify
from services.node_agent.nvml.mig import (
    MigLayout,
    Profiles,
    is_cut,
    read_layout,
    read_memories,
    read_profiles,
)
from services.node_agent.nvml.processes import ListedProcess, read_processes
from services.node_agent.nvml.usage import (
    MOVING_FIELDS,
    RECOVERY_ACTION,
    SLOW_FIELDS,
    Memory,
    SlowSample,
    read_sample,
    read_slow_sample,
)
from services.node_agent.nvml.wiring import read_wiring


@dataclass(frozen=True, slots=True)
class Acquaintance:
    """What is kept of a GPU for as long as the session lasts. `profiles` is None if it can't be cut."""

    handle: Handle
    identity: Identity
    profiles: Profiles | None
    measures_activity: bool
    reports_xids: bool = False


@dataclass(frozen=True, slots=True)
class SlowPart:
    """What is read now and then, and carried from look to look between."""

    sample: SlowSample
    layout: MigLayout


@dataclass(frozen=True, slots=True)
class Look:
    """One GPU at one moment. `processes` is None if they were not asked for or can't be listed.

    `memories` and `activity` are by the driver's number of the MIG instance, None for the whole GPU.
    """

    known: Acquaintance
    facts: HealthFacts
    slow: SlowPart
    sample: GpuSample
    memories: Mapping[int, Memory]
    processes: tuple[ListedProcess, ...] | None
    activity: Mapping[int | None, Activity]


@dataclass(frozen=True, slots=True)
class Listing:
    """Who computes on one GPU; None if the driver can't list processes."""

    processes: tuple[ListedProcess, ...] | None


@dataclass(frozen=True, slots=True)
class LookOrder:
    """Which GPU to look at, and what is known of it. `slow` or `counters` None: read that part, too."""

    index: int
    known: Acquaintance | None
    history: ActivityHistory
    slow: SlowPart | None
    counters: GpuCounters | None
    with_processes: bool


class Session:
    """Open from its making until `close`. Raise NvmlError if the driver does not open."""

    def __init__(self, catalog: Catalog, sysfs: Path, event_wait_s: float) -> None:
        nvml.nvmlInit()
        self._catalog = catalog
        self._sysfs = sysfs
        self.gpu_count = int(nvml.nvmlDeviceGetCount())
        self.driver_version = text(optional(nvml.nvmlSystemGetDriverVersion) or "")
        self.events = _watcher(event_wait_s)

    def close(self) -> None:
        if self.events is not None:
            self.events.stop()
        try:
            nvml.nvmlShutdown()
        except NvmlError:
            # The driver went away first.
            return

    def look(self, order: LookOrder) -> Look:
        """Raise NvmlError if this GPU does not answer as a working one does."""
        met = order.known or self._meet(order.index)
        handle, before = met.handle, order.slow
        fields = read_fields(handle, _wanted_fields(order))
        slow = before.sample if before else read_slow_sample(handle, fields)
        counters = order.counters or read_counters(handle, fields)
        sample = read_sample(handle, fields, slow, counters)
        layout, memories = self._read_mig(met, before.layout if before else None)
        return Look(
            known=met,
            facts=_facts(fields, slow, layout),
            slow=SlowPart(slow, layout),
            sample=sample,
            memories=memories,
            processes=read_processes(handle) if order.with_processes else None,
            activity=_activity(met, order.history, layout),
        )

    def card(self, known: Acquaintance) -> Card:
        model = self._catalog.find_gpu(known.identity.model)
        return Card(known.identity.uuid, known.handle, known.profiles is not None, model)

    def list_processes(self, known: Acquaintance) -> Listing:
        """Raise NvmlError if the GPU is gone."""
        return Listing(read_processes(known.handle))

    def wiring(self, known: Acquaintance, peers: Iterable[Acquaintance]) -> Wiring:
        return read_wiring(known.handle, ((peer.identity.uuid, peer.handle) for peer in peers))

    def _meet(self, index: int) -> Acquaintance:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        identity = identify(handle, self._catalog, self._sysfs)
        reports_xids = self.events is not None and self.events.register(handle, identity.uuid)
        can_be_cut = optional(nvml.nvmlDeviceGetMigMode, handle) is not None
        profiles = read_profiles(handle) if can_be_cut else None
        return Acquaintance(handle, identity, profiles, measures_activity(handle), reports_xids)

    def _read_mig(
        self, met: Acquaintance, before: MigLayout | None
    ) -> tuple[MigLayout, Mapping[int, Memory]]:
        """The layout of before is believed for as long as the mode is the same and its devices answer."""
        if met.profiles is None or not is_cut(met.handle):
            return MigLayout(), {}
        model = self._catalog.find_gpu(met.identity.model)
        if before is not None and before.enabled:
            memories = read_memories(before)
            if memories is not None:
                return before, memories
        # A driver may list profiles only in MIG mode, which may be younger than our acquaintance.
        layout = read_layout(met.handle, met.profiles or read_profiles(met.handle), model)
        return layout, read_memories(layout) or {}


def _wanted_fields(order: LookOrder) -> tuple[Field, ...]:
    slow = SLOW_FIELDS if order.slow is None else ()
    return (*MOVING_FIELDS, *slow, *(COUNTER_FIELDS if order.counters is None else ()))


def _facts(fields: Fields, slow: SlowSample, layout: MigLayout) -> HealthFacts:
    action = fields.get(RECOVERY_ACTION)
    return HealthFacts(
        recovery_action=None if action is None else int(action),
        remap_pending=None if slow.rows is None else slow.rows.pending,
        remap_failed=None if slow.rows is None else slow.rows.failed,
        uncorrected_errors=slow.uncorrected_errors,
        mig_failure=layout.failure,
    )


def _activity(
    met: Acquaintance, history: ActivityHistory, layout: MigLayout
) -> Mapping[int | None, Activity]:
    if not met.measures_activity:
        return {}
    return history.read(met.handle, layout.ids if layout.enabled else (None,))


def _watcher(wait_s: float) -> EventWatcher | None:
    try:
        return EventWatcher(wait_s)
    except NvmlError:
        # Drivers in some virtual machines have no events: health then rests on what can be read.
        return None
