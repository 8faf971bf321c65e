"""One physical GPU: what it is, whether it works, what it did lately."""

from dataclasses import dataclass
from enum import StrEnum

from gpuloom.model.mig import MigInstance, MigPlacement

MILLI_PER_GPU = 1000


class GpuHealth(StrEnum):
    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Gpu:
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
