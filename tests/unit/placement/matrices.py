"""Link matrices as `nvidia-smi topo -m` and others print them, read into topologies."""

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from gpuloom.model.topology import PcieLevel, Topology

Shape = tuple[Topology, tuple[int | None, ...]]

# In this format 1 stands for PCIe, 2 for one NVLink, 3 for two.
_LINKS_OF_WEIGHT = {1: 0, 2: 1, 3: 2}


def read_matrices(path: Path) -> dict[str, Shape]:
    """Every entry of the file that has a matrix in one of the known forms."""
    entries = json.loads(path.read_text())
    return {
        name: _shape(entry)
        for name, entry in entries.items()
        if isinstance(entry, dict) and {"matrix", "nvlinks", "pcie", "weights"} & entry.keys()
    }


def _shape(entry: dict[str, Any]) -> Shape:
    count = entry["gpus"]
    pairs = list(combinations(range(count), 2))
    levels = tuple(_level(entry, a, b) for a, b in pairs)
    return Topology(count, levels, tuple(_nvlinks(entry, a, b) for a, b in pairs)), tuple(_numa(entry, count))


def _level(entry: dict[str, Any], a: int, b: int) -> PcieLevel:
    """A label that says NVLink, or nothing, does not say how the PCIe tree is."""
    label = _label(entry, ("pcie", "matrix"), a, b)
    return PcieLevel[label] if label in PcieLevel.__members__ else PcieLevel.UNKNOWN


def _nvlinks(entry: dict[str, Any], a: int, b: int) -> int:
    if "nvlinks" in entry:
        return int(entry["nvlinks"][a][b])
    if "weights" in entry:
        return _LINKS_OF_WEIGHT[entry["weights"][a][b]]
    label = _label(entry, ("matrix",), a, b)
    return int(label.removeprefix("NV")) if label.startswith("NV") else 0


def _label(entry: dict[str, Any], tables: tuple[str, ...], a: int, b: int) -> str:
    return next((str(entry[table][a][b]) for table in tables if table in entry), "")


def _numa(entry: dict[str, Any], count: int) -> Iterator[int | None]:
    """What the machine says, or else the CPUs that are near: equal ones are one NUMA node."""
    nodes = entry.get("numa_of_gpu", entry.get("numa_of_gpu_seen"))
    near = entry.get("cpu_affinity")
    for gpu in range(count):
        if nodes is not None:
            yield nodes[gpu]
        else:
            yield near.index(near[gpu]) if near is not None else None
