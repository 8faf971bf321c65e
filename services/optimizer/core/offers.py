"""What this cluster can give: whole cards, shares, slices; and the smallest of them that would do. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuloom.catalog import Catalog, mig_resource, slice_milli
from gpuloom.model.gpu import MILLI_PER_GPU, Gpu
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
_MOST_UTILIZATION = 2.0
_MOST_MEMORY_MIB = 16.0 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SliceOffer:
    """`on_demand`: cut for the pod by our own nodes; else given out by NVIDIA's plugin, as it is."""

    profile: str
    memory_mib: int
    gpus: float
    on_demand: bool = False


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

    @property
    def believable(self) -> bool:
        """Not so of what is no number, or of no device: a spoiled history must not decide anything."""
        return 0 <= self.utilization <= _MOST_UTILIZATION and 0 <= self.memory_mib <= _MOST_MEMORY_MIB


@dataclass(frozen=True, slots=True)
class Fit:
    """`resources` as a container asks for them; `gpus` is how much of cards that is.

    `mig_profile`: what the pod must be annotated with, because our own nodes cut it; else empty.
    """

    resources: tuple[tuple[str, int], ...]
    gpus: float
    mig_profile: str = ""

    def __str__(self) -> str:
        amounts = [f"{name}={amount}" for name, amount in self.resources]
        return ",".join([*amounts, f"mig={self.mig_profile}"] if self.mig_profile else amounts)


def offers_of(nodes: Iterable[NodeFacts], catalog: Catalog) -> Offers:
    """Only of nodes that are trusted: what can't be given is no offer."""
    share = whole = 0
    slices: dict[tuple[str, bool], SliceOffer] = {}
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
            else:
                for offer in _slices_of(gpu, state.mode, catalog):
                    key = offer.profile, offer.on_demand
                    slices[key] = min(offer, slices.get(key, offer), key=lambda each: each.gpus)
    ordered = sorted(slices.values(), key=lambda each: (each.gpus, each.memory_mib, each.profile))
    return Offers(share, whole, tuple(ordered), models)


def _slices_of(gpu: Gpu, mode: NodeMode, catalog: Catalog) -> list[SliceOffer]:
    """Of NVIDIA's plugin those that exist, of our own nodes all that a card of its model can be cut into."""
    on_demand = mode is NodeMode.GPULOOM
    model = catalog.find_gpu(gpu.model)
    # One that is not in the catalogue is cut into nothing that anybody could ask for.
    profiles = () if model is None else model.mig_profiles
    if on_demand:
        memory = {one.name: one.memory_mib for one in profiles}
    else:
        memory = {each.placement.profile: each.memory_mib for each in gpu.mig_instances}
    # The same name is another part of another model: 1g.10gb is an eighth of 80 GB, and a quarter of 40.
    milli = {one.name: slice_milli(one.memory_slices, model.mig_slices) for one in profiles if model}
    return [
        SliceOffer(name, mib, milli.get(name, MILLI_PER_GPU) / MILLI_PER_GPU, on_demand)
        for name, mib in memory.items()
    ]


def smallest_fit(request: GpuRequest, need: Need, offers: Offers, *, may_share: bool) -> Fit | None:
    """None if nothing that is clearly smaller than the request would do."""
    if not need.believable:
        return None
    if request.kind is RequestKind.WHOLE and request.count > 1:
        candidates = [_fewer_cards(request, need, offers)]
    else:
        candidates = [
            fit_slice(need, offers, on_demand=False),
            fit_slice(need, offers, on_demand=True),
            fit_share(need, offers) if may_share else None,
        ]
    known = [fit for fit in candidates if fit is not None and is_clearly_smaller(fit, request)]
    # Of equal ones the slice: nobody else's load reaches into it.
    return min(known, key=lambda fit: fit.gpus, default=None)


def is_clearly_smaller(fit: Fit, request: GpuRequest) -> bool:
    return fit.gpus <= held_gpus(request) * (1 - LEAST_SAVING)


def held_gpus(request: GpuRequest) -> float:
    return request.count * request.milli / MILLI_PER_GPU


def fit_share(need: Need, offers: Offers) -> Fit | None:
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


def fit_slice(need: Need, offers: Offers, *, on_demand: bool) -> Fit | None:
    for offer in offers.slices:
        enough = need.utilization * UTILIZATION_MARGIN <= offer.gpus
        if (
            offer.on_demand is not on_demand
            or not enough
            or need.memory_mib * MEMORY_MARGIN > offer.memory_mib
        ):
            continue
        if on_demand:
            milli = round(offer.gpus * MILLI_PER_GPU)
            return Fit(((RESOURCE_GPU_MILLI, milli),), offer.gpus, offer.profile)
        return Fit(((mig_resource(offer.profile), 1),), offer.gpus)
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
