"""What a GPU is: read once when it is met, because none of it changes while the driver runs."""

import re
from dataclasses import dataclass
from pathlib import Path

from gpuloom.catalog import Catalog
from services.node_agent.nvml.binding import Handle, nvml, optional, text

MIB = 1024 * 1024
SYSFS = Path("/sys")

_ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
_BUS_ID = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")


@dataclass(frozen=True, slots=True)
class Identity:
    uuid: str
    model: str
    architecture: str
    memory_mib: int
    pci_bus_id: str
    numa_node: int | None
    serial: str
    product: str = ""
    """As the driver prints it, e.g. "NVIDIA A100-SXM4-40GB"."""
    minor: int | None = None
    """Of its device file, /dev/nvidia<minor>; None if the driver does not say."""


def identify(handle: Handle, catalog: Catalog, sysfs: Path) -> Identity:
    """Raise NvmlError if the GPU can't be told from others: without UUID, name or memory it is of no use."""
    product = text(nvml.nvmlDeviceGetName(handle))
    known = catalog.find_gpu(product)
    pci = optional(nvml.nvmlDeviceGetPciInfo, handle)
    pci_bus_id = "" if pci is None else text(pci.busId)
    serial = optional(nvml.nvmlDeviceGetSerial, handle)
    minor = optional(nvml.nvmlDeviceGetMinorNumber, handle)
    return Identity(
        uuid=text(nvml.nvmlDeviceGetUUID(handle)),
        model=product if known is None else known.name,
        architecture=_architecture(handle) if known is None else known.architecture,
        memory_mib=int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB,
        pci_bus_id=pci_bus_id,
        numa_node=numa_node_of(pci_bus_id, sysfs),
        serial="" if serial is None else text(serial),
        product=product,
        minor=None if minor is None else int(minor),
    )


def numa_node_of(pci_bus_id: str, sysfs: Path) -> int | None:
    """By the kernel, because NVML knows it only where GPUs are NUMA nodes themselves."""
    directory = sysfs_name(pci_bus_id)
    if directory is None:
        return None
    try:
        number = int((sysfs / "bus/pci/devices" / directory / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


def sysfs_name(pci_bus_id: str) -> str | None:
    """NVML writes eight digits of the domain and capitals, the kernel at least four and small letters."""
    match = _BUS_ID.fullmatch(pci_bus_id)
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.{function}"


def _architecture(handle: Handle) -> str:
    number = optional(nvml.nvmlDeviceGetArchitecture, handle)
    return "" if number is None else _ARCHITECTURES.get(int(number), "")
