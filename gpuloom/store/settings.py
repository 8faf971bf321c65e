"""The settings of every service that keeps a database."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import integer, seconds

SQLITE = "sqlite"
POSTGRESQL = "postgresql"
_DRIVERS = {SQLITE: "sqlite+pysqlite", POSTGRESQL: "postgresql+psycopg"}


def database_url(raw: str) -> URL:
    """sqlite:///path, or postgresql://user:password@host:port/name with libpq's own parameters behind `?`."""
    try:
        url = make_url(raw.strip())
    except (ArgumentError, ValueError):
        # The text may hold a password, so it is not shown.
        raise ValueError("must be a URL like sqlite:///file.db or postgresql://user@host/name") from None
    kind = url.get_backend_name()
    if kind == "postgres":
        kind = POSTGRESQL
    if kind not in _DRIVERS:
        raise ValueError(f"must begin with sqlite:// or postgresql://, not {kind}://")
    if kind == SQLITE and url.database in (None, "", ":memory:"):
        raise ValueError("must name a file: what is kept in memory is lost with the process")
    return url.set(drivername=_DRIVERS[kind])


@dataclass(frozen=True)
class StoreConfig:
    url: URL | None = setting(
        "GPULOOM_DATABASE_URL",
        default=None,
        parse=database_url,
        secret=True,
        help="Where data is kept: sqlite:///file.db (one process) or postgresql://user:password@host/name",
    )
    threads: int = setting(
        "GPULOOM_DATABASE_THREADS",
        default=4,
        parse=integer(1, 64),
        help="How many sessions work at the same time at most; each has a connection of its own",
    )
    timeout_s: float = setting(
        "GPULOOM_DATABASE_TIMEOUT",
        default=30.0,
        parse=seconds,
        help="How long one statement, or the wait for a lock, may take",
    )

    def problems(self) -> Iterator[str]:
        if self.timeout_s <= 0:
            yield "GPULOOM_DATABASE_TIMEOUT must be above 0"
