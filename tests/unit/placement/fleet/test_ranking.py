"""The best nodes stay known while kinds of nodes disappear, come back, and become too many."""

from dataclasses import replace

from gpuloom.model.request import PodRequest, TopologyPreference
from gpuloom.placement.demand import Demand
from gpuloom.placement.devices import HostCapacity, NodeView
from gpuloom.placement.fleet.columns import Columns
from gpuloom.placement.fleet.fleet import Fleet, Question
from gpuloom.placement.potential import prices_for
from gpuloom.placement.score import ScoreWeights
from tests.unit.placement.builders import a_card, a_node, a_shaped_node, a_share, whole

HOST = HostCapacity(64_000, 64_000, 1 << 38, 1 << 38)
EMPTY, HALF, MOST, FULL = (a_node(a_card(0, free), a_card(1)) for free in (1000, 500, 750, 0))


def a_fleet(**views: NodeView) -> Fleet:
    fleet = Fleet()
    for name, view in views.items():
        fleet.put(replace(view, name=name))
    return fleet


def best(fleet: Fleet) -> list[str]:
    return best_for(fleet, a_share(500))


def best_for(fleet: Fleet, request: PodRequest) -> list[str]:
    names = [one.name for one in fleet.best(Question(request), 9, "abcdefgh", tries=9)]
    assert names == [one.name for one in fleet.evaluate(Question(request)).ranked()]
    return names


def test_a_kind_that_was_gone_is_found_when_a_node_is_of_it_again() -> None:
    fleet = a_fleet(a=EMPTY, b=EMPTY)
    orders = [best(fleet)]

    for view in (HALF, EMPTY, HALF, MOST, HALF):
        fleet.put(replace(view, name="b"))
        orders.append(best(fleet))

    assert orders == [["a", "b"], ["b", "a"], ["a", "b"], *[["b", "a"]] * 3]


def test_a_kind_that_comes_and_goes_unasked_is_there_once() -> None:
    fleet = a_fleet(a=EMPTY, b=HALF)
    best(fleet)

    for view in (EMPTY, HALF, EMPTY, HALF):
        fleet.put(replace(view, name="b"))

    assert best(fleet) == ["b", "a"]


def test_a_node_that_is_removed_or_full_is_not_found() -> None:
    fleet = a_fleet(a=EMPTY, b=HALF, c=HALF)
    best(fleet)

    fleet.remove("b")
    fleet.put(replace(EMPTY, name="a"))
    fleet.put(replace(a_node(a_card(0, 0)), name="c"))

    assert best(fleet) == ["a"]


def test_equal_totals_of_different_kinds_go_by_name() -> None:
    """Nothing that a share depends on tells these kinds apart."""
    larger = replace(HOST, memory_total_bytes=1 << 39)
    one, other = a_node(a_card(0), host=HOST), a_node(a_card(0), host=larger)
    fleet = a_fleet(d=one, a=other, c=one, b=other)

    assert best(fleet) == ["a", "b", "c", "d"]


def test_cpu_that_the_gpus_will_lack_counts_as_much_as_what_is_left_of_them() -> None:
    """By its busy CPU alone the one with few cores would come first."""
    few, many = (replace(EMPTY, host=replace(HOST, cpu_free_milli=milli)) for milli in (9000, 64_000))
    fleet = a_fleet(a=few, b=many)
    request = replace(a_share(500), cpu_milli=8000)

    assert best_for(fleet, request) == ["b", "a"]


def test_with_weights_of_its_own_the_rise_alone_does_not_decide() -> None:
    few, many = (replace(EMPTY, host=replace(HOST, cpu_free_milli=milli)) for milli in (9000, 64_000))
    fleet = Fleet(ScoreWeights(topology=0, resource=100, balance=1))
    for name, view in (("a", few), ("b", many)):
        fleet.put(replace(view, name=name))
    request = replace(a_share(500), cpu_milli=8000)

    assert best_for(fleet, request) == ["a", "b"]


def test_the_last_nodes_for_a_set_of_cards_come_after_others_that_cost_more() -> None:
    """By the rise of its potential alone the one with fewer free cards would come first."""
    pair, three = (a_node(*(a_card(index) for index in range(count))) for count in (2, 3))
    fleet = a_fleet(a=pair, b=three)
    plain = best_for(fleet, a_share(500))
    demand = Demand()
    for _ in range(50):
        demand = demand.with_pod(whole(2))

    fleet.set_prices(prices_for(demand, fleet.supply()))

    assert (plain, best_for(fleet, a_share(500))) == (["a", "b"], ["b", "a"])


def test_linked_cards_come_before_others_that_cost_the_same() -> None:
    loose, linked = a_shaped_node("dgx-1v", 0b100001), a_shaped_node("dgx-1v", 0b11)
    fleet = a_fleet(a=loose, b=linked)

    assert best_for(fleet, whole(2)) == ["a", "b"]
    assert best_for(fleet, whole(2, topology=TopologyPreference.NVLINK)) == ["b", "a"]


def test_kinds_without_end_are_forgotten_in_time() -> None:
    fleet = a_fleet(a=EMPTY)

    for free in range(3000):
        fleet.put(replace(HALF, name="b", host=replace(HOST, cpu_free_milli=free)))
        if free % 100 == 0:
            assert best(fleet) == ["b", "a"]


def test_a_node_that_moves_between_two_kinds_without_end_leaves_no_trail() -> None:
    columns = Columns()

    for turn in range(40_000):
        columns.put(HALF if turn % 2 else FULL)

    assert len(columns.classes.appeared) <= 20_000
