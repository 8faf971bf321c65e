"""The metrics of a device: their names, units and where each value is from. Pure.

Names, types and units are those of NVIDIA's dcgm-exporter, so that dashboards and alerts made for it work.
A value that is not known is None, never 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter

from gpuloom.model.gpu import Gpu
from gpuloom.model.mig import MigInstance
from services.node_agent.core.readings import Activity, DriverReading, GpuSample, InstanceReading

_KIB = 1024

Value = int | float | None


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or one MIG instance together with what only its whole GPU tells."""

    gpu: Gpu
    sample: GpuSample = field(default_factory=GpuSample)
    activity: Activity = field(default_factory=Activity)
    mig: MigInstance | None = None
    instance: InstanceReading | None = None
    last_xid: int | None = None
    """0 if none was reported, None if it is not known whether one was."""


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


class Split(StrEnum):
    """How a value is shown for each of several owners: in parts, or the same for all."""

    COMPUTE = "compute"
    MEMORY = "memory"
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class Family:
    """`of_instance`: a MIG instance has a value of its own, others repeat their GPU's.

    `by_default`: shown where no file of counters chooses.
    """

    name: str
    kind: Kind
    help: str
    read: Callable[[Device], Value]
    split: Split = Split.REPEATED
    of_instance: bool = False
    by_default: bool = True

    def split_on(self, device: Device) -> Split:
        """What belongs to the whole card is not an instance's to divide."""
        return self.split if device.mig is None or self.of_instance else Split.REPEATED


def sample_of(uuid: str, reading: DriverReading) -> GpuSample:
    """What was read of this GPU; from its usage where the driver gives no more than that."""
    sample = reading.samples.get(uuid)
    if sample is not None:
        return sample
    usage = next((usage for usage in reading.usage if usage.gpu_uuid == uuid), None)
    if usage is None:
        return GpuSample()
    return GpuSample(
        utilization_ratio=usage.utilization_ratio,
        memory_used_mib=usage.memory_used_mib,
        power_w=usage.power_w,
        temperature_c=usage.temperature_c,
    )


def _gauge(name: str, meaning: str, read: Callable[[Device], Value], split: Split = Split.REPEATED) -> Family:
    return Family(name, Kind.GAUGE, meaning, read, split)


def _counter(name: str, meaning: str, read: Callable[[Device], Value]) -> Family:
    return Family(name, Kind.COUNTER, meaning, read)


def _own(name: str, meaning: str, read: Callable[[Device], Value], split: Split) -> Family:
    return Family(name, Kind.GAUGE, meaning, read, split, of_instance=True)


def _percent(ratio: float | None, device: Device) -> Value:
    """A card that is cut has no utilisation of its own: what old drivers say then reads as idle."""
    return None if ratio is None or device.gpu.mig_enabled else ratio * 100


def _energy_mj(device: Device) -> Value:
    energy_j = device.sample.energy_j
    return None if energy_j is None else round(energy_j * 1000)


def _memory_used_mib(device: Device) -> Value:
    if device.mig is None:
        return device.sample.memory_used_mib
    return None if device.instance is None else device.instance.memory_used_mib


def _memory_free_mib(device: Device) -> Value:
    if device.mig is None:
        return device.sample.memory_free_mib
    return None if device.instance is None else device.instance.memory_free_mib


def _memory_total_mib(device: Device) -> Value:
    if device.sample == GpuSample():
        # Known from before; of a card that says nothing now, nothing is shown.
        return None
    return device.gpu.memory_mib if device.mig is None else device.mig.memory_mib


def _nvlink_kib(device: Device) -> Value:
    return None if device.sample.nvlink_bytes is None else device.sample.nvlink_bytes // _KIB


def _flag(value: bool | None) -> Value:
    return None if value is None else int(value)


COUNTER_NAMES: Mapping[str, str] = {
    "ecc_corrected_volatile": "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "ecc_corrected_aggregate": "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
    "ecc_uncorrected_aggregate": "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
    "retired_pages_corrected": "DCGM_FI_DEV_RETIRED_SBE",
    "retired_pages_uncorrected": "DCGM_FI_DEV_RETIRED_DBE",
    "retired_pages_pending": "DCGM_FI_DEV_RETIRED_PENDING",
    "power_violation_ns": "DCGM_FI_DEV_POWER_VIOLATION",
    "thermal_violation_ns": "DCGM_FI_DEV_THERMAL_VIOLATION",
    "sync_boost_violation_ns": "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
    "board_limit_violation_ns": "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
    "low_utilization_violation_ns": "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
    "reliability_violation_ns": "DCGM_FI_DEV_RELIABILITY_VIOLATION",
    "nvlink_crc_flit_errors": "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "nvlink_crc_data_errors": "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "nvlink_replay_errors": "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "nvlink_recovery_errors": "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
}
"""Names of what is counted, by the counter of a sample that has it."""


def _counted(counter: str, meaning: str) -> Family:
    return _counter(COUNTER_NAMES[counter], meaning, attrgetter(f"sample.counters.{counter}"))


def _reasons(name: str, by_default: bool) -> Family:
    meaning = "Why clocks are not at their highest, as NVML's bits; 0: they are."
    read = attrgetter("sample.clock_event_reasons")
    return Family(name, Kind.GAUGE, meaning, read, by_default=by_default)


FAMILIES: tuple[Family, ...] = (
    _gauge("DCGM_FI_DEV_SM_CLOCK", "Clock of the multiprocessors in MHz.", lambda of: of.sample.sm_clock_mhz),
    _gauge("DCGM_FI_DEV_MEM_CLOCK", "Clock of the memory in MHz.", lambda of: of.sample.memory_clock_mhz),
    _gauge(
        "DCGM_FI_DEV_MEMORY_TEMP",
        "Temperature of the memory in degrees Celsius.",
        lambda of: of.sample.memory_temperature_c,
    ),
    _gauge(
        "DCGM_FI_DEV_GPU_TEMP",
        "Temperature of the GPU in degrees Celsius.",
        lambda of: of.sample.temperature_c,
    ),
    _gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw in W.", lambda of: of.sample.power_w, Split.COMPUTE),
    _counter("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy since the driver's start in mJ.", _energy_mj),
    _counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Retries on PCIe.", lambda of: of.sample.pcie_replays),
    _gauge(
        "DCGM_FI_DEV_GPU_UTIL",
        "Share of the time in which the GPU computed in %.",
        lambda of: _percent(of.sample.utilization_ratio, of),
        Split.COMPUTE,
    ),
    _gauge(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "Share of the time in which memory was read or written in %.",
        lambda of: _percent(of.sample.memory_utilization_ratio, of),
        Split.COMPUTE,
    ),
    _gauge(
        "DCGM_FI_DEV_ENC_UTIL",
        "Utilisation of the video encoder in %.",
        lambda of: _percent(of.sample.encoder_ratio, of),
    ),
    _gauge(
        "DCGM_FI_DEV_DEC_UTIL",
        "Utilisation of the video decoder in %.",
        lambda of: _percent(of.sample.decoder_ratio, of),
    ),
    _gauge("DCGM_FI_DEV_XID_ERRORS", "Number of the last XID error; 0: none.", lambda of: of.last_xid),
    _reasons("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", by_default=True),
    # The same under the name that DCGM 4 gave it.
    _reasons("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", by_default=False),
    _counted("power_violation_ns", "Time of throttling for the power limit in ns."),
    _counted("thermal_violation_ns", "Time of throttling for heat in ns."),
    _counted("sync_boost_violation_ns", "Time of throttling to keep pace with other GPUs in ns."),
    _counted("board_limit_violation_ns", "Time of throttling for the board's limit in ns."),
    _counted("low_utilization_violation_ns", "Time of throttling for low utilisation in ns."),
    _counted("reliability_violation_ns", "Time of throttling for the reliability voltage in ns."),
    _own("DCGM_FI_DEV_FB_FREE", "Free memory in MiB.", _memory_free_mib, Split.REPEATED),
    _own("DCGM_FI_DEV_FB_USED", "Used memory in MiB.", _memory_used_mib, Split.MEMORY),
    _gauge(
        "DCGM_FI_DEV_FB_RESERVED",
        "Memory that the driver keeps for itself in MiB.",
        lambda of: None if of.mig is not None else of.sample.memory_reserved_mib,
    ),
    _own("DCGM_FI_DEV_FB_TOTAL", "Size of the memory in MiB.", _memory_total_mib, Split.REPEATED),
    _counted("ecc_corrected_volatile", "Single-bit memory errors since the driver's start."),
    _counter(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "Double-bit memory errors since the driver's start.",
        lambda of: of.sample.ecc_uncorrected_volatile,
    ),
    _counted("ecc_corrected_aggregate", "Single-bit memory errors of the card's life."),
    _counted("ecc_uncorrected_aggregate", "Double-bit memory errors of the card's life."),
    _counted("retired_pages_corrected", "Memory pages retired after single-bit errors."),
    _counted("retired_pages_uncorrected", "Memory pages retired after double-bit errors."),
    _counted("retired_pages_pending", "1 if memory pages wait for a reset to be retired."),
    _counter(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Memory rows remapped after uncorrectable errors.",
        lambda of: of.sample.uncorrected_remapped_rows,
    ),
    _counter(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Memory rows remapped after correctable errors.",
        lambda of: of.sample.corrected_remapped_rows,
    ),
    _gauge(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "1 if a memory row could not be remapped.",
        lambda of: _flag(of.sample.row_remap_failed),
    ),
    _counted("nvlink_crc_flit_errors", "Flow-control CRC errors of all NVLinks."),
    _counted("nvlink_crc_data_errors", "Data CRC errors of all NVLinks."),
    _counted("nvlink_replay_errors", "Retries of all NVLinks."),
    _counted("nvlink_recovery_errors", "Recovery errors of all NVLinks."),
    _counter("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Traffic of all NVLinks in KiB.", _nvlink_kib),
    _own(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "Share of the time in which the graphics or compute engine was active, 0 to 1.",
        lambda of: of.activity.graphics_ratio,
        Split.COMPUTE,
    ),
    _own(
        "DCGM_FI_PROF_SM_ACTIVE",
        "Share of the time in which a multiprocessor had work, mean of all, 0 to 1.",
        lambda of: of.activity.sm_ratio,
        Split.COMPUTE,
    ),
    _own(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Share of the time in which the tensor cores were active, 0 to 1.",
        lambda of: of.activity.tensor_ratio,
        Split.COMPUTE,
    ),
    _own(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Share of the time in which memory was sent or received, 0 to 1.",
        lambda of: of.activity.dram_ratio,
        Split.COMPUTE,
    ),
    _own(
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "Bytes sent over PCIe in a second.",
        lambda of: of.activity.pcie_sent_bytes_per_s,
        Split.COMPUTE,
    ),
    _own(
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "Bytes received over PCIe in a second.",
        lambda of: of.activity.pcie_received_bytes_per_s,
        Split.COMPUTE,
    ),
)

DEFAULT_FAMILIES: tuple[Family, ...] = tuple(family for family in FAMILIES if family.by_default)

LABELS: Mapping[str, Callable[[Gpu, DriverReading], str]] = {
    "DCGM_FI_DRIVER_VERSION": lambda _, reading: reading.driver_version,
    "DCGM_FI_DEV_SERIAL": lambda gpu, _: gpu.serial,
}
"""Properties of a device that can be labels of all its series."""
DEFAULT_LABELS = ("DCGM_FI_DRIVER_VERSION",)
