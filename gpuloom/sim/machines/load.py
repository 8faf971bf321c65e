"""What simulated GPUs read like: a pure function of the hardware, who runs on it, the faults, and time.

It never touches a file, and it knows nothing of Kubernetes: a container is a name with devices.
"""

import math
import random
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu, GpuHealth, GpuUsage
from gpuloom.model.node import PodRef
from gpuloom.sim.machines.hardware import Hardware

IDLE_POWER_RATIO = 0.12
IDLE_TEMPERATURE_C = 30.0
LOAD_TEMPERATURE_RISE_C = 50.0


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """How hard a container works: a level with a smooth wave around it, and its share of its memory.

    At level 0 it has not opened its devices: no process of it is on them, and they look idle.
    """

    level_ratio: float
    memory_ratio: float
    seed: int

    def utilization(self, elapsed_s: float) -> float:
        rng = random.Random(self.seed)
        slow = math.sin(elapsed_s * 2 * math.pi / rng.uniform(90, 240) + rng.uniform(0, 2 * math.pi))
        fast = math.sin(elapsed_s * 2 * math.pi / rng.uniform(15, 40) + rng.uniform(0, 2 * math.pi))
        return min(1.0, max(0.0, self.level_ratio * (1 + 0.15 * slow + 0.07 * fast)))


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A container that holds devices now."""

    pod: PodRef
    name: str
    devices: tuple[AllocatedDevice, ...]
    load: LoadProfile

    @property
    def pid(self) -> int:
        return 10_000 + zlib.crc32(f"{self.pod.uid}/{self.name}".encode()) % 4_000_000


@dataclass(frozen=True, slots=True)
class GpuFault:
    """`health` is UNHEALTHY or LOST."""

    health: GpuHealth
    reason: str


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults on request, by GPU UUID."""

    gpus: Mapping[str, GpuFault] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process on a device, as the driver and the process's cgroup tell it.

    `sm_ratio` is its share of the whole card; None on a MIG instance, where the driver does not tell it.
    """

    pid: int
    device: DeviceRef
    pod: PodRef
    container: str
    memory_used_mib: int
    sm_ratio: float | None = None


class Readings(NamedTuple):
    gpus: tuple[Gpu, ...]
    usage: tuple[GpuUsage, ...]
    processes: tuple[DeviceProcess, ...]


def readings(
    hardware: Hardware, containers: Iterable[RunningContainer], faults: Faults, elapsed_s: float
) -> Readings:
    """`elapsed_s` counts from any fixed moment; equal arguments give equal readings."""
    running = tuple(containers)
    gpus = tuple(_with_fault(gpu, faults.gpus.get(gpu.uuid)) for gpu in hardware.gpus)
    answering = {gpu.uuid for gpu in gpus if gpu.health is not GpuHealth.LOST}
    usage = tuple(
        _usage(gpu, hardware.power_limit_w, running, elapsed_s) for gpu in gpus if gpu.uuid in answering
    )
    processes = tuple(
        DeviceProcess(
            pid=container.pid,
            device=held.device,
            pod=container.pod,
            container=container.name,
            memory_used_mib=_memory_used_mib(container, held),
            sm_ratio=None if held.device.mig else round(_load_ratio(container, held, elapsed_s), 3),
        )
        for container in running
        for held in container.devices
        if container.load.level_ratio and held.device.gpu_uuid in answering
    )
    return Readings(gpus, usage, processes)


def _with_fault(gpu: Gpu, fault: GpuFault | None) -> Gpu:
    if fault is None:
        return replace(gpu, health=GpuHealth.HEALTHY, health_reason="")
    return replace(gpu, health=fault.health, health_reason=fault.reason)


def _usage(
    gpu: Gpu, power_limit_w: float, containers: tuple[RunningContainer, ...], elapsed_s: float
) -> GpuUsage:
    load_ratio = 0.0
    memory_used_mib = 0
    for container in containers:
        for held in container.devices:
            if held.device.gpu_uuid == gpu.uuid:
                load_ratio += _load_ratio(container, held, elapsed_s)
                memory_used_mib += _memory_used_mib(container, held)
    load_ratio = min(1.0, load_ratio)
    power_ratio = IDLE_POWER_RATIO + (1 - IDLE_POWER_RATIO) * load_ratio
    return GpuUsage(
        gpu_uuid=gpu.uuid,
        # In MIG mode the driver gives no utilisation of the whole card: absent, which is not zero.
        utilization_ratio=None if gpu.mig_enabled else round(load_ratio, 3),
        memory_used_mib=min(memory_used_mib, gpu.memory_mib),
        power_w=round(power_limit_w * power_ratio, 1),
        temperature_c=round(IDLE_TEMPERATURE_C + LOAD_TEMPERATURE_RISE_C * power_ratio, 1),
    )


def _load_ratio(container: RunningContainer, held: AllocatedDevice, elapsed_s: float) -> float:
    """What the container takes of the whole card."""
    return container.load.utilization(elapsed_s) * held.milli / MILLI_PER_GPU


def _memory_used_mib(container: RunningContainer, held: AllocatedDevice) -> int:
    return int(held.memory_mib * container.load.memory_ratio) if container.load.level_ratio else 0
