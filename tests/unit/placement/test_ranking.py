"""The best nodes stay known while kinds of nodes disappear, come back, and become too many."""

from dataclasses import replace

from gpuloom.placement.columns import Columns
from gpuloom.placement.demand import Demand
from gpuloom.placement.devices import HostCapacity, NodeView
from gpuloom.placement.fleet import Fleet, Question
from gpuloom.placement.potential import prices_for
from tests.unit.placement.builders import a_card, a_node, a_share, whole

HOST = HostCapacity(64_000, 64_000, 1 << 38, 1 << 38)
EMPTY, HALF, MOST, FULL = (a_node(a_card(0, free), a_card(1)) for free in (1000, 500, 750, 0))


def a_fleet(**views: NodeView) -> Fleet:
    fleet = Fleet()
    for name, view in views.items():
        fleet.put(replace(view, name=name))
    return fleet


def best(fleet: Fleet, milli: int = 500, count: int = 9) -> list[str]:
    names = [one.name for one in fleet.best(Question(a_share(milli)), count, "abcdefgh", tries=count)]
    ranked = [one.name for one in fleet.evaluate(Question(a_share(milli))).ranked()]
    assert names == ranked[:count]
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


def test_sets_that_become_rare_are_heeded_by_kinds_that_are_known() -> None:
    pair, loose = a_node(a_card(0), a_card(1)), a_node(a_card(0), a_card(1, 500), a_card(2, 500))
    fleet = a_fleet(a=loose, **dict.fromkeys("bcdefgh", pair))
    demand = Demand()
    for pod in [whole(2)] + [a_share(1000)] * 1000:
        demand = demand.with_pod(pod)
    fleet.set_prices(prices_for(demand, fleet.supply()))
    before = best(fleet, 1000)

    for name in "hgfedc":
        fleet.remove(name)
        assert best(fleet, 1000)[0] == before[0] == "a"


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

    assert len(columns.likeness.appeared) <= 20_000
