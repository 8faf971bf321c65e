"""One initialised session with the driver, and one look at one GPU in it. Everything here may block."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpuloom.catalog import Catalog
from services.node_agent.nvml.binding import Handle, NvmlError, nvml, optional
from services.node_agent.nvml.events import EventWatcher
from services.node_agent.nvml.gpm import Activity, ActivityHistory, measures_activity
from services.node_agent.nvml.health import HealthFacts
from services.node_agent.nvml.inventory import Identity, identify
from services.node_agent.nvml.mig import MigReading, Profiles, read_mig, read_profiles
from services.node_agent.nvml.topology import Wiring
from services.node_agent.nvml.usage import GpuSample, Process, read_processes, read_sample
from services.node_agent.nvml.wiring import read_wiring

_SUPPORTED = 0


@dataclass(frozen=True, slots=True)
class Acquaintance:
    """What is kept of a GPU for as long as the session lasts."""

    handle: Handle
    identity: Identity
    profiles: Profiles
    measures_activity: bool


@dataclass(frozen=True, slots=True)
class Look:
    """One GPU at one moment. `processes` is None if they were not asked for or can't be listed."""

    known: Acquaintance
    facts: HealthFacts
    mig: MigReading
    sample: GpuSample
    processes: tuple[Process, ...] | None
    activity: Mapping[int | None, Activity]


@dataclass(frozen=True, slots=True)
class LookOrder:
    """Which GPU to look at, and what is known of it from before."""

    index: int
    known: Acquaintance | None
    history: ActivityHistory
    with_processes: bool


class Session:
    """Open from its making until `close`. Raise NvmlError if the driver does not open."""

    def __init__(self, catalog: Catalog, sysfs: Path, event_wait_s: float) -> None:
        nvml.nvmlInit()
        self._catalog = catalog
        self._sysfs = sysfs
        self.gpu_count = int(nvml.nvmlDeviceGetCount())
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
        handle = met.handle
        sample = read_sample(handle)
        mig = read_mig(handle, met.profiles, self._catalog.find_gpu(met.identity.model))
        return Look(
            known=met,
            facts=replace(read_health(handle), mig_failure=mig.failure),
            mig=mig,
            sample=sample,
            processes=read_processes(handle) if order.with_processes else None,
            activity=_activity(met, order.history, mig),
        )

    def wiring(self, known: Acquaintance, peers: Iterable[Acquaintance]) -> Wiring:
        return read_wiring(known.handle, ((peer.identity.uuid, peer.handle) for peer in peers))

    def _meet(self, index: int) -> Acquaintance:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        identity = identify(handle, self._catalog, self._sysfs)
        if self.events is not None:
            self.events.register(handle, identity.uuid)
        can_be_cut = optional(nvml.nvmlDeviceGetMigMode, handle) is not None
        profiles = read_profiles(handle) if can_be_cut else {}
        return Acquaintance(handle, identity, profiles, measures_activity(handle))


def read_health(handle: Handle) -> HealthFacts:
    rows = optional(nvml.nvmlDeviceGetRemappedRows, handle)
    errors = optional(
        nvml.nvmlDeviceGetTotalEccErrors,
        handle,
        nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        nvml.NVML_VOLATILE_ECC,
    )
    return HealthFacts(
        recovery_action=_field(handle, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
        remap_pending=None if rows is None else bool(rows[2]),
        remap_failed=None if rows is None else bool(rows[3]),
        uncorrected_errors=None if errors is None else int(errors),
    )


def _activity(met: Acquaintance, history: ActivityHistory, mig: MigReading) -> Mapping[int | None, Activity]:
    if not met.measures_activity:
        return {}
    return history.read(met.handle, mig.ids if mig.enabled else (None,))


def _field(handle: Handle, field_id: int) -> int | None:
    values = optional(nvml.nvmlDeviceGetFieldValues, handle, [field_id])
    if values is None or values[0].nvmlReturn != _SUPPORTED:
        return None
    value = values[0].value
    # The action is a 32-bit number on some drivers, a 64-bit one on others; both lie at the same place.
    return int(value.uiVal)


def _watcher(wait_s: float) -> EventWatcher | None:
    try:
        return EventWatcher(wait_s)
    except NvmlError:
        # Drivers in some virtual machines have no events: health then rests on what can be read.
        return None
