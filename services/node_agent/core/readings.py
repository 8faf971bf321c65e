"""What a GPU driver says, as values. A value that the driver does not give is None or left out, never 0."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuloom.model.gpu import DeviceRef, Gpu, GpuUsage
from gpuloom.model.topology import Topology
from gpuloom.model.wiring import GpuWiring


@dataclass(frozen=True, slots=True)
class GpuCounters:
    """What one GPU counts that rarely moves, read about once a minute.

    Volatile errors and times count from the driver's start, aggregate errors and retired pages for the card's
    life. `retired_pages_pending` is 1 if pages wait for a reset to be retired, else 0.
    """

    ecc_corrected_volatile: int | None = None
    ecc_corrected_aggregate: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    retired_pages_corrected: int | None = None
    retired_pages_uncorrected: int | None = None
    retired_pages_pending: int | None = None
    power_violation_ns: int | None = None
    thermal_violation_ns: int | None = None
    sync_boost_violation_ns: int | None = None
    board_limit_violation_ns: int | None = None
    low_utilization_violation_ns: int | None = None
    reliability_violation_ns: int | None = None
    nvlink_crc_flit_errors: int | None = None
    nvlink_crc_data_errors: int | None = None
    nvlink_replay_errors: int | None = None
    nvlink_recovery_errors: int | None = None


NO_COUNTERS = GpuCounters()


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment. Counters (energy, replays, …) count from the driver's start.

    `clock_event_reasons` are NVML's bits for why clocks are not at their highest.
    """

    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    memory_used_mib: int | None = None
    memory_free_mib: int | None = None
    memory_reserved_mib: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    encoder_ratio: float | None = None
    decoder_ratio: float | None = None
    pcie_replays: int | None = None
    corrected_remapped_rows: int | None = None
    uncorrected_remapped_rows: int | None = None
    row_remap_failed: bool | None = None
    nvlink_bytes: int | None = None
    ecc_uncorrected_volatile: int | None = None
    clock_event_reasons: int | None = None
    counters: GpuCounters = NO_COUNTERS


@dataclass(frozen=True, slots=True)
class Activity:
    """Shares of the time between the last two looks; None where the card does not measure it."""

    graphics_ratio: float | None = None
    sm_ratio: float | None = None
    tensor_ratio: float | None = None
    dram_ratio: float | None = None
    pcie_sent_bytes_per_s: float | None = None
    pcie_received_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class InstanceReading:
    """A MIG instance: the driver's number of it, and its memory."""

    number: int
    memory_used_mib: int | None = None
    memory_free_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A process that computes, by its number on the host."""

    pid: int
    device: DeviceRef
    memory_mib: int | None = None
    sm_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class DriverReading:
    """What the GPU driver says now. A GPU that stopped answering is in `gpus` with health LOST.

    By GPU UUID: `samples`, `last_xids` (the last error that each GPU or instance reported) and `processes`,
    which are a few seconds old; a GPU whose processes are not known is left out of them. `xids_heard` are the
    GPUs whose errors the driver reports: no error of one of these means that there was none. `products` are
    the names that the driver prints.
    """

    gpus: tuple[Gpu, ...]
    usage: tuple[GpuUsage, ...]
    topology: Topology | None
    samples: Mapping[str, GpuSample] = field(default_factory=dict)
    activity: Mapping[DeviceRef, Activity] = field(default_factory=dict)
    instances: Mapping[DeviceRef, InstanceReading] = field(default_factory=dict)
    processes: Mapping[str, tuple[Process, ...]] = field(default_factory=dict)
    last_xids: Mapping[DeviceRef, int] = field(default_factory=dict)
    xids_heard: frozenset[str] = frozenset()
    wiring: tuple[GpuWiring, ...] = ()
    driver_version: str = ""
    products: Mapping[str, str] = field(default_factory=dict)
