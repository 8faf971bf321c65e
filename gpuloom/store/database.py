"""One database: transactions that run in threads, so that the event loop never waits for SQL.

`read` and `write` take a function of a session and give back what it returns. A session lives as long as its
function: commit on return, rollback on an error. A write that met another one (a serialization failure, a
deadlock, a lock) is done again from its beginning, so the function must not do anything but SQL.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from gpuloom.errors import NotReadyError
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock
from gpuloom.store.engine import WRITES, make_engine
from gpuloom.store.errors import may_work_again, translated
from gpuloom.store.settings import SQLITE, StoreConfig

_log = logging.getLogger(__name__)

Result = TypeVar("Result")
Work = Callable[[Session], Result]

MAX_TRIES = 6
MAX_WAITING = 256
"""Transactions under way or waiting for a thread; one more is refused, so that memory stays bounded."""


class Database:
    """Use it as an async context manager; leaving it waits for transactions under way."""

    def __init__(self, config: StoreConfig, clock: Clock, *, max_waiting: int = MAX_WAITING) -> None:
        if config.url is None:
            raise ValueError("a database needs GPULOOM_DATABASE_URL")
        self.is_sqlite = config.url.get_backend_name() == SQLITE
        self.engine: Engine = make_engine(config.url, connections=config.threads, timeout_s=config.timeout_s)
        self._threads = ThreadPoolExecutor(config.threads, thread_name_prefix="sql")
        self._clock = clock
        self._max_waiting = max_waiting
        self._waiting = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)
        self.engine.dispose()

    async def read(self, work: Work[Result]) -> Result:
        """In a transaction that sees one state of the database; what it writes is rolled back."""
        return await self._off_the_loop(lambda: self._read(work))

    async def write(self, work: Work[Result]) -> Result:
        """In one transaction: all of it or nothing. On UnavailableError it is not known which."""
        backoff = Backoff(first_s=0.01, cap_s=0.5)
        for tried in range(1, MAX_TRIES + 1):
            try:
                return await self._off_the_loop(lambda: self._write(work))
            except SQLAlchemyError as error:
                if tried == MAX_TRIES or not may_work_again(error):
                    raise translated(error) from error
                _log.info("transaction met another one", extra={"tried": tried})
            await self._clock.sleep(backoff.next_delay_s())
        raise AssertionError("the last try returns or raises")

    async def ping(self) -> None:
        """Raise if the database does not answer."""
        await self.read(lambda session: session.execute(text("SELECT 1")).scalar_one())

    async def run(self, function: Callable[[], Result]) -> Result:
        """Anything else that blocks on this database, such as a migration."""
        return await self._off_the_loop(function)

    async def _off_the_loop(self, function: Callable[[], Result]) -> Result:
        if self._waiting >= self._max_waiting:
            raise NotReadyError("the database is busy; try again later")
        self._waiting += 1
        try:
            # Of a caller that is cancelled meanwhile the transaction goes on, and ends by itself.
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        finally:
            self._waiting -= 1

    def _read(self, work: Work[Result]) -> Result:
        try:
            with Session(self.engine, expire_on_commit=False) as session:
                found = work(session)
                session.rollback()
                return found
        except SQLAlchemyError as error:
            raise translated(error) from error

    def _write(self, work: Work[Result]) -> Result:
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            session.connection(execution_options={WRITES: True})
            return work(session)
