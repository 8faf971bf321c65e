"""From links and ancestors to a topology."""

from gpuloom.model.topology import PcieLevel
from gpuloom.model.wiring import NvLink, NvLinkRemote
from services.node_agent.nvml.core.topology import PairFacts, WiredGpu, Wiring, topology_of


def a_gpu(index: int, *links: NvLink, pairs: dict[str, PairFacts] | None = None) -> WiredGpu:
    return WiredGpu(f"GPU-{index}", index, f"PCI-{index}", Wiring(links, pairs or {}))


def to(index: int, kind: NvLinkRemote = NvLinkRemote.GPU) -> NvLink:
    return NvLink(0, kind, f"PCI-{index}")


def test_links_count_where_both_ends_see_them() -> None:
    topology = topology_of((a_gpu(0, to(1), to(1)), a_gpu(1, to(0))))

    assert topology is not None
    assert topology.nvlinks == (1,)


def test_an_old_driver_that_does_not_tell_the_kind_of_remote_is_understood_by_its_address() -> None:
    topology = topology_of((a_gpu(0, to(1, NvLinkRemote.UNKNOWN)), a_gpu(1, to(0, NvLinkRemote.UNKNOWN))))

    assert topology is not None
    assert (topology.nvlinks, topology.nvswitch) == ((1,), False)


def test_behind_a_switch_the_gpu_with_fewer_links_counts() -> None:
    switch = NvLink(0, NvLinkRemote.SWITCH)

    topology = topology_of((a_gpu(0, switch, switch), a_gpu(1, switch)))

    assert topology is not None
    assert (topology.nvlinks, topology.nvswitch) == ((1,), True)


def test_a_pair_is_known_whichever_side_was_asked() -> None:
    facts = {"GPU-0": PairFacts(ancestor=20)}

    topology = topology_of((a_gpu(0), a_gpu(1, pairs=facts), a_gpu(2)))

    assert topology is not None
    assert topology.pcie == (PcieLevel.PXB, PcieLevel.UNKNOWN, PcieLevel.UNKNOWN)


def test_there_is_no_topology_while_a_gpu_is_missing_from_it() -> None:
    assert topology_of(()) is None
    assert topology_of((a_gpu(0), a_gpu(2))) is None
    assert topology_of((a_gpu(0), WiredGpu("GPU-1", 1, "PCI-1", None))) is None
