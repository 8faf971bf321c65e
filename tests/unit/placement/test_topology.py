from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.catalog import load_catalog
from gpuloom.model.request import TopologyPreference
from gpuloom.model.topology import PcieLevel, Topology, pair_count
from gpuloom.placement.topology import TopologyTable
from tests.effort import examples

NONE, NVLINK = TopologyPreference.NONE, TopologyPreference.NVLINK
NUMA, PCIE = TopologyPreference.NUMA, TopologyPreference.PCIE


def table_of(shape: str) -> TopologyTable:
    found = load_catalog().shape(shape)
    return TopologyTable.for_shape(found.topology, found.numa)


def mask(*positions: int) -> int:
    return sum(1 << i for i in positions)


@st.composite
def shapes(draw: st.DrawFn, max_gpus: int = 8) -> tuple[Topology, tuple[int | None, ...]]:
    gpus = draw(st.integers(1, max_gpus))
    pairs = pair_count(gpus)
    levels = st.lists(st.sampled_from(list(PcieLevel)), min_size=pairs, max_size=pairs)
    links = st.lists(st.sampled_from([0, 0, 1, 2, 12]), min_size=pairs, max_size=pairs)
    numa = draw(st.lists(st.sampled_from([None, 0, 1]), min_size=gpus, max_size=gpus))
    return Topology(gpus, tuple(draw(levels)), tuple(draw(links))), tuple(numa)


class BruteForce:
    """The module's five rules, written again without masks or tables."""

    def __init__(self, topology: Topology, numa: tuple[int | None, ...]) -> None:
        self.topology = topology
        self.numa = numa

    def level(self, a: int, b: int) -> int:
        return max(1, self.topology.pcie_level(a, b))

    def one_numa(self, a: int, b: int) -> bool:
        return self.numa[a] is not None and self.numa[a] == self.numa[b]

    def link_score(self, gpus: tuple[int, ...]) -> int:
        return sum(
            10 * self.level(a, b) + 100 * self.topology.nvlink_count(a, b) for a, b in combinations(gpus, 2)
        )

    def wished(self, gpus: tuple[int, ...], preference: TopologyPreference) -> float:
        pairs = list(combinations(gpus, 2))
        if not pairs or preference is NONE:
            return 0.0
        numa = sum(self.one_numa(a, b) for a, b in pairs) / len(pairs)
        if preference is NVLINK:
            return float(sum(self.topology.nvlink_count(a, b) for a, b in pairs))
        if preference is NUMA:
            latency = sum((6 - self.level(a, b)) / 5 for a, b in pairs) / len(pairs)
            return round(20 * numa + 20 * (1 - latency), 9)
        return round(20 * sum(self.level(a, b) >= 5 for a, b in pairs) / len(pairs) + 10 * numa, 9)

    def satisfied(self, gpus: tuple[int, ...], preference: TopologyPreference) -> bool:
        tests: dict[TopologyPreference, Callable[[int, int], bool]] = {
            NONE: lambda a, b: True,
            NVLINK: lambda a, b: self.topology.nvlink_count(a, b) > 0,
            NUMA: self.one_numa,
            PCIE: lambda a, b: self.level(a, b) >= 5,
        }
        return all(tests[preference](a, b) for a, b in combinations(gpus, 2))

    def best(
        self, free: list[int], count: int, preference: TopologyPreference, required: bool
    ) -> tuple[int, ...]:
        sets = [
            gpus for gpus in combinations(free, count) if not required or self.satisfied(gpus, preference)
        ]
        if not sets or not count:
            return ()

        def order(gpus: tuple[int, ...]) -> tuple[float, int, int, tuple[int, ...]]:
            rest = tuple(i for i in free if i not in gpus)
            lower_first = tuple(-i for i in gpus)
            return self.wished(gpus, preference), self.link_score(gpus), self.link_score(rest), lower_first

        return max(sets, key=order)


@settings(max_examples=examples(150))
@given(shapes(), st.integers(0, 255), st.sampled_from(list(TopologyPreference)), st.booleans())
def test_the_table_is_the_exact_optimum(
    shape: tuple[Topology, tuple[int | None, ...]], free: int, preference: TopologyPreference, required: bool
) -> None:
    topology, numa = shape
    positions = [i for i in range(topology.gpu_count) if free >> i & 1]
    table = TopologyTable.for_shape(topology, numa)

    for count in range(len(positions) + 2):
        expected = BruteForce(topology, numa).best(positions, count, preference, required)
        assert table.best(mask(*positions), count, preference, required) == mask(*expected)


@settings(max_examples=examples(12))
@given(st.integers(0, 2**10 - 1), st.data())
def test_above_eight_gpus_the_answer_is_exact_too(free: int, data: st.DataObject) -> None:
    pairs = pair_count(10)
    levels = data.draw(st.lists(st.sampled_from(list(PcieLevel)), min_size=pairs, max_size=pairs))
    links = data.draw(st.lists(st.sampled_from([0, 0, 4]), min_size=pairs, max_size=pairs))
    preference = data.draw(st.sampled_from(list(TopologyPreference)))
    topology, numa = Topology(10, tuple(levels), tuple(links)), (0, 0, 0, 0, 0, 1, 1, 1, 1, None)
    positions = [i for i in range(10) if free >> i & 1]

    for count in (1, 3, 5):
        expected = BruteForce(topology, numa).best(positions, count, preference, True)
        assert TopologyTable.for_shape(topology, numa).best(free, count, preference, True) == mask(*expected)


@settings(max_examples=examples(100))
@given(shapes(), st.integers(0, 255), st.sampled_from(list(TopologyPreference)))
def test_scores_follow_the_contract(
    shape: tuple[Topology, tuple[int | None, ...]], chosen: int, preference: TopologyPreference
) -> None:
    topology, numa = shape
    chosen &= (1 << topology.gpu_count) - 1
    gpus = tuple(i for i in range(8) if chosen >> i & 1)
    brute = BruteForce(topology, numa)
    pairs = list(combinations(range(topology.gpu_count), 2))
    expected = 50.0
    if len(gpus) > 1 and preference is not NONE and any(brute.satisfied(pair, preference) for pair in pairs):
        expected += brute.wished(gpus, preference)
        if preference is NVLINK:
            best = max(brute.wished(s, NVLINK) for s in combinations(range(topology.gpu_count), len(gpus)))
            expected = 50 + 50 * brute.wished(gpus, NVLINK) / max(best, 1)

    score = TopologyTable.for_shape(topology, numa).score(chosen, preference)

    assert score == pytest.approx(expected)
    assert 50 <= score <= {NONE: 50, NVLINK: 100, NUMA: 90, PCIE: 80}[preference]


def test_on_a_cube_mesh_the_best_pair_comes_before_the_best_remainder() -> None:
    table = table_of("dgx-1v")

    chosen = table.best(mask(0, 2, 4, 5), 2)

    assert chosen == mask(0, 4)
    assert (table.link_score(mask(0, 4)), table.link_score(mask(4, 5))) == (210, 150)


def test_among_equal_pairs_the_one_that_leaves_the_better_remainder_wins() -> None:
    table = table_of("nvlink-bridge-4")

    assert table.best(mask(0, 1, 2, 3), 1) == mask(0)
    assert table.best(mask(1, 2, 3), 1) == mask(1)
    assert table.best(mask(0, 2, 3), 1) == mask(0)
    assert table.best(mask(0, 1, 3), 1) == mask(3)


def test_an_empty_cube_mesh_is_cut_into_its_quads() -> None:
    table = table_of("dgx-1v")

    assert table.best(0xFF, 2) == mask(2, 3)
    assert table.best(0xFF, 4) == mask(0, 1, 2, 3)
    assert table.best(0xFF, 8) == 0xFF
    assert table.best(0xFF, 9) == 0
    assert table.best(0, 1) == 0


def test_a_required_topology_that_is_not_there_chooses_nothing() -> None:
    table = table_of("dgx-1v")

    assert table.best(0xFF, 4, NVLINK, required=True) == mask(0, 1, 2, 3)
    assert table.best(mask(0, 5, 6), 2, NVLINK, required=True) == mask(5, 6)
    assert table.best(mask(0, 5), 2, NVLINK, required=True) == 0
    assert table.best(0xFF, 5, NVLINK, required=True) == 0
    assert table.best(0xFF, 5, NUMA, required=True) == 0
    assert table.best(0xFF, 4, PCIE, required=True) == 0
    assert table.best(mask(0, 5), 1, NVLINK, required=True) != 0


def test_numa_is_chosen_where_links_say_nothing() -> None:
    table = table_of("pcie-8-far")

    assert table.best(mask(3, 4, 5), 2, NUMA) == mask(4, 5)
    assert table.best(mask(3, 4, 5), 2) == mask(3, 4)
    assert table.score(mask(4, 5), NUMA) == pytest.approx(70)
    assert table.score(mask(3, 4), NUMA) == pytest.approx(50)


def test_a_shape_without_the_links_asked_for_is_neutral() -> None:
    assert table_of("pcie-8-far").score(mask(0, 1), NVLINK) == 50
    assert table_of("pcie-8-far").score(mask(0, 1), PCIE) == 50
    assert table_of("pcie-8-one-bridge").score(mask(0, 1), NUMA) == 50
    assert table_of("hgx-h100").score(mask(3), NVLINK) == 50


def test_the_full_marks_of_each_preference() -> None:
    assert table_of("hgx-h100").score(0xFF, NVLINK) == 100
    assert table_of("dgx-1v").score(mask(0, 1), PCIE) == 80
    board = Topology(2, (PcieLevel.BOARD,), (0,))
    assert TopologyTable.for_shape(board, (0, 0)).score(mask(0, 1), NUMA) == 90


def test_sixteen_gpus_keep_halves_together() -> None:
    table = table_of("dgx-2")

    assert table.best(0xFFFF, 8) == 0x00FF
    assert table.best(0xFFF0, 4) == 0x00F0
    assert table.best(0xFF0F, 8) == 0xFF00


def test_more_than_sixteen_gpus_still_get_a_well_linked_set() -> None:
    pairs = [(a, b) for a in range(20) for b in range(a + 1, 20)]
    links = tuple(4 if a // 4 == b // 4 else 0 for a, b in pairs)
    table = TopologyTable.for_shape(Topology(20, (PcieLevel.SYS,) * len(pairs), links), (None,) * 20)

    assert table.best((1 << 20) - 1, 4, NVLINK, required=True) == 0b1111
    assert table.best(((1 << 20) - 1) ^ 1, 4, NVLINK, required=True) == 0b1111 << 4
    assert table.best((1 << 20) - 1, 5, NVLINK, required=True) == 0


def test_equal_shapes_share_a_table() -> None:
    topology = Topology(2, (PcieLevel.PIX,), (0,))
    again = Topology(2, (PcieLevel.PIX,), (0,))

    assert TopologyTable.for_shape(topology, (0, 0)) is TopologyTable.for_shape(again, (0, 0))
