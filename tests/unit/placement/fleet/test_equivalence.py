"""Nodes that are alike share a number, and what was answered for one is never taken for another."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.model.request import PodRequest
from gpuloom.placement.demand import Demand
from gpuloom.placement.devices import HostCapacity, NodeView
from gpuloom.placement.fleet.columns import Columns
from gpuloom.placement.fleet.fleet import Fleet, Question
from gpuloom.placement.potential import prices_for
from gpuloom.placement.score import Scored, evaluate, in_order
from tests.effort import examples
from tests.unit.placement.builders import a_card, a_cut_card, a_node, a_share, whole
from tests.unit.placement.strategies import nodes, requests

HOST = HostCapacity(64_000, 64_000, 1 << 38, 1 << 38)


def number_of(columns: Columns, name: str) -> int:
    return int(columns.classes.at(columns.rows([name]))[0])


def kept(*views: NodeView) -> Columns:
    columns = Columns()
    for view in views:
        columns.put(view)
    return columns


def test_nodes_that_differ_only_by_name_are_alike() -> None:
    columns = kept(a_node(a_card(0), name="a", host=HOST), a_node(a_card(0), name="b", host=HOST))

    assert number_of(columns, "a") == number_of(columns, "b")


def test_a_node_is_again_what_it_was_before() -> None:
    columns = kept(a_node(a_card(0), name="a", host=HOST))
    first = number_of(columns, "a")

    columns.put(a_node(a_card(0), name="a", host=replace(HOST, cpu_free_milli=1000)))
    second = number_of(columns, "a")
    columns.put(a_node(a_card(0), name="a", host=HOST))

    assert first != second
    assert number_of(columns, "a") == first


def test_slices_make_a_difference() -> None:
    layouts = ((("1g.5gb", 0),), (("2g.10gb", 0),), (("1g.5gb", 0), ("1g.5gb", 1)))
    columns = kept(*(a_node(a_cut_card(0, *layout), name=str(i)) for i, layout in enumerate(layouts)))

    assert len({number_of(columns, str(i)) for i in range(len(layouts))}) == len(layouts)


def test_numbers_stay_bounded_while_nodes_change_without_end() -> None:
    columns = kept(a_node(a_card(0), name="a", host=HOST))

    for free in range(5000):
        columns.put(a_node(a_card(0), name="a", host=replace(HOST, cpu_free_milli=free)))

    assert len(columns.classes) <= 1025
    assert columns.classes.epoch > 0


def test_a_model_that_takes_over_anothers_number_is_not_taken_for_it() -> None:
    old, new = a_card(0), a_card(0)
    new = replace(new, gpu=replace(new.gpu, model="another model"))
    request = replace(whole(1), gpu=replace(whole(1).gpu, models=(old.gpu.model,)))
    fleet = Fleet()
    fleet.put(a_node(old, name="a"))
    before = fleet.evaluate(Question(request), ["a"]).winner
    fleet.remove("a")

    fleet.put(a_node(new, name="a"))

    assert before is not None
    assert fleet.evaluate(Question(request), ["a"]).winner is None


@settings(max_examples=examples(60))
@given(st.data(), requests())
def test_alike_nodes_get_equal_points(data: st.DataObject, request: PodRequest) -> None:
    views = [data.draw(nodes(name)) for name in "abcd"]
    views += [replace(views[0], name="twin")]
    columns = kept(*views)
    numbers = {view.name: number_of(columns, view.name) for view in views}

    assert numbers["twin"] == numbers["a"]
    for one in views:
        for other in views:
            if numbers[one.name] == numbers[other.name]:
                found = evaluate(request, one), evaluate(request, other)
                if isinstance(found[0], Scored):
                    assert found[1] == replace(found[0], name=other.name)


def test_new_prices_change_answers_that_were_given_before() -> None:
    nearly_full, empty = a_node(a_card(0, 500), name="a", host=HOST), a_node(a_card(0), name="b", host=HOST)
    fleet, request = Fleet(), a_share(250)
    fleet.put(nearly_full)
    fleet.put(empty)
    before = fleet.evaluate(Question(request)).ranked()
    demand = Demand()
    for _ in range(200):
        demand = demand.with_pod(a_share(500))

    fleet.set_prices(prices_for(demand, fleet.supply()))
    after = fleet.evaluate(Question(request)).ranked()

    market = fleet.market(request.gpu.authority)
    alone = [evaluate(request, view, market=market) for view in (nearly_full, empty)]
    assert after != before
    assert after == in_order(entry for entry in alone if isinstance(entry, Scored))
