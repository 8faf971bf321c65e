"""What goes wrong in a database, as our own errors. Their text never holds a statement or its values."""

from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gpuloom.errors import ConflictError, DeadlineError, GpuloomError, NotReadyError, UnavailableError

# PostgreSQL's codes: serialization failure, deadlock, lock not available; then a statement out of time.
_AGAIN = frozenset({"40001", "40P01", "55P03"})
_CANCELLED = "57014"
_STARTING_OR_STOPPING = frozenset({"57P01", "57P02", "57P03"})
_LOCKED = ("database is locked", "database table is locked")


class StoreFailedError(GpuloomError):
    """The database refused what was asked: a missing table, a full disk, a broken file."""


def may_work_again(error: SQLAlchemyError) -> bool:
    """Whether the same transaction, done again from its beginning, may succeed. It left nothing behind."""
    if not isinstance(error, DBAPIError):
        return False
    return _code(error) in _AGAIN or any(text in str(error.orig) for text in _LOCKED)


def translated(error: SQLAlchemyError) -> GpuloomError:
    if isinstance(error, PoolTimeoutError):
        return NotReadyError("no connection to the database became free in time")
    if isinstance(error, IntegrityError):
        return ConflictError("the database holds something else under the same key")
    if isinstance(error, DBAPIError):
        return _of_driver(error)
    return StoreFailedError(f"the database could not be used ({type(error).__name__})")


def _of_driver(error: DBAPIError) -> GpuloomError:
    code = _code(error)
    if code == _CANCELLED or may_work_again(error):
        return DeadlineError("the database took too long")
    if error.connection_invalidated or code in _STARTING_OR_STOPPING:
        return UnavailableError("the connection to the database broke")
    if isinstance(error, InterfaceError) or (isinstance(error, OperationalError) and not code):
        return UnavailableError(f"the database can't be used: {_first_line(error)}")
    return StoreFailedError(f"the database refused: {_first_line(error)}")


def _code(error: DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


def _first_line(error: DBAPIError) -> str:
    """The driver's own sentence. What follows its first line may quote values."""
    return (str(error.orig).strip().splitlines() or ["no reason given"])[0][:200]
