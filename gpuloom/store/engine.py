"""The engine for one database, set up so that both kinds behave alike.

SQLite: write-ahead log, foreign keys, full durability, and every transaction that will write takes the write
lock when it begins; upgrading a read lock later fails at once where another session wrote in between.
PostgreSQL: time limits of the server itself, so that a statement ends even if this process forgot it.
"""

from sqlite3 import Connection as SqliteConnection
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL, Engine
from sqlalchemy.pool import QueuePool

from gpuloom.store.settings import SQLITE

WRITES = "gpuloom_writes"
"""Execution option of a connection whose transaction is going to write."""
POOL_RECYCLE_S = 1800


def make_engine(url: URL, *, connections: int, timeout_s: float) -> Engine:
    """Nothing is connected to yet."""
    if url.get_backend_name() == SQLITE:
        return _sqlite(url, connections, timeout_s)
    timeout_ms = int(timeout_s * 1000)
    options = f"-c statement_timeout={timeout_ms} -c lock_timeout={timeout_ms} -c timezone=UTC"
    given = url.query.get("options", "")
    arguments = {
        "options": f"{given} {options}".strip(),
        "connect_timeout": max(2, int(timeout_s)),
        "application_name": "gpuloom",
    }
    return create_engine(
        url,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=timeout_s,
        # A server that restarted has cut every connection; the first use finds out, not the first statement.
        pool_pre_ping=True,
        pool_recycle=POOL_RECYCLE_S,
        connect_args=arguments,
    )


def _sqlite(url: URL, connections: int, timeout_s: float) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=timeout_s,
        connect_args={"timeout": timeout_s, "check_same_thread": False},
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: SqliteConnection, _: Any) -> None:
    # The driver's own way to begin transactions leaves out reads and DDL; SQLAlchemy's events do it instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
