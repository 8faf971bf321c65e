"""A process that computes on a device."""

from dataclasses import dataclass

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import PodRef


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """`pod` None: it belongs to no pod, or to one that is not known on its node.

    `memory_mib` and `sm_ratio` (its share of the multiprocessors lately) are None if the driver does not say.
    """

    pid: int
    name: str
    device: DeviceRef
    memory_mib: int | None = None
    sm_ratio: float | None = None
    pod: PodRef | None = None
    container: str = ""
