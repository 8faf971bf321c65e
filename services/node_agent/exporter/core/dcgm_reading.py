"""What dcgm-exporter says of this node's devices, and how it fills the gaps of our own reading. Pure.

Decides which of its values are believed. Never replaces a value that the driver gave, and never adds a GPU.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from gpuloom.errors import InvalidRequestError
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth, GpuUsage
from services.node_agent.core.readings import Activity, DriverReading, GpuCounters, GpuSample, InstanceReading
from services.node_agent.exporter.core.families import COUNTER_NAMES, sample_of

Values = Mapping[str, float]
Convert = Callable[[float], Any]
T = TypeVar("T", GpuSample, GpuCounters, Activity, InstanceReading)


@dataclass(frozen=True, slots=True)
class DcgmReading:
    """Values by metric name, of each GPU by its UUID and of each MIG instance by UUID and number."""

    gpus: Mapping[str, Values]
    instances: Mapping[tuple[str, int], Values]


def _ratio(percent: float) -> float:
    return percent / 100


def _joules(millijoules: float) -> float:
    return millijoules / 1000


# Read of the row of the whole GPU only: on the row of an instance they are that instance's.
_OF_GPU: Mapping[str, tuple[str, Convert]] = {
    "utilization_ratio": ("DCGM_FI_DEV_GPU_UTIL", _ratio),
    "memory_utilization_ratio": ("DCGM_FI_DEV_MEM_COPY_UTIL", _ratio),
    "encoder_ratio": ("DCGM_FI_DEV_ENC_UTIL", _ratio),
    "decoder_ratio": ("DCGM_FI_DEV_DEC_UTIL", _ratio),
    "memory_used_mib": ("DCGM_FI_DEV_FB_USED", round),
    "memory_free_mib": ("DCGM_FI_DEV_FB_FREE", round),
    "memory_reserved_mib": ("DCGM_FI_DEV_FB_RESERVED", round),
}
# The same on the rows of the instances of one GPU.
_OF_CARD: Mapping[str, tuple[str, Convert]] = {
    "power_w": ("DCGM_FI_DEV_POWER_USAGE", float),
    "energy_j": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", _joules),
    "temperature_c": ("DCGM_FI_DEV_GPU_TEMP", float),
    "memory_temperature_c": ("DCGM_FI_DEV_MEMORY_TEMP", float),
    "sm_clock_mhz": ("DCGM_FI_DEV_SM_CLOCK", round),
    "memory_clock_mhz": ("DCGM_FI_DEV_MEM_CLOCK", round),
    "pcie_replays": ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", round),
    "corrected_remapped_rows": ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", round),
    "uncorrected_remapped_rows": ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", round),
    "row_remap_failed": ("DCGM_FI_DEV_ROW_REMAP_FAILURE", bool),
    "ecc_uncorrected_volatile": ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", round),
    "clock_event_reasons": ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", round),
}
_COUNTERS: Mapping[str, tuple[str, Convert]] = {
    name: (metric, round) for name, metric in COUNTER_NAMES.items()
}
_OF_INSTANCE: Mapping[str, tuple[str, Convert]] = {
    "memory_used_mib": ("DCGM_FI_DEV_FB_USED", round),
    "memory_free_mib": ("DCGM_FI_DEV_FB_FREE", round),
}
_ACTIVITY: Mapping[str, tuple[str, Convert]] = {
    "graphics_ratio": ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", float),
    "sm_ratio": ("DCGM_FI_PROF_SM_ACTIVE", float),
    "tensor_ratio": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", float),
    "dram_ratio": ("DCGM_FI_PROF_DRAM_ACTIVE", float),
    "pcie_sent_bytes_per_s": ("DCGM_FI_PROF_PCIE_TX_BYTES", float),
    "pcie_received_bytes_per_s": ("DCGM_FI_PROF_PCIE_RX_BYTES", float),
}
_WANTED = frozenset(
    metric for table in (_OF_GPU, _OF_CARD, _COUNTERS, _ACTIVITY) for metric, _ in table.values()
)

# DCGM's own numbers for "not available", each the first of sixteen; old exporters print them.
_BLANKS = (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 2**47)
_BLANKS_IN_A_ROW = 16


def parse_dcgm(text: str) -> DcgmReading:
    """Raise InvalidRequestError if this is not Prometheus' text format."""
    gpus: dict[str, dict[str, float]] = defaultdict(dict)
    instances: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for name, labels, value in _samples(text):
        uuid, number = labels.get("UUID", ""), labels.get("GPU_I_ID", "")
        if not uuid or not _is_value(value):
            continue
        if not number:
            target = gpus[uuid]
        elif number.isascii() and number.isdecimal() and len(number) < 10:
            target = instances[uuid, int(number)]
        else:
            continue
        # One series per container that shares the device, all with the same value.
        target.setdefault(name, value)
    return DcgmReading(dict(gpus), dict(instances))


def merge(reading: DriverReading, dcgm: DcgmReading | None) -> DriverReading:
    """The reading, with values of dcgm-exporter where the driver gave none."""
    if dcgm is None:
        return reading
    samples, usage = dict(reading.samples), {entry.gpu_uuid: entry for entry in reading.usage}
    activity, instances = dict(reading.activity), dict(reading.instances)
    for gpu in reading.gpus:
        if gpu.health is GpuHealth.LOST:
            continue
        sample = _merged_sample(gpu, sample_of(gpu.uuid, reading), dcgm)
        if sample != GpuSample():
            samples[gpu.uuid] = sample
            usage[gpu.uuid] = _merged_usage(usage.get(gpu.uuid, GpuUsage(gpu.uuid)), sample)
        for device, values in _devices(gpu, reading, dcgm):
            found = _filled(activity.get(device, Activity()), _ACTIVITY, values)
            if found != Activity():
                activity[device] = found
            if device in instances:
                instances[device] = _filled(instances[device], _OF_INSTANCE, values)
    return replace(
        reading, samples=samples, usage=tuple(usage.values()), activity=activity, instances=instances
    )


def _merged_sample(gpu: Gpu, sample: GpuSample, dcgm: DcgmReading) -> GpuSample:
    rows = [dcgm.gpus.get(gpu.uuid, {})]
    rows += [values for (uuid, _), values in dcgm.instances.items() if uuid == gpu.uuid]
    for values in rows:
        sample = _filled(sample, _OF_CARD, values)
        sample = replace(sample, counters=_filled(sample.counters, _COUNTERS, values))
    # The utilisation of a card that is cut reads as idle.
    return sample if gpu.mig_enabled else _filled(sample, _OF_GPU, rows[0])


def _merged_usage(usage: GpuUsage, sample: GpuSample) -> GpuUsage:
    names = ("utilization_ratio", "memory_used_mib", "power_w", "temperature_c")
    gaps = {name: getattr(sample, name) for name in names if getattr(usage, name) is None}
    return replace(usage, **gaps)


def _devices(gpu: Gpu, reading: DriverReading, dcgm: DcgmReading) -> list[tuple[DeviceRef, Values]]:
    """The GPU, or the instances whose number the driver tells, with what dcgm-exporter says of each."""
    if not gpu.mig_enabled:
        return [(DeviceRef(gpu.uuid), dcgm.gpus.get(gpu.uuid, {}))]
    refs = [DeviceRef(gpu.uuid, mig.placement) for mig in gpu.mig_instances]
    return [
        (ref, dcgm.instances.get((gpu.uuid, reading.instances[ref].number), {}))
        for ref in refs
        if ref in reading.instances
    ]


def _filled(known: T, table: Mapping[str, tuple[str, Convert]], values: Values) -> T:
    gaps = {
        name: convert(values[metric])
        for name, (metric, convert) in table.items()
        if getattr(known, name) is None and metric in values
    }
    return replace(known, **gaps) if gaps else known


def _samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    # Most of the text are comments and metrics that nobody asked for.
    wanted = [line for line in text.split("\n") if line.split("{", 1)[0].strip() in _WANTED]
    try:
        return [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families("\n".join(wanted) + "\n")
            for sample in family.samples
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidRequestError("dcgm-exporter's answer is not in Prometheus' text format") from error


def _is_value(value: float) -> bool:
    if not math.isfinite(value) or value < 0:
        return False
    return not any(blank <= value < blank + _BLANKS_IN_A_ROW for blank in _BLANKS)
