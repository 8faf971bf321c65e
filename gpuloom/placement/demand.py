"""What recent pods asked for: the statistics that placement prices are made of.

A value: learning from a pod gives a new one. Older pods count less with every pod learned, so it follows the
cluster within some thousand pods; it holds a bounded number of entries, and it goes to JSON and back, so that
a new leader starts with what the old one knew. Holds no pod names. The caller shows it every GPU pod once.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuloom.catalog import load_catalog
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind

VERSION = 1
# Half as much after 1,386 pods: long enough to know rare shapes, short enough to follow a day's change.
KEPT_PER_POD = 0.9995
MAX_ENTRIES = 64
MAX_JSON_CHARS = 65_536

# More than any machine has; a pod that asks for more must not bend the averages.
_MAX_CORES = 4096
_MAX_MEMORY_MIB = 1 << 26
_MAX_AMOUNT = 1e15
_FIRST_REPRICING_PODS = 16
_REPRICING_PODS = 512
_BYTES_PER_MIB = 1 << 20

Weights = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Demand:
    """Weighted sums over recent GPU pods; a pod learned just now weighs 1.

    `shares` counts pods by the milli they want of one card, `sets` by "authority/number of cards" for two
    cards and more, `pinned` sums GPUs by "model/name" or "architecture/name" of pods that take no other.
    """

    pods: float = 0.0
    gpus: float = 0.0
    cpu_cores: float = 0.0
    memory_mib: float = 0.0
    shares: Weights = field(default_factory=dict)
    sets: Weights = field(default_factory=dict)
    pinned: Weights = field(default_factory=dict)

    def with_pod(self, request: PodRequest) -> "Demand":
        """The statistics after one more pod. A pod without GPUs is no demand of this kind."""
        gpu = request.gpu
        gpus = gpu.count * nominal_milli(gpu) / MILLI_PER_GPU
        if gpus <= 0:
            return self
        cores, memory_mib = request.cpu_milli / 1000, request.memory_bytes / _BYTES_PER_MIB
        return Demand(
            pods=self.pods * KEPT_PER_POD + 1.0,
            gpus=self.gpus * KEPT_PER_POD + gpus,
            cpu_cores=self.cpu_cores * KEPT_PER_POD + min(cores, _MAX_CORES),
            memory_mib=self.memory_mib * KEPT_PER_POD + min(memory_mib, _MAX_MEMORY_MIB),
            shares=_added(self.shares, _shares_of(gpu)),
            sets=_added(self.sets, _sets_of(gpu)),
            pinned=_added(self.pinned, _pins_of(gpu, gpus)),
        )

    def to_json(self) -> str:
        values: dict[str, object] = {name: _rounded(getattr(self, name)) for name in _NUMBERS}
        for name in _TABLES:
            values[name] = {key: _rounded(weight) for key, weight in sorted(getattr(self, name).items())}
        return json.dumps({"v": VERSION, **values}, separators=(",", ":"), sort_keys=True)


def demand_from_json(text: str) -> Demand:
    """Raise ValueError for anything that `to_json` did not write."""
    if len(text) > MAX_JSON_CHARS:
        raise ValueError(f"demand statistics are longer than {MAX_JSON_CHARS} characters")
    try:
        read = json.loads(text)
    except RecursionError:
        raise ValueError("demand statistics are nested too deeply") from None
    if not isinstance(read, dict) or read.get("v") != VERSION:
        raise ValueError(f"demand statistics are not of version {VERSION}")
    pods, gpus, cpu_cores, memory_mib = (_amount(name, read.get(name)) for name in _NUMBERS)
    shares, sets, pinned = (_table(name, read.get(name)) for name in _TABLES)
    if not all(_is_share(key) for key in shares) or not all(_is_set(key) for key in sets):
        raise ValueError("demand statistics have an unknown share or set")
    return Demand(pods, gpus, cpu_cores, memory_mib, shares, sets, pinned)


def nominal_milli(gpu: GpuRequest) -> int:
    """The part of a card that one of the devices stands for; of NVIDIA's slices, what the catalogue says."""
    if gpu.kind is RequestKind.MIG and gpu.authority is Authority.NVIDIA:
        return min(load_catalog().mig_milli(gpu.mig_profile or ""), default=MILLI_PER_GPU)
    return gpu.milli


def pods_until_repricing(learned: int) -> int:
    """After how many more pods prices should be made anew: soon at first, seldom once many were learned."""
    return max(_FIRST_REPRICING_PODS, min(learned, _REPRICING_PODS))


def set_key(authority: Authority, count: int) -> str:
    return f"{authority}/{count}"


def model_key(model: str) -> str:
    return f"model/{model}"


def architecture_key(architecture: str) -> str:
    return f"architecture/{architecture}"


_NUMBERS = ("pods", "gpus", "cpu_cores", "memory_mib")
_TABLES = ("shares", "sets", "pinned")


def _shares_of(gpu: GpuRequest) -> Weights:
    return {str(gpu.milli): 1.0} if gpu.kind is RequestKind.SHARE else {}


def _sets_of(gpu: GpuRequest) -> Weights:
    return {set_key(gpu.authority, gpu.count): 1.0} if gpu.kind is RequestKind.WHOLE and gpu.count > 1 else {}


def _pins_of(gpu: GpuRequest, gpus: float) -> Weights:
    """A pod that takes several models is a part of the demand for each."""
    if gpu.models:
        return {model_key(model): gpus / len(gpu.models) for model in gpu.models}
    return {architecture_key(name): gpus / len(gpu.architectures) for name in gpu.architectures}


def _added(table: Weights, more: Weights) -> Weights:
    kept = {key: weight * KEPT_PER_POD for key, weight in table.items()}
    for key, weight in more.items():
        kept[key] = kept.get(key, 0.0) + weight
    if len(kept) <= MAX_ENTRIES:
        return kept
    heaviest = sorted(kept, key=lambda key: (-kept[key], key))[: MAX_ENTRIES // 2]
    # The newest stays, or a full table would never learn a new size.
    return {key: kept[key] for key in (*heaviest, *more)}


def _rounded(amount: float) -> float:
    return round(amount, 6)


def _table(name: str, read: object) -> dict[str, float]:
    if not isinstance(read, dict) or len(read) > MAX_ENTRIES:
        raise ValueError(f"demand statistics: {name} is not a table of at most {MAX_ENTRIES} entries")
    return {key: _amount(name, weight) for key, weight in read.items()}


def _amount(name: str, read: object) -> float:
    if isinstance(read, bool) or not isinstance(read, int | float):
        raise ValueError(f"demand statistics: {name} has no number")
    if not 0 <= read <= _MAX_AMOUNT:
        raise ValueError(f"demand statistics: {name} has an impossible number")
    return float(read)


def _is_share(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) <= 3 and int(key) > 0


def _is_set(key: str) -> bool:
    authority, _, count = key.partition("/")
    return authority in set(Authority) and count.isascii() and count.isdigit() and len(count) <= 9
