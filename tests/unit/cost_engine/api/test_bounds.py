"""However many pods there are, a question takes a bounded part of the engine's memory, or is refused."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from gpuloom.errors import InvalidRequestError, NotReadyError
from gpuloom.model.cost import CostQuestion
from gpuloom.runtime.clock import FakeClock, SystemClock
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig, database_url
from gpuloom.v1 import cost_engine_pb2 as pb
from services.cost_engine.api import queries as module
from services.cost_engine.api.exports import Exports
from services.cost_engine.api.queries import Queries, ns_of
from services.cost_engine.api.rules import TeamRules
from services.cost_engine.core.grouping import CostFact
from services.cost_engine.core.intervals import DAY_NS
from services.cost_engine.server import CostEngineServer
from services.cost_engine.store import costs
from services.cost_engine.store.costs import Window
from services.cost_engine.store.store import CostStore
from tests.mesh.waiting import until

START = datetime(2026, 6, 1, tzinfo=UTC)
DAYS, PODS_A_DAY = 4, 1500
COST = 1_000_000_007
MONTH = Window(ns_of(START), ns_of(START) + DAYS * DAY_NS)
BY_OWNER = frozenset({"owner", "namespace"})


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[CostStore]:
    """Every day other pods, in seven projects, and what they cost by the hour and by the day."""
    config = StoreConfig(url=database_url(f"sqlite:///{tmp_path}/cost.db"), threads=4, timeout_s=10.0)
    async with Database(config, SystemClock()) as database:
        store = CostStore(database)
        await store.open()
        await store.write(fill)
        yield store


@pytest.fixture
def queries(store: CostStore) -> Queries:
    clock = FakeClock(START + timedelta(days=DAYS))
    return Queries(store, TeamRules(None, clock), clock, 720)


def fill(session: Session) -> None:
    empty = {**dict.fromkeys(costs._COLUMNS, ""), **dict.fromkeys(costs._SUMS, 0), "as_of_ns": 1}
    for day in range(DAYS):
        midnight = MONTH.start_ns + day * DAY_NS
        rows = [
            {**empty, "bucket_ns": midnight, "owner": f"{day}-{pod}", "namespace": "lab", "node": "n"}
            | {
                "capacity_type": "spot",
                "cost": COST,
                "used": COST,
                "on_demand": 2 * COST,
                "baseline": 2 * COST,
            }
            for pod in range(PODS_A_DAY)
        ]
        for table in ("cost_day", "cost_hour"):
            session.execute(text(costs._INSERT.replace("cost_hour", table)), rows)
        session.execute(
            text("INSERT INTO pod VALUES (:uid, 'lab', :uid, :labels, '', 0, 0)"),
            [{"uid": f"{day}-{pod}", "labels": f'{{"project": "p{pod % 7}"}}'} for pod in range(PODS_A_DAY)],
        )


def asked(*group_by: str, step: str = "all") -> CostQuestion:
    return CostQuestion(START, START + timedelta(days=DAYS), step, group_by)


@pytest.mark.parametrize("step", ["all", "day", "hour"])
async def test_a_question_by_label_is_answered_without_all_pods_in_memory(
    queries: Queries, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "_ROWS_AT_ONCE", 200)
    gc.collect()
    tracemalloc.start()
    try:
        answer = await queries.costs(asked("label:project", step=step))
        saved = await queries.savings(START, START + timedelta(days=DAYS))
        peak_mib = tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()

    assert answer.total.cost == DAYS * PODS_A_DAY * COST == saved.baseline - saved.actual
    assert sum(line.amounts.cost for line in answer.lines) == answer.total.cost
    assert len({line.group for line in answer.lines}) == 7
    assert peak_mib < 3


async def test_an_answer_has_all_its_lines_in_parts_or_is_refused_and_says_what_to_ask(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LINES", 7 * DAYS)
    monkeypatch.setattr("services.cost_engine.server.MAX_PAGE", 10)
    found: list[pb.CostRow] = []
    server = CostEngineServer(queries, None, None, (None,) * 3, lambda: True)  # type: ignore[arg-type]
    request = pb.QueryCostsRequest(group_by=["label:project"], step=pb.COST_STEP_DAY)
    request.start.FromDatetime(START)
    request.end.FromDatetime(START + timedelta(days=DAYS))

    while True:
        response = await server.QueryCosts(request, None)
        found += response.rows
        request.page_token = response.next_page_token
        if not request.page_token:
            break
    monkeypatch.setattr(module, "MAX_LINES", 7 * DAYS - 1)
    with pytest.raises(InvalidRequestError) as refused:
        await queries.costs(asked("label:project", step="day"))

    assert len(found) == 7 * DAYS
    assert sum(row.amounts.cost for row in found) == response.total.cost == DAYS * PODS_A_DAY * COST
    assert all(way in str(refused.value) for way in ("namespace", "filter", "larger step", "shorter window"))


async def test_a_part_of_an_export_is_one_step_of_it(queries: Queries) -> None:
    pieces = [piece async for piece in Exports(queries, "cluster").pieces(asked(step="hour"), "csv")]

    assert len(pieces) == 1 + DAYS * 24
    assert sum(piece.count("\n") for piece in pieces) == 1 + DAYS * PODS_A_DAY


class Slow:
    """A store whose questions last until they are let go."""

    def __init__(self) -> None:
        self.running = 0
        self.go = asyncio.Event()

    async def fold(self, window: Window, columns: frozenset[str], work: object) -> list[CostFact]:
        self.running += 1
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        return []


async def test_few_heavy_questions_run_at_once_and_others_wait_or_are_refused(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    monkeypatch.setattr(queries._store, "fold", slow.fold)
    monkeypatch.setattr(module, "MAX_WAITING", 3)

    heavy = [asyncio.create_task(queries.costs(asked("pod"))) for _ in range(module.HEAVY_AT_ONCE + 3)]
    await until(lambda: slow.running == module.HEAVY_AT_ONCE and queries._waiting == 3)
    with pytest.raises(NotReadyError):
        await queries.costs(asked("label:project"))
    light = asyncio.create_task(queries.costs(asked("namespace")))
    await until(lambda: slow.running == module.HEAVY_AT_ONCE + 1)
    heavy.pop().cancel()
    await until(lambda: queries._waiting == 2)
    slow.go.set()

    assert [answer.lines for answer in await asyncio.gather(light, *heavy)] == [()] * (1 + len(heavy))


async def test_a_question_that_nobody_waits_for_is_read_no_further(store: CostStore) -> None:
    began, go = Event(), Event()
    read = 0

    def work(facts: Iterable[CostFact]) -> None:
        nonlocal read
        for _ in facts:
            read += 1
            began.set()
            go.wait(10)

    asking = asyncio.create_task(store.fold(MONTH, BY_OWNER, work))
    await asyncio.to_thread(began.wait, 10)
    asking.cancel()
    done, _ = await asyncio.wait([asking], timeout=0.05)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert not done, "it holds its place until the thread is free"
    assert read == 1
