"""Reads the catalogue's files and checks every entry.

Decides whether the data is consistent; a mistake is a CatalogError that names the file and the entry.
Reads only the files packaged with this module, once.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib import resources
from typing import Any, TypeVar

from gpuloom.catalog.entries import Catalog, GpuModel, InstanceType, LinkShape, plain_name
from gpuloom.errors import GpuloomError
from gpuloom.model.mig import MigProfile
from gpuloom.model.topology import MAX_GPUS_PER_NODE, PcieLevel, Topology, pair_count

GPUS_FILE = "gpus.toml"
MIG_FILE = "mig.toml"
TOPOLOGIES_FILE = "topologies.toml"
INSTANCES_FILE = "instances.toml"
FILES = (GPUS_FILE, MIG_FILE, TOPOLOGIES_FILE, INSTANCES_FILE)

MAX_NVLINKS_PER_PAIR = 36

_PCIE_LETTERS = {
    "S": PcieLevel.SYS,
    "N": PcieLevel.NODE,
    "H": PcieLevel.PHB,
    "X": PcieLevel.PXB,
    "I": PcieLevel.PIX,
    "B": PcieLevel.BOARD,
}

Document = Mapping[str, Any]
Geometry = tuple[int, tuple[MigProfile, ...]]
T = TypeVar("T")


class CatalogError(GpuloomError):
    """The catalogue's data is wrong; the text names the file and the entry."""


@cache
def load_catalog() -> Catalog:
    """The catalogue that comes with this version."""
    folder = resources.files("gpuloom.catalog") / "data"
    return build_catalog({name: _parsed(name, (folder / name).read_text("utf-8")) for name in FILES})


def build_catalog(documents: Mapping[str, Document]) -> Catalog:
    """Check the four parsed files against each other. Raise CatalogError for the first mistake."""
    geometries = dict(_each(documents, MIG_FILE, "geometry", _geometry))
    architectures = _architectures(documents[GPUS_FILE])
    known = frozenset(architectures)
    gpus = dict(_each(documents, GPUS_FILE, "gpu", lambda row: _gpu(row, geometries, known)))
    _refuse_shared_names(gpus.values())
    shapes = dict(_each(documents, TOPOLOGIES_FILE, "topology", _shape))
    instances: list[InstanceType] = []
    for provider in documents[INSTANCES_FILE]:
        read = partial(_instance, provider, gpus, shapes)
        instances.extend(entry for _, entry in _each(documents, INSTANCES_FILE, provider, read, "type"))
    return Catalog(gpus.values(), shapes.values(), instances, architectures)


def _parsed(file: str, text: str) -> Document:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{file}: {error}") from None


def _each(
    documents: Mapping[str, Document],
    file: str,
    section: str,
    read: Callable[[Document], T],
    key: str = "name",
) -> Iterator[tuple[str, T]]:
    """Read every row of a section; whatever is wrong with a row is told with its file and name."""
    seen: set[str] = set()
    rows = documents[file].get(section, [])
    if not isinstance(rows, list):
        raise CatalogError(f"{file}: {section} must be a list of entries")
    for number, row in enumerate(rows, start=1):
        name = row.get(key) if isinstance(row, dict) else None
        if not isinstance(name, str) or not name:
            raise CatalogError(f"{file}: entry {number} of {section} has no {key}")
        if name in seen:
            raise CatalogError(f"{file}: {section} {name} is there twice")
        seen.add(name)
        try:
            yield name, read(row)
        except KeyError as error:
            raise CatalogError(f"{file}: {section} {name}: {error.args[0]} is missing") from None
        except (ValueError, TypeError) as error:
            raise CatalogError(f"{file}: {section} {name}: {error}") from None


def _architectures(document: Document) -> dict[str, tuple[str, ...]]:
    rows = document.get("architectures")
    if not isinstance(rows, dict) or not rows:
        raise CatalogError(f"{GPUS_FILE}: the table architectures is missing")
    return {name: tuple(spellings) for name, spellings in rows.items()}


def _gpu(row: Document, geometries: Mapping[str, Geometry], architectures: frozenset[str]) -> GpuModel:
    if row["architecture"] not in architectures:
        raise ValueError(f"architecture {row['architecture']!r} is not one of {sorted(architectures)}")
    geometry = row.get("mig")
    if geometry is not None and geometry not in geometries:
        raise ValueError(f"{MIG_FILE} has no geometry {geometry!r}")
    slices, profiles = geometries[geometry] if geometry is not None else (0, ())
    gpu = GpuModel(
        name=row["name"],
        family=row["family"],
        aliases=tuple(row["aliases"]),
        architecture=row["architecture"],
        memory_mib=_positive(row, "memory_mib"),
        power_w=_positive(row, "power_w"),
        mig_slices=slices,
        mig_profiles=profiles,
    )
    for profile in profiles:
        if profile.memory_mib > gpu.memory_mib:
            raise ValueError(f"profile {profile.name} has more memory than the GPU")
    return gpu


def _refuse_shared_names(gpus: Iterable[GpuModel]) -> None:
    owner: dict[str, str] = {}
    for gpu in gpus:
        for name in (gpu.name, *gpu.aliases):
            other = owner.setdefault(plain_name(name), gpu.name)
            if other != gpu.name:
                raise CatalogError(f"{GPUS_FILE}: gpu {gpu.name}: the name {name!r} belongs to {other}")


def _geometry(row: Document) -> Geometry:
    memory_slices, compute_slices = _positive(row, "memory_slices"), _positive(row, "compute_slices")
    profiles = tuple(_profile(entry, memory_slices, compute_slices) for entry in row["profiles"])
    if len({profile.name for profile in profiles}) != len(profiles):
        raise ValueError("a profile is there twice")
    return memory_slices, profiles


def _profile(row: Document, memory_slices: int, compute_slices: int) -> MigProfile:
    profile = MigProfile(
        name=row["name"],
        compute_slices=_positive(row, "compute"),
        memory_slices=_positive(row, "memory"),
        memory_mib=_positive(row, "mib"),
        starts=tuple(row["starts"]),
        max_count=_positive(row, "max"),
    )
    last = memory_slices - profile.memory_slices
    if not profile.starts or any(not 0 <= start <= last for start in profile.starts):
        raise ValueError(f"profile {profile.name}: starts must lie between 0 and {last}")
    if list(profile.starts) != sorted(set(profile.starts)):
        raise ValueError(f"profile {profile.name}: starts must ascend")
    if profile.compute_slices * profile.max_count > compute_slices:
        raise ValueError(f"profile {profile.name}: {profile.max_count} of it need too many compute slices")
    if profile.max_count > len(profile.starts):
        raise ValueError(f"profile {profile.name}: more instances than starts")
    return profile


def _shape(row: Document) -> LinkShape:
    gpus = _positive(row, "gpus")
    if gpus > MAX_GPUS_PER_NODE:
        raise ValueError(f"gpus must be at most {MAX_GPUS_PER_NODE}")
    numa = tuple(row.get("numa", (None,) * gpus))
    if len(numa) != gpus:
        raise ValueError(f"numa has {len(numa)} entries for {gpus} GPUs")
    topology = Topology(
        gpu_count=gpus,
        pcie=_pairs(row, "pcie", gpus, _level),
        nvlinks=_pairs(row, "nvlinks", gpus, _link_count),
        nvswitch=bool(row["nvswitch"]),
    )
    if topology.nvswitch and 0 in topology.nvlinks:
        raise ValueError("behind NVSwitch every pair has NVLinks")
    return LinkShape(row["name"], topology, numa)


def _pairs(row: Document, key: str, gpus: int, read: Callable[[str], T]) -> tuple[T, ...]:
    """The pairs a < b of a square of words; the square must be symmetric."""
    value = row[key]
    if not isinstance(value, list):
        return (read(str(value)),) * pair_count(gpus)
    square = [line.split() for line in value]
    if len(square) != gpus or any(len(line) != gpus for line in square):
        raise ValueError(f"{key} must have {gpus} rows of {gpus} words")
    for a in range(gpus):
        if square[a][a] != ".":
            raise ValueError(f'{key}: row {a} must have "." at place {a}')
        for b in range(a):
            if square[a][b] != square[b][a]:
                raise ValueError(f"{key} is not symmetric at {b},{a}")
    return tuple(read(square[a][b]) for a in range(gpus) for b in range(a + 1, gpus))


def _level(letter: str) -> PcieLevel:
    if letter not in _PCIE_LETTERS:
        raise ValueError(f"pcie has {letter!r}; its letters are {' '.join(_PCIE_LETTERS)}")
    return _PCIE_LETTERS[letter]


def _link_count(word: str) -> int:
    if not word.isdigit() or int(word) > MAX_NVLINKS_PER_PAIR:
        raise ValueError(f"nvlinks has {word!r}; it must be 0 to {MAX_NVLINKS_PER_PAIR}")
    return int(word)


def _instance(
    provider: str, gpus: Mapping[str, GpuModel], shapes: Mapping[str, LinkShape], row: Document
) -> InstanceType:
    if row["gpu"] not in gpus:
        raise ValueError(f"{GPUS_FILE} has no gpu {row['gpu']!r}")
    if row["topology"] not in shapes:
        raise ValueError(f"{TOPOLOGIES_FILE} has no topology {row['topology']!r}")
    shape, count = shapes[row["topology"]], _positive(row, "gpus")
    if shape.topology.gpu_count != count:
        raise ValueError(f"topology {shape.name} is for {shape.topology.gpu_count} GPUs, not {count}")
    return InstanceType(
        provider=provider,
        name=row["type"],
        gpu=gpus[row["gpu"]],
        gpu_count=count,
        vcpus=_positive(row, "vcpus"),
        memory_gib=_positive(row, "memory_gib"),
        shape=shape,
    )


def _positive(row: Document, key: str) -> int:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key} must be a whole number above 0, not {value!r}")
    return value
