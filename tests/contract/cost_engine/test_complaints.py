"""What users of other tools complain of, where the store decides it; the other complaints are unit tests.

The table of both is in tests/unit/cost_engine/core/test_complaints.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlalchemy import text

from gpuloom.model.cost import CostQuestion
from gpuloom.model.node import PodRef
from gpuloom.model.usage import UsageWindow
from gpuloom.runtime.clock import FakeClock
from gpuloom.store.database import Database
from services.cost_engine.api.queries import SPOOL_NS, Queries, moment
from services.cost_engine.api.rules import TeamRules
from services.cost_engine.core.intervals import DAY_NS, HOUR_NS
from services.cost_engine.store.costs import Window
from services.cost_engine.store.store import CostStore
from tests.contract.cost_engine.test_store import NOW_NS, START_NS, a_batch, prepared, totals, windows


def named(listed: list[UsageWindow], name: Callable[[str], PodRef]) -> list[UsageWindow]:
    """The same windows, with other names of the same pods in them."""

    def renamed(window: UsageWindow) -> UsageWindow:
        devices = tuple(replace(each, pod=name(each.pod.uid)) for each in window.devices if each.pod)
        return replace(window, devices=devices)

    return [renamed(window) for window in listed]


async def test_a_duplicate_series_never_doubles_a_total(store: CostStore) -> None:
    book = await prepared(store)
    for spool in ("agent", "the-same-agent-again", "and-again"):
        await store.ingest([a_batch(windows(1, 180), spool)], NOW_NS)

    await store.compute(book, NOW_NS)

    found = (await totals(store, ("pod",)))["ns-1/p1",]
    assert (found.used + found.idle, found.unknown) == (found.cost, 0)
    assert abs(found.used - found.cost * 4 // 10) <= 3


async def test_labels_that_name_another_pod_or_none_change_nobodys_cost(store: CostStore) -> None:
    """pod, exported_pod or pod_name: names in usage are for people. What counts is the pod's UID."""
    book = await prepared(store)
    listed = windows(1, 180)
    wrong = named(listed, lambda uid: PodRef("monitoring", "dcgm-exporter-x7k2p", uid))
    without = named(listed, lambda uid: PodRef("", "", uid))
    await store.ingest([a_batch(wrong[:90])], NOW_NS)
    await store.ingest([a_batch(without[90:])], NOW_NS)

    await store.compute(book, NOW_NS)

    found = await totals(store, ("pod",))
    assert ("monitoring/dcgm-exporter-x7k2p",) not in found
    assert found["ns-1/p1",].unknown == 0


async def test_a_late_window_changes_no_bill_and_an_answer_says_whether_it_is_final(store: CostStore) -> None:
    book, clock = await prepared(store), FakeClock(moment(NOW_NS))
    asked = Queries(store, TeamRules(None, clock), clock, 720)
    question = CostQuestion(moment(START_NS), moment(NOW_NS), group_by=("pod",))
    await store.compute(book, NOW_NS, grow=False)
    early = await asked.costs(question)
    await store.ingest([a_batch(windows(1, 180))], NOW_NS)
    marked = await asked.costs(question)
    await store.compute(book, NOW_NS, grow=False)
    await clock.advance(SPOOL_NS / 1e9 + 1)

    late = await asked.costs(question)

    assert [answer.reconciled for answer in (early, marked, late)] == [False, False, True]
    assert late.total.cost == early.total.cost
    assert late.total.unknown < early.total.unknown
    assert [(line.group, line.amounts.allocated) for line in late.lines] == [
        (line.group, line.amounts.allocated) for line in early.lines
    ]


async def test_a_long_window_is_answered_from_sums_by_day_alone(store: CostStore, database: Database) -> None:
    book = await prepared(store)
    await store.ingest([a_batch(windows(1, 180))], NOW_NS)
    await store.compute(book, NOW_NS)
    month = Window(START_NS - 29 * DAY_NS, START_NS + DAY_NS, DAY_NS)
    before = await store.facts(month, frozenset({"namespace"}))

    def forget_all_but_days(session: Any) -> None:
        session.execute(text("DELETE FROM usage_window"))
        session.execute(text("DELETE FROM cost_hour"))

    await database.write(forget_all_but_days)

    assert before
    assert await store.facts(month, frozenset({"namespace"})) == before
    assert await store.facts(Window(START_NS, NOW_NS, HOUR_NS), frozenset({"namespace"})) == []
