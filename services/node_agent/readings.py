"""What a GPU driver says, as values. A value that the driver does not give is None or left out, never 0."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuloom.model.gpu import DeviceRef, Gpu, GpuUsage
from gpuloom.model.topology import Topology
from gpuloom.model.wiring import GpuWiring


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment. Counters (energy, replays, …) count from the driver's start."""

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
    which are a few seconds old; a GPU whose processes are not known is left out of them. `products` are the
    names that the driver prints.
    """

    gpus: tuple[Gpu, ...]
    usage: tuple[GpuUsage, ...]
    topology: Topology | None
    samples: Mapping[str, GpuSample] = field(default_factory=dict)
    activity: Mapping[DeviceRef, Activity] = field(default_factory=dict)
    instances: Mapping[DeviceRef, InstanceReading] = field(default_factory=dict)
    processes: Mapping[str, tuple[Process, ...]] = field(default_factory=dict)
    last_xids: Mapping[DeviceRef, int] = field(default_factory=dict)
    wiring: tuple[GpuWiring, ...] = ()
    driver_version: str = ""
    products: Mapping[str, str] = field(default_factory=dict)
