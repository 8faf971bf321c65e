from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.model.request import PodRequest, TopologyPreference
from gpuloom.placement.demand import Demand
from gpuloom.placement.devices import HostCapacity, NodeView
from gpuloom.placement.fit import Fit, Refusal, fit
from gpuloom.placement.points import Market
from gpuloom.placement.potential import Supply, prices_for
from gpuloom.placement.score import (
    Scored,
    ScoreWeights,
    evaluate,
    extender_scores,
    in_order,
    rank,
    rise,
)
from tests.effort import examples
from tests.unit.placement.builders import a_card, a_cut_card, a_node, a_shaped_node, a_share, a_slice, whole
from tests.unit.placement.strategies import clusters, nodes, requests

NVLINK = TopologyPreference.NVLINK


def a_host(cores: int = 64, memory_gib: int = 512) -> HostCapacity:
    return HostCapacity(1000 * cores, 1000 * cores, memory_gib << 30, memory_gib << 30)


def order(request: PodRequest, *candidates: NodeView) -> list[str]:
    return [entry.name for entry in rank(request, candidates)]


def scored(request: PodRequest, node: NodeView) -> Scored:
    outcome = evaluate(request, node)
    assert isinstance(outcome, Scored)
    return outcome


def test_the_parts_are_weighted_forty_thirty_five_twenty_five() -> None:
    entry = scored(whole(2, topology=NVLINK), a_shaped_node("hgx-h100", 0xFF))

    assert entry.topology == 100
    assert entry.total == pytest.approx(40 + 0.35 * entry.resource + 0.25 * entry.balance)


def test_weights_can_be_changed_but_not_be_negative_or_all_zero() -> None:
    only_topology = ScoreWeights(topology=3, resource=0, balance=0)

    outcome = evaluate(whole(2, topology=NVLINK), a_shaped_node("hgx-h100", 0xFF), only_topology)

    assert isinstance(outcome, Scored)
    assert outcome.total == 100
    for wrong in ((-1.0, 1.0, 1.0), (0.0, 0.0, 0.0)):
        with pytest.raises(ValueError, match="score weights"):
            ScoreWeights(*wrong)


def test_a_node_with_linked_gpus_comes_first_for_a_pod_that_wants_them() -> None:
    linked = a_shaped_node("dgx-1v", 0b1001, name="linked")
    apart = a_shaped_node("dgx-1v", 0b100001, name="apart")

    assert order(whole(2, topology=NVLINK), apart, linked) == ["linked", "apart"]


def test_one_gpu_goes_to_the_fuller_node() -> None:
    empty = a_node(*(a_card(i) for i in range(4)), name="empty")
    half = a_node(a_card(0, 0), a_card(1, 0), a_card(2), a_card(3), name="half")

    assert order(whole(1), empty, half) == ["half", "empty"]


def test_a_share_fills_a_rest_rather_than_opening_a_card() -> None:
    opens_a_card = a_node(a_card(0), name="opens")
    fills_a_rest = a_node(a_card(0, 500), *(a_card(i) for i in range(1, 8)), name="fills")

    assert order(a_share(500), opens_a_card, fills_a_rest) == ["fills", "opens"]


def test_a_slice_goes_to_the_fuller_cut_card() -> None:
    empty = a_node(a_cut_card(0, ("1g.5gb", 0), ("1g.5gb", 1), ("1g.5gb", 2)), name="empty")
    busy = a_node(a_cut_card(0, ("1g.5gb", 0), ("1g.5gb", 1), ("1g.5gb", 2), used=2), name="busy")

    assert order(a_slice("1g.5gb", milli=125), empty, busy) == ["busy", "empty"]


def test_gpus_that_lack_cpu_are_given_to_pods_that_need_little() -> None:
    plenty = a_node(a_card(0), a_card(1), host=a_host(cores=64), name="plenty")
    starved = a_node(a_card(0), a_card(1), host=a_host(cores=17), name="starved")

    assert scored(whole(1), starved).balance > scored(whole(1), plenty).balance
    assert order(replace(whole(1), cpu_milli=1000), plenty, starved) == ["starved", "plenty"]
    assert order(replace(whole(1), cpu_milli=16_000), plenty, starved) == ["plenty", "starved"]


def test_cores_that_nobody_misses_are_no_reason_to_break_up_free_cards() -> None:
    busy = a_node(*(a_card(i, 1000 if i < 4 else 0) for i in range(8)), host=a_host(cores=36), name="busy")
    empty = a_node(*(a_card(i) for i in range(8)), host=a_host(cores=96), name="empty")

    assert order(replace(whole(1), cpu_milli=10_000), empty, busy) == ["busy", "empty"]


def test_memory_can_run_out_too() -> None:
    plenty = a_node(a_card(0), a_card(1), host=a_host(memory_gib=512), name="plenty")
    starved = a_node(a_card(0), a_card(1), host=a_host(memory_gib=68), name="starved")
    hungry = replace(whole(1), memory_bytes=64 << 30)

    assert order(whole(1), plenty, starved) == ["starved", "plenty"]
    assert order(hungry, plenty, starved) == ["plenty", "starved"]


@settings(max_examples=examples(60))
@given(requests(), clusters(), st.lists(requests(), max_size=20), st.sampled_from((10, 30, 80)))
def test_without_topology_wishes_the_smaller_rise_of_the_potential_wins(
    request: PodRequest, candidates: tuple[NodeView, ...], learned: list[PodRequest], used_cores: int
) -> None:
    request = replace(
        request, gpu=replace(request.gpu, topology=TopologyPreference.NONE, topology_required=False)
    )
    demand = Demand()
    for pod in learned:
        demand = demand.with_pod(pod)
    supply = Supply(
        {("T4", "turing"): 3, ("A100-SXM4-40GB", "ampere"): 5},
        gpus=10,
        used_gpus=2,
        cores=80,
        used_cores=used_cores,
    )
    market = Market(prices_for(demand, supply), ((2, 70_000),))

    ranked = in_order(
        entry
        for entry in (evaluate(request, node, market=market) for node in candidates)
        if isinstance(entry, Scored)
    )

    nodes_by_name = {node.name: node for node in candidates}
    rises = [_rise_micro(request, nodes_by_name[entry.name], market) for entry in ranked]
    assert rises == sorted(rises)
    for entry in ranked:
        weighted = 0.40 * entry.topology + 0.35 * entry.resource + 0.25 * entry.balance
        assert entry.total == pytest.approx(weighted, abs=1e-6)


def _rise_micro(request: PodRequest, node: NodeView, market: Market) -> int:
    outcome = fit(request, node)
    assert isinstance(outcome, Fit)
    found = rise(request, node, outcome, market.prices)
    lost = sum(
        price_micro
        for count, price_micro in market.sets_micro
        if found.whole_after < count <= found.whole_before
    )
    return found.resource + found.balance + lost


def test_equal_nodes_rank_by_name() -> None:
    alike = [a_node(a_card(0), name=name) for name in ("c", "a", "b")]

    assert order(whole(1), *alike) == ["a", "b", "c"]


def test_only_the_winner_has_ten() -> None:
    ranked = [
        Scored(name, total, 0, 0, 0) for name, total in (("a", 60.0), ("b", 60.0), ("c", 45.0), ("d", 3.0))
    ]

    assert extender_scores(ranked) == {"a": 10, "b": 9, "c": 7, "d": 0}
    assert extender_scores([]) == {}
    assert extender_scores([Scored("a", 0.0, 0, 0, 0), Scored("b", 0.0, 0, 0, 0)]) == {"a": 10, "b": 0}


@settings(max_examples=examples(60))
@given(
    requests(),
    st.lists(st.integers(), max_size=5).flatmap(
        lambda ids: st.tuples(*(nodes(f"n{i}") for i in range(len(ids))))
    ),
)
def test_ranking_is_bounded_complete_and_repeatable(
    request: PodRequest, candidates: tuple[NodeView, ...]
) -> None:
    ranked = rank(request, candidates)
    scores = extender_scores(ranked)

    assert {entry.name for entry in ranked} == {
        n.name for n in candidates if isinstance(fit(request, n), Fit)
    }
    assert rank(request, tuple(reversed(candidates))) == ranked
    for entry in ranked:
        assert all(0 <= part <= 100 for part in (entry.total, entry.topology, entry.resource, entry.balance))
    assert all(type(score) is int and 0 <= score <= 10 for score in scores.values())
    assert list(scores.values()).count(10) == min(1, len(ranked))
    assert list(scores.values()) == sorted(scores.values(), reverse=True)


def test_a_node_that_does_not_fit_gives_its_refusal() -> None:
    assert evaluate(whole(1), a_node()) == fit(whole(1), a_node())
    assert isinstance(evaluate(whole(1), a_node()), Refusal)
