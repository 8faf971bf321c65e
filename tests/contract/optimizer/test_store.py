"""Profiles on SQLite and on PostgreSQL."""

import os
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from gpuloom.model.usage import UsageCursor
from gpuloom.runtime.clock import FakeClock
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig, database_url
from services.optimizer.adapters.store import MIGRATIONS, SqlStore
from services.optimizer.core.predict import outcome_of
from services.optimizer.core.sketch import quantile_of
from services.optimizer.ports import Advice, KeptRun, LabelledRun
from tests.contract.store.postgres import require_server, server_url
from tests.unit.optimizer.builders import NOON, a_run, a_workload


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[str]:
    require_server(os.environ)
    with server_url() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.real)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/optimizer.db"
    server: str = request.getfixturevalue("postgres_server")
    return server


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """Migrated up and, afterwards, down."""
    async with Database(StoreConfig(url=database_url(url)), FakeClock(NOON)) as database:
        await MIGRATIONS.upgrade(database)
        yield database
        await MIGRATIONS.downgrade(database)
        assert await MIGRATIONS.current(database) is None


@pytest.fixture
def store(database: Database) -> SqlStore:
    return SqlStore(database, FakeClock(NOON))


def kept(uid: str, *ratios: float | None) -> KeptRun:
    return KeptRun(a_run(ratios, uid=uid), a_workload())


async def test_runs_and_cursors_come_back_as_they_were_kept(store: SqlStore) -> None:
    await store.keep_windows([kept("uid-1", 0.5)], UsageCursor("node", "spool", 1))
    await store.keep_windows([kept("uid-1", 0.5, None, 0.25)], UsageCursor("node", "spool", 3))

    everything = await store.load()

    assert everything.cursors == (UsageCursor("node", "spool", 3),)
    assert [each.run for each in everything.running] == [kept("uid-1", 0.5, None, 0.25).run]
    assert everything.running[0].workload.signature == a_workload().signature
    assert everything.model is None


async def test_a_run_that_ends_twice_counts_once(store: SqlStore) -> None:
    ended = kept("uid-1", *[0.5] * 5)
    label = LabelledRun((1.0, 2.0), "training")
    await store.keep_windows([ended], UsageCursor("node", "spool", 5))

    for _ in range(2):
        await store.end_runs([(ended, outcome_of(ended.run, ended=True), label)])

    everything = await store.load()
    sketches = await store.sketches()
    runs, sketch = sketches[a_workload().signature.key]["utilization"]
    assert everything.running == ()
    assert [outcome for _, outcome in everything.ended] == [outcome_of(ended.run, ended=True)]
    assert runs == 1
    assert quantile_of(sketch, 0.5) == pytest.approx(0.5)
    assert list(await store.labelled(10)) == [label]


@pytest.mark.parametrize(
    "spoiled", ["", "[]", "{}", "nonsense", '{"memory": {}, "uid": 1, "endedAt": 1e400}']
)
async def test_rows_that_can_not_be_read_are_left_out(
    store: SqlStore, database: Database, spoiled: str
) -> None:
    await store.keep_windows([kept("uid-1", 0.5), kept("uid-2", 0.5)], UsageCursor("node", "spool", 1))
    for uid in ("uid-3", "uid-4"):
        over = kept(uid, *[0.5] * 5)
        await store.end_runs([(over, outcome_of(over.run, ended=True), LabelledRun((1.0, 2.0), "training"))])
    for owner in ("one", "two"):
        await store.keep_advice(Advice(owner, "a=1", "b=1", NOON))

    def spoil(session: Session) -> None:
        for table, column, key in (
            ("runs", "sums", "pod_uid = 'uid-1'"),
            ("outcomes", "outcome", "pod_uid = 'uid-3'"),
            ("outcomes", "features", "pod_uid = 'uid-3'"),
            ("advice", "advice", "owner_key = 'one'"),
        ):
            statement = f"UPDATE optimizer_{table} SET {column} = :spoiled WHERE {key}"  # noqa: S608 - ours
            session.execute(text(statement), {"spoiled": spoiled})
        session.execute(text("UPDATE optimizer_sketches SET sketch = :spoiled"), {"spoiled": b"\x01" * 40})

    await database.write(spoil)
    everything = await store.load()
    over = kept("uid-5", *[0.5] * 5)
    await store.end_runs([(over, outcome_of(over.run, ended=True), None)])

    assert [each.run.pod_uid for each in everything.running] == ["uid-2"]
    assert [outcome.pod_uid for _, outcome in everything.ended] == ["uid-4"]
    assert LabelledRun((1.0, 2.0), "training") in await store.labelled(10)
    assert list(await store.advice()) == ["two"]
    _, sketch = (await store.sketches())[a_workload().signature.key]["utilization"]
    assert quantile_of(sketch, 0.5) == pytest.approx(0.5)


async def test_only_the_newest_model_and_what_is_not_too_old_is_kept(store: SqlStore) -> None:
    for number in range(5):
        await store.keep_model(f"model {number}".encode(), NOON + timedelta(hours=number))
    await store.keep_windows([kept("uid-1", 0.5)], UsageCursor("node", "spool", 1))
    advice = Advice("owner", "a=1", "b=1", NOON, 0.5, 7, NOON, 9)
    await store.keep_advice(advice)

    before = await store.advice()
    await store.forget(NOON + timedelta(days=1))

    everything = await store.load()
    assert before == {"owner": advice}
    assert await store.advice() == {}
    assert (everything.model, everything.running, everything.cursors) == (b"model 4", (), ())
