"""One physical GPU: what it is, whether it works, what it did lately."""

import re
from dataclasses import dataclass
from enum import StrEnum

from gpuloom.model.mig import MigInstance, MigPlacement

MILLI_PER_GPU = 1000

GPU_UUID = re.compile(r"GPU-[A-Za-z0-9._-]{1,100}")
"""What names exactly one GPU, as NVML does."""


class GpuHealth(StrEnum):
    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    LOST = "lost"


class SharingMode(StrEnum):
    """How pods share a GPU that is not cut: by accounting alone, by the limits of MPS, or by time."""

    NONE = "none"
    MPS = "mps"
    TIME_SLICING = "time-slicing"


@dataclass(frozen=True, slots=True)
class Gpu:
    """`changing`: what is being done to the whole GPU, so that nothing of it is given out; else empty.

    `least_milli`: no share of it is smaller, so that no more pods share it than it was set up for; 0: any is.
    """

    uuid: str
    index: int
    model: str
    architecture: str
    memory_mib: int
    health: GpuHealth = GpuHealth.UNKNOWN
    health_reason: str = ""
    pci_bus_id: str = ""
    numa_node: int | None = None
    serial: str = ""
    mig_enabled: bool = False
    mig_instances: tuple[MigInstance, ...] = ()
    changing: str = ""
    sharing: SharingMode = SharingMode.NONE
    least_milli: int = 0


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """Readings of one GPU. None means that the driver does not say, never zero."""

    gpu_uuid: str
    utilization_ratio: float | None = None
    memory_used_mib: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceRef:
    """A GPU, or one MIG instance of it."""

    gpu_uuid: str
    mig: MigPlacement | None = None
