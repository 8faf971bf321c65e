"""From links, remotes and common ancestors to the node's topology. Pure.

Two GPUs have the links that end at each other; behind NVSwitch every pair has as many as the one with fewer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from gpuloom.model.topology import MAX_GPUS_PER_NODE, PcieLevel, Topology
from gpuloom.model.wiring import NvLink, NvLinkRemote

_LEVELS = {
    0: PcieLevel.BOARD,
    10: PcieLevel.PIX,
    20: PcieLevel.PXB,
    30: PcieLevel.PHB,
    40: PcieLevel.NODE,
    50: PcieLevel.SYS,
}


@dataclass(frozen=True, slots=True)
class PairFacts:
    """None where the driver does not say."""

    ancestor: int | None = None
    nvlink_p2p: bool | None = None


@dataclass(frozen=True, slots=True)
class Wiring:
    """One GPU's links, their remote addresses in capitals, and how it relates to others by their UUID."""

    links: tuple[NvLink, ...]
    pairs: Mapping[str, PairFacts]


@dataclass(frozen=True, slots=True)
class WiredGpu:
    uuid: str
    index: int
    pci_bus_id: str
    wiring: Wiring | None


def topology_of(gpus: tuple[WiredGpu, ...]) -> Topology | None:
    """None while some GPU's wiring is not known, or the indices have a gap: half a topology misleads."""
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    if not ordered or len(ordered) > MAX_GPUS_PER_NODE:
        return None
    if [gpu.index for gpu in ordered] != list(range(len(ordered))) or any(g.wiring is None for g in ordered):
        return None
    pairs = list(combinations(ordered, 2))
    return Topology(
        gpu_count=len(ordered),
        pcie=tuple(_level(a, b) for a, b in pairs),
        nvlinks=tuple(_links(a, b) for a, b in pairs),
        nvswitch=any(_switch_links(gpu) for gpu in ordered),
    )


def _level(a: WiredGpu, b: WiredGpu) -> PcieLevel:
    ancestor = _pair(a, b).ancestor
    return PcieLevel.UNKNOWN if ancestor is None else _LEVELS.get(ancestor, PcieLevel.UNKNOWN)


def _links(a: WiredGpu, b: WiredGpu) -> int:
    # The driver may refuse traffic over links that are up: the fabric is not set up yet, or MIG is on.
    if _pair(a, b).nvlink_p2p is False:
        return 0
    direct = min(_links_to(a, b), _links_to(b, a))
    return direct or min(_switch_links(a), _switch_links(b))


def _links_to(a: WiredGpu, b: WiredGpu) -> int:
    links = () if a.wiring is None else a.wiring.links
    return sum(
        link.remote is not NvLinkRemote.SWITCH and link.remote_pci_bus_id == b.pci_bus_id for link in links
    )


def _switch_links(gpu: WiredGpu) -> int:
    links = () if gpu.wiring is None else gpu.wiring.links
    return sum(link.remote is NvLinkRemote.SWITCH for link in links)


def _pair(a: WiredGpu, b: WiredGpu) -> PairFacts:
    """Either side may have been asked."""
    for one, other in ((a, b), (b, a)):
        facts = None if one.wiring is None else one.wiring.pairs.get(other.uuid)
        if facts is not None:
            return facts
    return PairFacts()
