"""Migrations of one service's schema by Alembic, run at its start and by nobody else.

All steps that are missing run in one transaction, under a lock: of several replicas that start at once one
migrates and the others find it done; a process that dies in between leaves the schema as it was.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from gpuloom.store.database import Database
from gpuloom.store.engine import WRITES
from gpuloom.store.errors import StoreFailedError, translated

NEWEST = "head"
NOTHING = "base"
# One number for all services that share a database: a migration is seldom, and none waits long.
_LOCK = 0x67707531
_ENVIRONMENT = Path(__file__).parent / "environment"

Step = Callable[[Config, str], None]


@dataclass(frozen=True, slots=True)
class Migrations:
    """`folder` holds Alembic's revision files; `service` names the table that tells the revision."""

    service: str
    folder: Path

    @property
    def version_table(self) -> str:
        return f"{self.service}_schema_version"

    async def upgrade(self, database: Database, revision: str = NEWEST) -> None:
        """Raise StoreFailedError for a database that a newer version of the service has migrated."""
        await database.run(lambda: self._run(database, command.upgrade, revision))

    async def downgrade(self, database: Database, revision: str = NOTHING) -> None:
        await database.run(lambda: self._run(database, command.downgrade, revision))

    async def current(self, database: Database) -> str | None:
        return await database.run(lambda: self._current(database))

    def _run(self, database: Database, step: Step, revision: str) -> None:
        engine = database.engine.execution_options(**{WRITES: True})
        try:
            with engine.begin() as connection:
                _lock(connection, database.is_sqlite)
                step(self._config(connection, database.is_sqlite), revision)
        except CommandError as error:
            raise StoreFailedError(
                f"the database was migrated by another version of {self.service}: {error}"
            ) from error
        except SQLAlchemyError as error:
            raise translated(error) from error

    def _config(self, connection: Connection, is_sqlite: bool) -> Config:
        config = Config()
        config.set_main_option("script_location", _quoted(_ENVIRONMENT))
        config.set_main_option("path_separator", "newline")
        config.set_main_option("version_locations", _quoted(self.folder))
        config.attributes.update(connection=connection, version_table=self.version_table, is_sqlite=is_sqlite)
        return config

    def _current(self, database: Database) -> str | None:
        try:
            with database.engine.connect() as connection:
                context = MigrationContext.configure(connection, opts={"version_table": self.version_table})
                return context.get_current_revision()
        except SQLAlchemyError as error:
            raise translated(error) from error


def _quoted(path: Path) -> str:
    """In Alembic's options a percent sign begins a placeholder."""
    return str(path).replace("%", "%%")


def _lock(connection: Connection, is_sqlite: bool) -> None:
    """SQLite's transaction holds the write lock from its beginning."""
    if not is_sqlite:
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})
