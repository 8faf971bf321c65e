"""How the GPUs of one node are linked."""

from dataclasses import dataclass
from enum import IntEnum

MAX_GPUS_PER_NODE = 64


class PcieLevel(IntEnum):
    """The closest common point of two GPUs on the PCIe tree; larger is nearer."""

    UNKNOWN = 0
    SYS = 1
    NODE = 2
    PHB = 3
    PXB = 4
    PIX = 5
    BOARD = 6


@dataclass(frozen=True, slots=True)
class Topology:
    """Pair lists are over a < b in row order: (0,1), (0,2), …, (1,2), …"""

    gpu_count: int
    pcie: tuple[PcieLevel, ...]
    nvlinks: tuple[int, ...]
    nvswitch: bool = False

    def __post_init__(self) -> None:
        pairs = pair_count(self.gpu_count)
        if not 0 <= self.gpu_count <= MAX_GPUS_PER_NODE:
            raise ValueError(f"a node has 0 to {MAX_GPUS_PER_NODE} GPUs, not {self.gpu_count}")
        if len(self.pcie) != pairs or len(self.nvlinks) != pairs:
            raise ValueError(
                f"{self.gpu_count} GPUs have {pairs} pairs, not {len(self.pcie)} PCIe levels "
                f"and {len(self.nvlinks)} NVLink counts"
            )

    def pcie_level(self, a: int, b: int) -> PcieLevel:
        return self.pcie[pair_index(a, b, self.gpu_count)]

    def nvlink_count(self, a: int, b: int) -> int:
        return self.nvlinks[pair_index(a, b, self.gpu_count)]


def pair_count(gpu_count: int) -> int:
    return gpu_count * (gpu_count - 1) // 2


def pair_index(a: int, b: int, gpu_count: int) -> int:
    """Position of the pair in row order; the order of a and b does not matter."""
    low, high = (a, b) if a < b else (b, a)
    return low * gpu_count - low * (low + 1) // 2 + (high - low - 1)
