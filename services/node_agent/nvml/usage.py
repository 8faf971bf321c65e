"""What a GPU does now. A value that the driver does not give is None, never 0.

There are two tiers: what moves is read at every sample; what moves slowly, or costs much, now and then. What
hardly moves at all is in `counters.py`.
"""

from dataclasses import dataclass

from gpuloom.model.gpu import GpuUsage
from services.node_agent.core.readings import GpuCounters, GpuSample
from services.node_agent.nvml.binding import Handle, nvml, optional
from services.node_agent.nvml.fields import Field, Fields
from services.node_agent.nvml.inventory import MIB

# NVML's numbers of fields.
RECOVERY_ACTION = 230
_UNCORRECTED_ERRORS = 4
_MEMORY_TEMPERATURE = 82
_ENERGY_MJ = 83
_PCIE_REPLAYS = 94
_NVLINK_SENT_KIB, _NVLINK_RECEIVED_KIB = 138, 139
_ROWS = (142, 143, 144, 145)
_ALL_LINKS = 0xFFFFFFFF

MOVING_FIELDS: tuple[Field, ...] = (RECOVERY_ACTION, _ENERGY_MJ)
SLOW_FIELDS: tuple[Field, ...] = (
    _UNCORRECTED_ERRORS,
    _MEMORY_TEMPERATURE,
    _PCIE_REPLAYS,
    (_NVLINK_SENT_KIB, _ALL_LINKS),
    (_NVLINK_RECEIVED_KIB, _ALL_LINKS),
    *_ROWS,
)

_CLOCK_SM = 1
_CLOCK_MEMORY = 2
_TEMPERATURE_GPU = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """In MiB. The older call does not tell what is reserved, and counts it as used."""

    used_mib: int
    free_mib: int
    reserved_mib: int | None


@dataclass(frozen=True, slots=True)
class RemappedRows:
    corrected: int
    uncorrected: int
    pending: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class SlowSample:
    """What is read now and then."""

    memory_temperature_c: float | None = None
    encoder_ratio: float | None = None
    decoder_ratio: float | None = None
    pcie_replays: int | None = None
    nvlink_bytes: int | None = None
    rows: RemappedRows | None = None
    uncorrected_errors: int | None = None
    clock_event_reasons: int | None = None


def usage_of(uuid: str, sample: GpuSample) -> GpuUsage:
    return GpuUsage(
        uuid, sample.utilization_ratio, sample.memory_used_mib, sample.power_w, sample.temperature_c
    )


def read_sample(handle: Handle, fields: Fields, slow: SlowSample, counters: GpuCounters) -> GpuSample:
    """Raise NvmlError if the GPU is gone, or has no memory to tell of: every working GPU has."""
    memory = read_memory(handle)
    rates = optional(nvml.nvmlDeviceGetUtilizationRates, handle)
    power_mw = optional(nvml.nvmlDeviceGetPowerUsage, handle)
    return GpuSample(
        utilization_ratio=None if rates is None else rates.gpu / 100,
        memory_utilization_ratio=None if rates is None else rates.memory / 100,
        memory_used_mib=memory.used_mib,
        memory_free_mib=memory.free_mib,
        memory_reserved_mib=memory.reserved_mib,
        power_w=None if power_mw is None else power_mw / 1000,
        energy_j=_energy_j(handle, fields),
        temperature_c=_temperature_c(handle),
        memory_temperature_c=slow.memory_temperature_c,
        sm_clock_mhz=optional(nvml.nvmlDeviceGetClockInfo, handle, _CLOCK_SM),
        memory_clock_mhz=optional(nvml.nvmlDeviceGetClockInfo, handle, _CLOCK_MEMORY),
        encoder_ratio=slow.encoder_ratio,
        decoder_ratio=slow.decoder_ratio,
        pcie_replays=slow.pcie_replays,
        corrected_remapped_rows=None if slow.rows is None else slow.rows.corrected,
        uncorrected_remapped_rows=None if slow.rows is None else slow.rows.uncorrected,
        row_remap_failed=None if slow.rows is None else slow.rows.failed,
        nvlink_bytes=slow.nvlink_bytes,
        ecc_uncorrected_volatile=slow.uncorrected_errors,
        clock_event_reasons=slow.clock_event_reasons,
        counters=counters,
    )


def read_slow_sample(handle: Handle, fields: Fields) -> SlowSample:
    """`fields` are those of SLOW_FIELDS that the driver gave; some others have functions of their own."""
    encoder = optional(nvml.nvmlDeviceGetEncoderUtilization, handle)
    decoder = optional(nvml.nvmlDeviceGetDecoderUtilization, handle)
    replays = fields.get(_PCIE_REPLAYS)
    if replays is None:
        replays = optional(nvml.nvmlDeviceGetPcieReplayCounter, handle)
    memory_temperature_c = fields.get(_MEMORY_TEMPERATURE)
    return SlowSample(
        memory_temperature_c=None if memory_temperature_c is None else float(memory_temperature_c),
        encoder_ratio=None if encoder is None else encoder[0] / 100,
        decoder_ratio=None if decoder is None else decoder[0] / 100,
        pcie_replays=None if replays is None else int(replays),
        nvlink_bytes=_nvlink_bytes(fields),
        rows=_rows(handle, fields),
        uncorrected_errors=_uncorrected_errors(handle, fields),
        clock_event_reasons=_clock_event_reasons(handle),
    )


def read_memory(handle: Handle) -> Memory:
    """Of a GPU or of a MIG device. Raise NvmlError if it does not tell."""
    memory = optional(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if memory is not None:
        return Memory(int(memory.used) // MIB, int(memory.free) // MIB, int(memory.reserved) // MIB)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Memory(int(memory.used) // MIB, int(memory.free) // MIB, None)


def _energy_j(handle: Handle, fields: Fields) -> float | None:
    energy_mj = fields.get(_ENERGY_MJ)
    if energy_mj is None:
        energy_mj = optional(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    return None if energy_mj is None else energy_mj / 1000


def _temperature_c(handle: Handle) -> float | None:
    value = optional(nvml.nvmlDeviceGetTemperatureV, handle, _TEMPERATURE_GPU)
    if value is None:
        value = optional(nvml.nvmlDeviceGetTemperature, handle, _TEMPERATURE_GPU)
    return None if value is None else float(value)


def _nvlink_bytes(fields: Fields) -> int | None:
    """Payload of all links, both ways; half of it would pass for the whole."""
    sent_kib, received_kib = fields.get(_NVLINK_SENT_KIB), fields.get(_NVLINK_RECEIVED_KIB)
    if sent_kib is None or received_kib is None:
        return None
    return int(sent_kib + received_kib) * 1024


def _rows(handle: Handle, fields: Fields) -> RemappedRows | None:
    given = [fields[number] for number in _ROWS if number in fields]
    values = given if len(given) == len(_ROWS) else optional(nvml.nvmlDeviceGetRemappedRows, handle)
    if values is None:
        return None
    corrected, uncorrected, pending, failed = (int(value) for value in values)
    return RemappedRows(corrected, uncorrected, bool(pending), bool(failed))


def _uncorrected_errors(handle: Handle, fields: Fields) -> int | None:
    errors = fields.get(_UNCORRECTED_ERRORS)
    if errors is None:
        kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        errors = optional(nvml.nvmlDeviceGetTotalEccErrors, handle, kind, counter)
    return None if errors is None else int(errors)


def _clock_event_reasons(handle: Handle) -> int | None:
    reasons = optional(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:
        # Its older name.
        reasons = optional(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return None if reasons is None else int(reasons)
