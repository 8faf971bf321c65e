"""Which values of a reading can't be true, and the reading without them. Pure.

A driver that fails in part answers with numbers that are none: an unsigned -1, a utilisation of 255 %, more
memory used than there is. Such a value is left out like one that was not given; it is never corrected.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from gpuloom.model.gpu import DeviceRef, Gpu, GpuUsage
from services.node_agent.core.readings import Activity, DriverReading, GpuCounters, GpuSample, InstanceReading

T = TypeVar("T", GpuSample, GpuCounters, GpuUsage, Activity, InstanceReading)

# Rounding of measured shares; a whole per cent beyond is none.
_RATIO_SLACK = 0.005
_HIGHEST_C = 150.0
_HIGHEST_W = 10_000.0
_HIGHEST_MHZ = 20_000
_HIGHEST_BYTES_PER_S = 1e13
# NVML says "not available" by all bits set.
_HIGHEST_COUNT = 2**63
# The driver tells the size of an instance's profile in rounder numbers than that of the instance.
_INSTANCE_SLACK = 1.05


class Quantity(StrEnum):
    UTILIZATION = "utilization"
    MEMORY = "memory"
    POWER = "power"
    TEMPERATURE = "temperature"
    CLOCK = "clock"
    TRAFFIC = "traffic"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Range:
    """From 0 up to the highest value that can be true."""

    quantity: Quantity
    highest: float


_RATIO = Range(Quantity.UTILIZATION, 1 + _RATIO_SLACK)
_TEMPERATURE = Range(Quantity.TEMPERATURE, _HIGHEST_C)
_CLOCK = Range(Quantity.CLOCK, _HIGHEST_MHZ)
_TRAFFIC = Range(Quantity.TRAFFIC, _HIGHEST_BYTES_PER_S)
_COUNTER = Range(Quantity.COUNTER, _HIGHEST_COUNT)
_POWER = Range(Quantity.POWER, _HIGHEST_W)

Ranges = Mapping[str, Range]


_OF_GPU: Ranges = {
    "utilization_ratio": _RATIO,
    "memory_utilization_ratio": _RATIO,
    "encoder_ratio": _RATIO,
    "decoder_ratio": _RATIO,
    "power_w": _POWER,
    "energy_j": _COUNTER,
    "temperature_c": _TEMPERATURE,
    "memory_temperature_c": _TEMPERATURE,
    "sm_clock_mhz": _CLOCK,
    "memory_clock_mhz": _CLOCK,
    "pcie_replays": _COUNTER,
    "corrected_remapped_rows": _COUNTER,
    "uncorrected_remapped_rows": _COUNTER,
    "nvlink_bytes": _COUNTER,
    "ecc_uncorrected_volatile": _COUNTER,
    "clock_event_reasons": _COUNTER,
}
_OF_USAGE = frozenset({"utilization_ratio", "memory_used_mib", "power_w", "temperature_c"})
_OF_COUNTERS: Ranges = dict.fromkeys(GpuCounters.__slots__, _COUNTER)
_OF_ACTIVITY: Ranges = {
    "graphics_ratio": _RATIO,
    "sm_ratio": _RATIO,
    "tensor_ratio": _RATIO,
    "dram_ratio": _RATIO,
    "pcie_sent_bytes_per_s": _TRAFFIC,
    "pcie_received_bytes_per_s": _TRAFFIC,
}


def sift(reading: DriverReading) -> tuple[DriverReading, Mapping[Quantity, int]]:
    """The reading without what can't be true, and how many values of each quantity that were."""
    sieve = _Sieve()
    gpus = {gpu.uuid: gpu for gpu in reading.gpus}
    usage = tuple(sieve.usage(gpus.get(usage.gpu_uuid), usage) for usage in reading.usage)
    samples = {uuid: sieve.sample(gpus.get(uuid), sample) for uuid, sample in reading.samples.items()}
    activity = {device: sieve.keep(device, found, _OF_ACTIVITY) for device, found in reading.activity.items()}
    totals_mib = _instance_totals_mib(reading.gpus)
    instances = {
        device: sieve.keep(device, found, _memory_ranges(totals_mib.get(device)))
        for device, found in reading.instances.items()
    }
    if not sieve.rejected:
        return reading, {}
    sifted = replace(reading, usage=usage, samples=samples, activity=activity, instances=instances)
    return sifted, Counter(sieve.rejected.values())


class _Sieve:
    """`rejected` has each value once, by device and name, though a reading may tell it twice."""

    def __init__(self) -> None:
        self.rejected: dict[tuple[DeviceRef, str], Quantity] = {}

    def sample(self, gpu: Gpu | None, sample: GpuSample) -> GpuSample:
        if gpu is None:
            return sample
        device = DeviceRef(gpu.uuid)
        counters = self.keep(device, sample.counters, _OF_COUNTERS)
        kept = self.keep(device, sample, _gpu_ranges(gpu))
        return kept if counters is sample.counters else replace(kept, counters=counters)

    def usage(self, gpu: Gpu | None, usage: GpuUsage) -> GpuUsage:
        if gpu is None:
            return usage
        ranges = {name: limit for name, limit in _gpu_ranges(gpu).items() if name in _OF_USAGE}
        return self.keep(DeviceRef(gpu.uuid), usage, ranges)

    def keep(self, device: DeviceRef, values: T, ranges: Ranges) -> T:
        """The same object if all of its values may be true."""
        wrong = [name for name, limit in ranges.items() if not _may_be(getattr(values, name), limit)]
        if not wrong:
            return values
        self.rejected |= {(device, name): ranges[name].quantity for name in wrong}
        gaps: dict[str, Any] = dict.fromkeys(wrong)
        return replace(values, **gaps)


def _may_be(value: float | None, limit: Range) -> bool:
    return value is None or 0 <= value <= limit.highest


def _gpu_ranges(gpu: Gpu) -> Ranges:
    names = ("memory_used_mib", "memory_free_mib", "memory_reserved_mib")
    return {**_OF_GPU, **dict.fromkeys(names, Range(Quantity.MEMORY, gpu.memory_mib))}


def _memory_ranges(total_mib: float | None) -> Ranges:
    if total_mib is None:
        return {}
    return dict.fromkeys(("memory_used_mib", "memory_free_mib"), Range(Quantity.MEMORY, total_mib))


def _instance_totals_mib(gpus: tuple[Gpu, ...]) -> dict[DeviceRef, float]:
    return {
        DeviceRef(gpu.uuid, instance.placement): instance.memory_mib * _INSTANCE_SLACK
        for gpu in gpus
        for instance in gpu.mig_instances
    }
