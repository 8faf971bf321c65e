"""What services count on, on SQLite and on PostgreSQL."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.orm import Session

from gpuloom.errors import ConflictError, DeadlineError, NotReadyError, UnavailableError
from gpuloom.runtime.clock import SystemClock
from gpuloom.store.database import Database
from gpuloom.store.errors import StoreFailedError
from gpuloom.store.migrations import Migrations
from gpuloom.store.settings import StoreConfig, database_url
from tests.contract.store.postgres import require_server, server_url

FOLDER = Path(__file__).parent / "migrations"
NOTES = Migrations("notes", FOLDER)


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[str]:
    require_server(os.environ)
    with server_url() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.real)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/notes.db"
    server: str = request.getfixturevalue("postgres_server")
    return server


@asynccontextmanager
async def a_database(url: str, *, max_waiting: int = 64, timeout_s: float = 10.0) -> AsyncIterator[Database]:
    config = StoreConfig(url=database_url(url), threads=4, timeout_s=timeout_s)
    async with Database(config, SystemClock(), max_waiting=max_waiting) as database:
        yield database


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """Migrated, and empty afterwards."""
    async with a_database(url) as database:
        await NOTES.upgrade(database)
        yield database
        await NOTES.downgrade(database)


def put(name: str, amount: int = 0) -> Callable[[Session], None]:
    def work(session: Session) -> None:
        statement = text("INSERT INTO notes (name, amount) VALUES (:name, :amount)")
        session.execute(statement, {"name": name, "amount": amount})

    return work


def amounts(session: Session) -> dict[str, int]:
    rows = session.execute(text("SELECT name, amount FROM notes ORDER BY name"))
    return {row.name: row.amount for row in rows}


async def test_a_write_is_there_for_the_next_read_and_work_is_off_the_loop(database: Database) -> None:
    loop_thread = threading.get_ident()

    await database.write(put("a", 2**53 + 1))
    found, thread = await database.read(lambda session: (amounts(session), threading.get_ident()))

    assert found == {"a": 2**53 + 1}
    assert thread != loop_thread


async def test_a_write_that_fails_leaves_nothing(database: Database) -> None:
    def work(session: Session) -> None:
        put("a")(session)
        raise LookupError("thought better of it")

    with pytest.raises(LookupError, match="thought better"):
        await database.write(work)

    assert await database.read(amounts) == {}


async def test_a_read_writes_nothing(database: Database) -> None:
    await database.read(put("a"))

    assert await database.read(amounts) == {}


async def test_writes_that_read_first_lose_no_update(database: Database) -> None:
    await database.write(put("a", 0))

    def add(session: Session) -> None:
        # On PostgreSQL the first statement locks the row; on SQLite the transaction has the write lock.
        session.execute(text("UPDATE notes SET owner = 'me' WHERE name = 'a'"))
        before = session.execute(text("SELECT amount FROM notes WHERE name = 'a'")).scalar_one()
        session.execute(text("UPDATE notes SET amount = :after WHERE name = 'a'"), {"after": before + 1})

    await asyncio.gather(*(database.write(add) for _ in range(20)))

    assert await database.read(amounts) == {"a": 20}


async def test_the_same_key_twice_is_a_conflict_that_names_no_value(database: Database) -> None:
    await database.write(put("a secret name"))

    with pytest.raises(ConflictError) as raised:
        await database.write(put("a secret name"))

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", ["'; DROP TABLE notes; --", 'a "quoted" name', "Grüße 🚀", "%s :name {x}"])
async def test_hostile_values_are_values(database: Database, name: str) -> None:
    await database.write(put(name, 1))

    assert await database.read(amounts) == {name: 1}


async def test_a_broken_statement_is_told_without_its_values(database: Database) -> None:
    with pytest.raises((StoreFailedError, UnavailableError)) as raised:
        await database.write(lambda session: session.execute(text("SELECT secret FROM nowhere")))

    assert "SELECT" not in str(raised.value)


async def test_more_work_than_may_wait_is_refused(url: str) -> None:
    async with a_database(url, max_waiting=1) as database:
        gate = threading.Event()
        first = asyncio.create_task(database.read(lambda session: gate.wait(10)))
        await asyncio.sleep(0)

        with pytest.raises(NotReadyError, match="busy"):
            await database.ping()
        gate.set()
        await first
        await database.ping()


async def test_a_lock_that_is_not_given_back_ends_in_a_deadline(url: str) -> None:
    async with a_database(url, timeout_s=0.2) as database:
        await NOTES.upgrade(database)
        await database.write(put("a"))
        held, gate = threading.Event(), threading.Event()

        def hold(session: Session) -> None:
            session.execute(text("UPDATE notes SET amount = 1 WHERE name = 'a'"))
            held.set()
            gate.wait(20)

        holder = asyncio.create_task(database.write(hold))
        await asyncio.to_thread(held.wait, 10)
        with pytest.raises(DeadlineError):
            await database.write(lambda session: session.execute(text("UPDATE notes SET amount = 2")))
        gate.set()
        await holder

        assert await database.read(amounts) == {"a": 1}
        await NOTES.downgrade(database)


async def test_migrations_go_up_and_down_step_by_step_and_keep_data(url: str) -> None:
    async with a_database(url) as database:
        await NOTES.upgrade(database, "0001")
        await database.write(put("a", 7))
        await NOTES.upgrade(database)
        owners = await database.read(
            lambda session: session.execute(text("SELECT owner FROM notes")).scalars().all()
        )
        await NOTES.downgrade(database, "0001")
        kept = await database.read(amounts)
        await NOTES.downgrade(database)

        assert (list(owners), kept, await NOTES.current(database)) == (["nobody"], {"a": 7}, None)


async def test_replicas_that_start_together_migrate_once(url: str) -> None:
    async with a_database(url) as one, a_database(url) as other:
        await asyncio.gather(*(NOTES.upgrade(database) for database in (one, other, one, other)))

        assert await NOTES.current(other) == "0002"
        await NOTES.downgrade(one)


async def test_a_database_of_a_newer_version_is_not_touched(url: str, tmp_path: Path) -> None:
    older = tmp_path / "older"
    older.mkdir()
    (older / "0001_notes.py").write_text((FOLDER / "0001_notes.py").read_text())
    async with a_database(url) as database:
        await NOTES.upgrade(database)

        with pytest.raises(StoreFailedError, match="another version of notes"):
            await Migrations("notes", older).upgrade(database)

        assert await NOTES.current(database) == "0002"
        await NOTES.downgrade(database)


@pytest.mark.real
async def test_a_server_that_cut_its_connections_is_used_again(postgres_server: str) -> None:
    async with a_database(postgres_server) as database, a_database(postgres_server) as other:
        await database.ping()
        cut = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        await other.write(lambda session: session.execute(cut).all())

        await database.ping()


@pytest.mark.real
async def test_a_server_that_is_not_there_is_unavailable(postgres_server: str) -> None:
    gone = make_url(postgres_server).set(host="127.0.0.1", port=1)
    async with a_database(gone.render_as_string(hide_password=False)) as database:
        with pytest.raises(UnavailableError):
            await database.ping()
