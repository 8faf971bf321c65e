"""What this cluster can give: whole cards, shares, slices; and the smallest of them that would do. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuloom.catalog import Catalog
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.node import NodeMode
from gpuloom.model.request import GpuRequest, RequestKind
from gpuloom.model.snapshot import NodeFacts
from gpuloom.names import RESOURCE_GPU_MEMORY_MIB, RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU

# Of what was needed most of the time: room for the rest.
UTILIZATION_MARGIN = 1.2
MEMORY_MARGIN = 1.15
SHARE_STEP = 50
MEMORY_STEP_MIB = 256
# A change below this is not worth a restart.
LEAST_SAVING = 0.2
_TARGET_RATIO = 0.8


@dataclass(frozen=True, slots=True)
class SliceOffer:
    profile: str
    memory_mib: int
    gpus: float


@dataclass(frozen=True, slots=True)
class Offers:
    """`share_memory_mib`: the memory of the largest card that is given out in shares, 0 if none is."""

    share_memory_mib: int = 0
    whole_memory_mib: int = 0
    slices: tuple[SliceOffer, ...] = ()
    gpus: dict[str, int] = field(default_factory=dict)
    """Cards by model."""


@dataclass(frozen=True, slots=True)
class Need:
    """Of one device: utilisation (0 to 1 of a whole GPU) and memory."""

    utilization: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Fit:
    """`resources` as a container asks for them; `gpus` is how much of cards that is."""

    resources: tuple[tuple[str, int], ...]
    gpus: float

    def __str__(self) -> str:
        return ",".join(f"{name}={amount}" for name, amount in self.resources)


def offers_of(nodes: Iterable[NodeFacts], catalog: Catalog) -> Offers:
    """Only of nodes that are trusted: what can't be given is no offer."""
    share = whole = 0
    slices: dict[str, SliceOffer] = {}
    models: dict[str, int] = {}
    for facts in nodes:
        state = facts.state
        if not facts.trusted:
            continue
        for gpu in state.gpus:
            models[gpu.model] = models.get(gpu.model, 0) + 1
            if state.mode is NodeMode.GPULOOM and not gpu.mig_enabled:
                share = max(share, gpu.memory_mib)
            elif state.mode is NodeMode.NVIDIA and not gpu.mig_enabled:
                whole = max(whole, gpu.memory_mib)
            elif state.mode is NodeMode.NVIDIA:
                for instance in gpu.mig_instances:
                    profile = instance.placement.profile
                    milli = max(catalog.mig_milli(profile), default=MILLI_PER_GPU)
                    slices[profile] = SliceOffer(profile, instance.memory_mib, milli / MILLI_PER_GPU)
    ordered = tuple(sorted(slices.values(), key=lambda each: (each.gpus, each.memory_mib, each.profile)))
    return Offers(share, whole, ordered, models)


def smallest_fit(request: GpuRequest, need: Need, offers: Offers, *, may_share: bool) -> Fit | None:
    """None if nothing that is clearly smaller than the request would do."""
    now = held_gpus(request)
    if request.kind is RequestKind.WHOLE and request.count > 1:
        candidates = [_fewer_cards(request, need, offers)]
    else:
        candidates = [_slice(need, offers), _share(need, offers) if may_share else None]
    known = [fit for fit in candidates if fit is not None and fit.gpus <= now * (1 - LEAST_SAVING)]
    # Of equal ones the slice: nobody else's load reaches into it.
    return min(known, key=lambda fit: fit.gpus, default=None)


def held_gpus(request: GpuRequest) -> float:
    return request.count * request.milli / MILLI_PER_GPU


def _share(need: Need, offers: Offers) -> Fit | None:
    memory_mib = _stepped(need.memory_mib * MEMORY_MARGIN, MEMORY_STEP_MIB)
    if not offers.share_memory_mib or memory_mib > offers.share_memory_mib:
        return None
    # A share of the time is worth nothing without its memory, which others then can't have.
    by_memory = math.ceil(memory_mib / offers.share_memory_mib * MILLI_PER_GPU)
    milli = _stepped(max(need.utilization * UTILIZATION_MARGIN * MILLI_PER_GPU, by_memory), SHARE_STEP)
    if milli >= MILLI_PER_GPU:
        return None
    resources = ((RESOURCE_GPU_MILLI, milli), (RESOURCE_GPU_MEMORY_MIB, memory_mib))
    return Fit(resources, milli / MILLI_PER_GPU)


def _slice(need: Need, offers: Offers) -> Fit | None:
    for offer in offers.slices:
        enough = need.utilization * UTILIZATION_MARGIN <= offer.gpus
        if enough and need.memory_mib * MEMORY_MARGIN <= offer.memory_mib:
            return Fit(((f"nvidia.com/mig-{offer.profile}", 1),), offer.gpus)
    return None


def _fewer_cards(request: GpuRequest, need: Need, offers: Offers) -> Fit | None:
    card_mib = max(offers.whole_memory_mib, offers.share_memory_mib)
    if not card_mib:
        return None
    by_use = math.ceil(request.count * need.utilization / _TARGET_RATIO)
    by_memory = math.ceil(request.count * need.memory_mib * MEMORY_MARGIN / card_mib)
    count = max(1, by_use, by_memory)
    if request.authority == "nvidia":
        return Fit(((RESOURCE_NVIDIA_GPU, count),), float(count))
    return Fit(((RESOURCE_GPU_MILLI, count * MILLI_PER_GPU),), float(count))


def _stepped(amount: float, step: int) -> int:
    return max(step, math.ceil(amount / step) * step)
