"""The potential of a node: what its free capacity is not worth to the pods that usually come.

A placement is as good as it raises this little. All amounts are millionths of a GPU, as integers, so that
sums are exact and equal nodes stay equal. The parts are:

resource  minus the worth of every card's free share (`stock`), so that no useless rest is left;
          plus small concave terms of free GPUs, free CPU and single shares: busy nodes and tight cards first,
          or, where the whole cluster runs out of CPU first, a convex one of free CPU instead;
          minus what pods that take no other model will need of this one;
          plus a price for taking away one of the last nodes that could hold several GPUs together.
balance   the GPUs that will find no CPU, and half as much for memory, if pods ask as they did lately.

Knows no requests and no scores; works on arrays, one entry per node, and on single nodes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.request import Authority
from gpuloom.placement.demand import Demand, architecture_key, model_key, set_key
from gpuloom.placement.stock import MICRO_PER_GPU, share_values

# Found on a public trace and on lists made from it; tests/bench/placement says how.
TIGHT_CARD_WEIGHT = 0.15
BUSY_GPUS_WEIGHT = 0.25
BUSY_CPU_WEIGHT = 0.15
CPU_WEIGHT = 1.0
MEMORY_WEIGHT = 0.5
# Over how many cores the shortage of CPU sets in; memory's follows in proportion. Sharply: where it sets in
# early, pods leave busy nodes for the sake of cores that nobody will miss, and break up sets of free cards.
SOFT_CORES = 0.5
# CPU used over GPU used, both as parts of all there is. Far above 1 CPU runs out first and GPUs stay free in
# any case. Then packing GPUs gains nothing, and CPU is kept level between nodes: what is left serves pods
# that want few cores for a GPU, rather than a few that want many.
ENOUGH_CPU = 1.1
SHORT_OF_CPU = 1.25
LEVEL_CPU_WEIGHT = 1.0
# As if this part of the GPUs were in use with the CPU that GPU pods want: what runs on every node anyway says
# little about the CPU that will be wanted while hardly any GPU is in use.
PRIOR_USED_PART = 0.1
# How late the price of sets sets in, as nodes that could hold them become as few as the sets that will come.
SET_PRICE_POWER = 4

# What a GPU's pods want until enough of them were seen: as if this many GPUs had been asked for that way.
PRIOR_GPUS = 10.0
PRIOR_CORES_PER_GPU = 8.0
PRIOR_MIB_PER_GPU = 32_768.0

_BYTES_PER_MIB = 1 << 20

Micros = NDArray[np.int64]
Amounts = NDArray[np.int64]
Floats = NDArray[np.float64]
# One formula serves single nodes and arrays of them.
Value = TypeVar("Value", float, Floats)


@dataclass(frozen=True, slots=True)
class Supply:
    """What the cluster has: free GPUs by model and architecture, and how far it is used.

    The amounts are those of nodes that have usable GPUs and whose host is known.
    """

    free: Mapping[tuple[str, str], float] = field(default_factory=dict)
    gpus: float = 0.0
    used_gpus: float = 0.0
    cores: float = 0.0
    used_cores: float = 0.0

    @property
    def free_gpus(self) -> float:
        return sum(self.free.values())


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """What demand makes of free capacity. `card_micro` is a card's part of the potential by its free milli.

    `busy_gpus` and `busy_cpu` are weights of the concave terms; `pins_micro` are by model and architecture;
    `sets` is how many pods for so many cards of an authority will come until all GPUs are taken.
    """

    card_micro: Micros
    cores_per_gpu: float
    mib_per_gpu: float
    busy_gpus: float
    busy_cpu: float
    pins_micro: Mapping[tuple[str, str], int]
    sets: Mapping[Authority, tuple[tuple[int, float], ...]]

    @property
    def highest_pin_micro(self) -> int:
        return max(self.pins_micro.values(), default=0)


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What is free on each node; where the host's amounts are not known they are 0 and count for nothing."""

    gpu_milli: Amounts
    cpu_milli: Amounts
    memory_bytes: Amounts
    host_known: NDArray[np.bool_]

    def at(self, rows: Amounts) -> "Room":
        return Room(
            self.gpu_milli[rows], self.cpu_milli[rows], self.memory_bytes[rows], self.host_known[rows]
        )

    def less(self, gpu_milli: Amounts | int, cpu_milli: int, memory_bytes: int) -> "Room":
        return Room(
            np.maximum(self.gpu_milli - gpu_milli, 0),
            np.maximum(self.cpu_milli - cpu_milli, 0),
            np.maximum(self.memory_bytes - memory_bytes, 0),
            self.host_known,
        )


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """`Room` of a single node."""

    gpu_milli: int
    cpu_milli: int
    memory_bytes: int
    host_known: bool

    def less(self, gpu_milli: int, cpu_milli: int, memory_bytes: int) -> "NodeRoom":
        return NodeRoom(
            max(self.gpu_milli - gpu_milli, 0),
            max(self.cpu_milli - cpu_milli, 0),
            max(self.memory_bytes - memory_bytes, 0),
            self.host_known,
        )


def prices_for(demand: Demand, supply: Supply) -> Prices:
    """Takes some 10 ms, for the worth of shares; everything else is arithmetic on small tables."""
    gpus = demand.gpus + PRIOR_GPUS
    values = share_values({int(milli): weight for milli, weight in demand.shares.items()})
    cores_per_gpu = (demand.cpu_cores + PRIOR_GPUS * PRIOR_CORES_PER_GPU) / gpus
    short = _shortage_of_cpu(cores_per_gpu, supply)
    tight = (1 - short) * TIGHT_CARD_WEIGHT * np.sqrt(np.arange(MILLI_PER_GPU + 1) / MILLI_PER_GPU)
    return Prices(
        card_micro=_micro(tight) - values,
        cores_per_gpu=cores_per_gpu,
        mib_per_gpu=(demand.memory_mib + PRIOR_GPUS * PRIOR_MIB_PER_GPU) / gpus,
        busy_gpus=(1 - short) * BUSY_GPUS_WEIGHT,
        busy_cpu=(1 - short) * BUSY_CPU_WEIGHT - short * LEVEL_CPU_WEIGHT,
        pins_micro={kind: _pin_micro(kind, demand, supply) for kind in supply.free},
        sets={authority: _expected_sets(demand, authority, supply.free_gpus) for authority in Authority},
    )


@lru_cache(maxsize=1)
def neutral_prices() -> Prices:
    """Before anything was learned."""
    return prices_for(Demand(), Supply())


def spread_micro(room: Room, prices: Prices) -> Micros:
    """The concave terms: taking from little lowers them more than taking from much."""
    cpu_gpus = room.cpu_milli / (1000 * prices.cores_per_gpu)
    known = room.host_known.astype(np.float64)
    return _micro(_spread(room.gpu_milli / MILLI_PER_GPU, cpu_gpus, known, prices, np.sqrt))


def spread_micro_of_one(room: NodeRoom, prices: Prices) -> int:
    """`spread_micro` of a single node, without arrays."""
    cpu_gpus = room.cpu_milli / (1000 * prices.cores_per_gpu)
    known = float(room.host_known)
    return round(_spread(room.gpu_milli / MILLI_PER_GPU, cpu_gpus, known, prices, math.sqrt) * MICRO_PER_GPU)


def starved_micro(room: Room, prices: Prices) -> Micros:
    """The GPUs that will find no CPU or memory: how far the wants of the free GPUs exceed what is free.

    Softly: how the coming pods differ from the average is not known.
    """
    gpus = room.gpu_milli / MILLI_PER_GPU
    lacking_cpu = gpus - room.cpu_milli / (1000 * prices.cores_per_gpu)
    lacking_memory = gpus - room.memory_bytes / (_BYTES_PER_MIB * prices.mib_per_gpu)
    return _micro(_starved(lacking_cpu, lacking_memory, prices, _softly) * room.host_known)


def starved_micro_of_one(room: NodeRoom, prices: Prices) -> int:
    """`starved_micro` of a single node, without arrays."""
    if not room.host_known:
        return 0
    gpus = room.gpu_milli / MILLI_PER_GPU
    lacking_cpu = gpus - room.cpu_milli / (1000 * prices.cores_per_gpu)
    lacking_memory = gpus - room.memory_bytes / (_BYTES_PER_MIB * prices.mib_per_gpu)
    return round(_starved(lacking_cpu, lacking_memory, prices, _softly_of_one) * MICRO_PER_GPU)


def set_prices_micro(
    prices: Prices, authority: Authority, able: Mapping[int, int]
) -> tuple[tuple[int, int], ...]:
    """By number of cards, the price of taking away a node that could hold so many; `able` such are left."""
    found = []
    for count, expected in prices.sets[authority]:
        scarcity = min(1.0, expected / max(1, able.get(count, 0)))
        found.append((count, round(count * MICRO_PER_GPU * scarcity**SET_PRICE_POWER)))
    return tuple(found)


def _spread(
    gpus: Value, cpu_gpus: Value, host_known: Value, prices: Prices, sqrt: Callable[[Value], Value]
) -> Value:
    return prices.busy_gpus * sqrt(gpus) + prices.busy_cpu * sqrt(cpu_gpus) * host_known


def _starved(
    lacking_cpu: Value, lacking_memory: Value, prices: Prices, softly: Callable[[Value], Value]
) -> Value:
    soft_gpus = SOFT_CORES / prices.cores_per_gpu
    cpu, memory = softly(lacking_cpu / soft_gpus), softly(lacking_memory / soft_gpus)
    return soft_gpus * (CPU_WEIGHT * cpu + MEMORY_WEIGHT * memory)


def _softly(lacking: Floats) -> Floats:
    """What is lacking, and hardly anything where nothing is."""
    soft: Floats = np.logaddexp(0.0, lacking)
    return soft


def _softly_of_one(lacking: float) -> float:
    """As numpy works it out."""
    return max(lacking, 0.0) + math.log1p(math.exp(-abs(lacking)))


def _micro(gpus: NDArray[np.float64]) -> Micros:
    rounded: Micros = np.rint(gpus * MICRO_PER_GPU).astype(np.int64)
    return rounded


def _shortage_of_cpu(cores_per_gpu: float, supply: Supply) -> float:
    """0 where CPU lasts as long as GPUs do, 1 where it runs out long before."""
    if not supply.gpus or not supply.cores:
        return 0.0
    prior_gpus = PRIOR_USED_PART * supply.gpus
    used_gpus = supply.used_gpus + prior_gpus
    used_cores = supply.used_cores + prior_gpus * cores_per_gpu
    ratio = (used_cores / supply.cores) / (used_gpus / supply.gpus)
    return min(1.0, max(0.0, (ratio - ENOUGH_CPU) / (SHORT_OF_CPU - ENOUGH_CPU)))


def _pin_micro(kind: tuple[str, str], demand: Demand, supply: Supply) -> int:
    """The part of demand that takes only this model or architecture over its part of what is free."""
    model, architecture = kind
    if not demand.pinned:
        return 0
    of_model = sum(gpus for other, gpus in supply.free.items() if other[0] == model)
    of_architecture = sum(gpus for other, gpus in supply.free.items() if other[1] == architecture)
    needed = demand.pinned.get(model_key(model), 0.0) / max(1.0, of_model)
    needed += demand.pinned.get(architecture_key(architecture), 0.0) / max(1.0, of_architecture)
    return round(MICRO_PER_GPU * min(1.0, needed * supply.free_gpus / (demand.gpus + PRIOR_GPUS)))


def _expected_sets(demand: Demand, authority: Authority, free_gpus: float) -> tuple[tuple[int, float], ...]:
    prefix = set_key(authority, 0)[:-1]
    counts = sorted(int(key.removeprefix(prefix)) for key in demand.sets if key.startswith(prefix))
    coming = free_gpus / (demand.gpus + PRIOR_GPUS)
    return tuple((count, demand.sets[set_key(authority, count)] * coming) for count in counts if count > 1)
