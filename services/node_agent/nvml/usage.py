"""What a GPU does now. A value that the driver does not give is None, never 0."""

from dataclasses import dataclass

from gpuloom.model.gpu import GpuUsage
from services.node_agent.nvml.binding import Handle, nvml, optional
from services.node_agent.nvml.inventory import MIB

_CLOCK_SM = 1
_CLOCK_MEMORY = 2
_TEMPERATURE_GPU = 0
_WHOLE_GPU = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Process:
    """A process by its number on the host; `instance_id` is the GPU instance it runs on, if any."""

    pid: int
    memory_mib: int | None
    sm_ratio: float | None
    instance_id: int | None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """More than the state stream carries: what exporter and usage windows need."""

    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    memory_used_mib: int | None = None
    memory_free_mib: int | None = None
    memory_reserved_mib: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None


def usage_of(uuid: str, sample: GpuSample) -> GpuUsage:
    return GpuUsage(
        uuid, sample.utilization_ratio, sample.memory_used_mib, sample.power_w, sample.temperature_c
    )


def read_sample(handle: Handle) -> GpuSample:
    """Raise NvmlError if the GPU is gone, or has no memory to tell of: every working GPU has."""
    used_mib, free_mib, reserved_mib = _memory_mib(handle)
    rates = optional(nvml.nvmlDeviceGetUtilizationRates, handle)
    power_mw = optional(nvml.nvmlDeviceGetPowerUsage, handle)
    energy_mj = optional(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    return GpuSample(
        utilization_ratio=None if rates is None else rates.gpu / 100,
        memory_utilization_ratio=None if rates is None else rates.memory / 100,
        memory_used_mib=used_mib,
        memory_free_mib=free_mib,
        memory_reserved_mib=reserved_mib,
        power_w=None if power_mw is None else power_mw / 1000,
        energy_j=None if energy_mj is None else energy_mj / 1000,
        temperature_c=_temperature_c(handle),
        sm_clock_mhz=optional(nvml.nvmlDeviceGetClockInfo, handle, _CLOCK_SM),
        memory_clock_mhz=optional(nvml.nvmlDeviceGetClockInfo, handle, _CLOCK_MEMORY),
    )


def read_processes(handle: Handle) -> tuple[Process, ...] | None:
    """Processes that compute; None where the driver can't list them. Costly: it holds the driver's lock."""
    listed = optional(nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    if listed is None:
        return None
    ratios = {sample.pid: sample.smUtil / 100 for sample in _samples(handle)} if listed else {}
    return tuple(
        Process(
            pid=int(process.pid),
            memory_mib=None if process.usedGpuMemory is None else int(process.usedGpuMemory) // MIB,
            sm_ratio=ratios.get(process.pid),
            instance_id=_instance_id(process.gpuInstanceId),
        )
        for process in sorted(listed, key=lambda process: process.pid)
    )


def _samples(handle: Handle) -> list[Handle]:
    return optional(nvml.nvmlDeviceGetProcessUtilization, handle, 0) or []


def _instance_id(number: int | None) -> int | None:
    return None if number is None or number == _WHOLE_GPU else int(number)


def _memory_mib(handle: Handle) -> tuple[int, int, int | None]:
    """Used, free and reserved. The older call counts what is reserved as used."""
    memory = optional(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if memory is not None:
        return int(memory.used) // MIB, int(memory.free) // MIB, int(memory.reserved) // MIB
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.used) // MIB, int(memory.free) // MIB, None


def _temperature_c(handle: Handle) -> float | None:
    value = optional(nvml.nvmlDeviceGetTemperatureV, handle, _TEMPERATURE_GPU)
    if value is None:
        value = optional(nvml.nvmlDeviceGetTemperature, handle, _TEMPERATURE_GPU)
    return None if value is None else float(value)
