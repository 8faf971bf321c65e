"""The finer readings of simulated GPUs, in proportion to their load. Pure.

What a machine does not model (link traffic) is left out rather than made up. Its cards have no memory errors
and are never throttled; an XID is what the reason of a fault names.
"""

import re
from dataclasses import replace

from gpuloom.model.gpu import DeviceRef, Gpu, GpuUsage
from gpuloom.model.wiring import GpuWiring, NvLink, NvLinkRemote
from gpuloom.sim.machines.hardware import Hardware
from gpuloom.sim.machines.machine import Readings
from services.node_agent.core.readings import Activity, GpuCounters, GpuSample, InstanceReading

_IDLE_CLOCK_MHZ = 210
_FULL_CLOCK_MHZ = 1410
_MEMORY_CLOCK_MHZ = 1215
_MEMORY_WARMER_C = 8.0
_MEMORY_BUSY_RATIO = 0.5
_TENSOR_RATIO = 0.6


_IDLE_REASON = 1
# Cards that remap rows retire no pages.
_NO_ERRORS = GpuCounters(
    **{name: 0 for name in GpuCounters.__slots__ if not name.startswith(("retired_", "nvlink_"))}
)
_NO_LINK_ERRORS = replace(
    _NO_ERRORS, **{name: 0 for name in GpuCounters.__slots__ if name.startswith("nvlink_")}
)
_XID = re.compile(r"\bXID (\d{1,4})\b")


def sample_of(gpu: Gpu, usage: GpuUsage, energy_j: float, linked: bool) -> GpuSample:
    """`linked`: the card has NVLinks."""
    used_mib, busy = usage.memory_used_mib, usage.utilization_ratio
    return GpuSample(
        utilization_ratio=busy,
        memory_utilization_ratio=None if busy is None else round(busy * _MEMORY_BUSY_RATIO, 3),
        memory_used_mib=used_mib,
        memory_free_mib=None if used_mib is None else gpu.memory_mib - used_mib,
        memory_reserved_mib=0,
        power_w=usage.power_w,
        energy_j=energy_j,
        temperature_c=usage.temperature_c,
        memory_temperature_c=None if usage.temperature_c is None else usage.temperature_c + _MEMORY_WARMER_C,
        sm_clock_mhz=_FULL_CLOCK_MHZ if busy is None or busy > 0 else _IDLE_CLOCK_MHZ,
        memory_clock_mhz=_MEMORY_CLOCK_MHZ,
        encoder_ratio=None if gpu.mig_enabled else 0.0,
        decoder_ratio=None if gpu.mig_enabled else 0.0,
        pcie_replays=0,
        corrected_remapped_rows=0,
        uncorrected_remapped_rows=0,
        row_remap_failed=False,
        ecc_uncorrected_volatile=0,
        clock_event_reasons=_IDLE_REASON if busy == 0 else 0,
        counters=_NO_LINK_ERRORS if linked else _NO_ERRORS,
    )


def last_xids_of(readings: Readings) -> dict[DeviceRef, int]:
    found = ((gpu.uuid, _XID.search(gpu.health_reason)) for gpu in readings.gpus)
    return {DeviceRef(uuid): int(match[1]) for uuid, match in found if match is not None}


def activity_of(readings: Readings) -> dict[DeviceRef, Activity]:
    """Of whole cards alone: how busy an instance is, a machine does not say."""
    return {
        DeviceRef(usage.gpu_uuid): Activity(
            graphics_ratio=busy,
            sm_ratio=busy,
            tensor_ratio=round(busy * _TENSOR_RATIO, 3),
            dram_ratio=round(busy * _MEMORY_BUSY_RATIO, 3),
        )
        for usage in readings.usage
        if (busy := usage.utilization_ratio) is not None
    }


def instances_of(readings: Readings) -> dict[DeviceRef, InstanceReading]:
    answering = {usage.gpu_uuid for usage in readings.usage}
    used_mib: dict[DeviceRef, int] = {}
    for process in readings.processes:
        used_mib[process.device] = used_mib.get(process.device, 0) + process.memory_used_mib
    found = {}
    for gpu in readings.gpus:
        # The driver keeps number 0 for an instance of the whole card.
        for number, instance in enumerate(gpu.mig_instances if gpu.uuid in answering else (), 1):
            device = DeviceRef(gpu.uuid, instance.placement)
            used = min(used_mib.get(device, 0), instance.memory_mib)
            found[device] = InstanceReading(number, used, instance.memory_mib - used)
    return found


def wiring_of(hardware: Hardware) -> tuple[GpuWiring, ...]:
    return tuple(
        GpuWiring(gpu.uuid, gpu.index, gpu.pci_bus_id, gpu.numa_node, _links(gpu, hardware))
        for gpu in hardware.gpus
    )


def _links(gpu: Gpu, hardware: Hardware) -> tuple[NvLink, ...]:
    topology, others = hardware.topology, [other for other in hardware.gpus if other.index != gpu.index]
    counts = [topology.nvlink_count(gpu.index, other.index) for other in others]
    if topology.nvswitch:
        # Every link leads to a switch, which shares it among all GPUs behind it.
        return tuple(NvLink(number, NvLinkRemote.SWITCH) for number in range(max(counts, default=0)))
    ends = [other.pci_bus_id for other, count in zip(others, counts, strict=True) for _ in range(count)]
    return tuple(NvLink(number, NvLinkRemote.GPU, end) for number, end in enumerate(ends))
