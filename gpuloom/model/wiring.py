"""One GPU's place in its machine, link by link."""

from dataclasses import dataclass
from enum import StrEnum


class NvLinkRemote(StrEnum):
    """What is at the other end of a link."""

    UNKNOWN = "unknown"
    GPU = "gpu"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class NvLink:
    """An active link; `remote_pci_bus_id` is empty if the driver does not say."""

    number: int
    remote: NvLinkRemote
    remote_pci_bus_id: str = ""


@dataclass(frozen=True, slots=True)
class GpuWiring:
    gpu_uuid: str
    index: int
    pci_bus_id: str = ""
    numa_node: int | None = None
    links: tuple[NvLink, ...] = ()
