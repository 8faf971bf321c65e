"""Money adds up: any random history, any cut of time, any grouping, to the nano-dollar."""

from collections import defaultdict
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.cost_engine.core.attribution import HOST, IDLE, bill_of
from services.cost_engine.core.billing import bill_nano_usd
from services.cost_engine.core.grouping import DIMENSIONS, grouped, total
from services.cost_engine.core.intervals import HOUR_NS
from services.cost_engine.core.teams import TeamRule
from tests.unit.cost_engine.core.histories import SPAN_NS, START_NS, History, histories

RULES = (
    TeamRule({"vision": 60, "language": 39, "speech": 1}, namespaces=("ml-*", "Ü*")),
    TeamRule({"owner": 1}, pools=("p1",), idle=True),
)


@given(histories())
def test_allocated_and_unallocated_add_up_to_every_nodes_bill(history: History) -> None:
    by_node: dict[str, int] = defaultdict(int)
    for _, node, row in history.rows():
        by_node[node.node_uid] += row.cost

    for node in history.nodes:
        assert by_node[node.node_uid] == bill_of(node, START_NS, START_NS + SPAN_NS, history.book)


@given(histories())
def test_used_idle_and_unknown_add_up_to_what_was_allocated_and_none_is_negative(history: History) -> None:
    for _, _, row in history.rows():
        if row.owner not in (IDLE, HOST):
            assert row.used + row.idle + row.unknown == row.cost
        assert min(row.cost, row.used, row.idle, row.unknown, row.unit_ns) >= 0
        assert row.price is not None or (row.cost == 0 and row.unpriced_ns > 0)


@given(histories(), st.lists(st.sampled_from([*DIMENSIONS, "label:team", "label:gpu-project"]), max_size=3))
def test_any_grouping_adds_up_to_the_total(history: History, group_by: list[str]) -> None:
    facts = history.facts()

    rows = grouped(facts, group_by, RULES)

    assert total(rows) == total(grouped(facts, ()))
    assert total(rows).cost == sum(fact.amounts.cost for fact in facts)


@given(histories(), st.integers(START_NS + 1, START_NS + SPAN_NS - 1))
def test_a_bill_is_the_sum_of_its_parts_wherever_time_is_cut(history: History, cut_ns: int) -> None:
    for node in history.nodes:
        whole = bill_of(node, START_NS, START_NS + SPAN_NS, history.book)
        parts = (
            bill_of(node, START_NS, cut_ns, history.book),
            bill_of(node, cut_ns, START_NS + SPAN_NS, history.book),
        )

        assert sum(parts) == whole


@given(histories())
def test_usage_that_is_lost_or_late_never_changes_a_sum_or_what_was_allocated(history: History) -> None:
    without = replace(history, usage={})

    for (_, _, row), (_, _, other) in zip(history.rows(), without.rows(), strict=True):
        assert (row.owner, row.cost) == (other.owner, other.cost)
        assert other.unknown == (other.cost if other.owner not in (IDLE, HOST) else 0)


@given(histories())
def test_the_same_history_gives_the_same_rows_in_any_order_of_pods(history: History) -> None:
    shuffled = replace(history, pods=tuple(reversed(history.pods)))

    assert shuffled.rows() == history.rows()


@given(st.integers(1, 10**14), st.integers(0, 10**6), st.integers(0, 1000))
def test_whole_hours_cost_exactly_their_price(price: int, first_hour: int, hours: int) -> None:
    assert bill_nano_usd(price, first_hour * HOUR_NS, (first_hour + hours) * HOUR_NS) == price * hours
