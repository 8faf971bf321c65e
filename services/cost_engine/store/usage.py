"""Usage windows and how far each spool was read, written together: a replay changes nothing.

PostgreSQL gets rows by COPY. A window that is there already makes that fail as a whole; then the rows take
the longer way through a staging table, which leaves out what is known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from gpuloom.model.usage import UsageCursor
from services.cost_engine.core.attribution import UsageTotals
from services.cost_engine.core.intervals import DAY_NS, day_of, hour_of
from services.cost_engine.core.windows import UsageRow

COLUMNS = (
    "start_ns",
    "end_ns",
    "node_uid",
    "pod_uid",
    "device",
    "milli",
    "held_ns",
    "measured_ns",
    "used_ns",
    "share_ns",
    "energy_mj",
    "memory_peak_bytes",
)
_LISTED = ", ".join(COLUMNS)
_VALUES = ", ".join(f":{name}" for name in COLUMNS)
# Text of COPY: these characters would end a field or a row.
_NULL = "\\N"
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True, slots=True)
class SpoolState:
    """A cursor, and where the last window was placed to end."""

    cursor: UsageCursor
    last_end_ns: int
    missed: int = 0
    moved: int = 0


def is_sqlite(session: Session) -> bool:
    return session.get_bind().dialect.name == "sqlite"


def write_rows(session: Session, rows: Sequence[UsageRow], known_days: set[int]) -> None:
    """Each (window start, pod, device) once, whoever sends it how often.

    `known_days` are days that have their partition; those that are found to have one are added.
    """
    if not rows:
        return
    if is_sqlite(session):
        statement = text(f"INSERT INTO usage_window ({_LISTED}) VALUES ({_VALUES}) ON CONFLICT DO NOTHING")
        session.execute(statement, [_values(row) for row in rows])
        return
    ensure_partitions(session, {day_of(row.start_ns) for row in rows}, known_days)
    lines = copy_lines(rows)
    try:
        with session.begin_nested():
            _copy(session, "usage_window", lines)
    except IntegrityError:
        session.execute(
            text("CREATE TEMP TABLE staged (LIKE usage_window INCLUDING DEFAULTS) ON COMMIT DROP")
        )
        _copy(session, "staged", lines)
        session.execute(
            text(f"INSERT INTO usage_window ({_LISTED}) SELECT {_LISTED} FROM staged ON CONFLICT DO NOTHING")
        )
        session.execute(text("DROP TABLE staged"))


def copy_lines(rows: Iterable[UsageRow]) -> str:
    return "".join(map(_line, rows))


def spool_states(session: Session, spool_ids: Sequence[str]) -> dict[str, SpoolState]:
    names = {f"s{place}": spool for place, spool in enumerate(spool_ids)}
    listed = ", ".join(f":{name}" for name in names) or "NULL"
    rows = session.execute(text(f"SELECT * FROM usage_cursor WHERE spool_id IN ({listed})"), names)
    return {
        row.spool_id: SpoolState(
            UsageCursor(row.node_uid, row.spool_id, row.sequence), row.last_end_ns, row.missed, row.moved
        )
        for row in rows
    }


def cursors(session: Session) -> list[UsageCursor]:
    rows = session.execute(text("SELECT * FROM usage_cursor ORDER BY spool_id"))
    return [UsageCursor(row.node_uid, row.spool_id, row.sequence) for row in rows]


def save_spools(session: Session, states: Sequence[SpoolState]) -> None:
    if not states:
        return
    session.execute(
        text(
            "INSERT INTO usage_cursor (node_uid, spool_id, sequence, last_end_ns, missed, moved) "
            "VALUES (:node, :spool, :sequence, :end, :missed, :moved) "
            "ON CONFLICT (spool_id) DO UPDATE SET node_uid = excluded.node_uid, "
            "sequence = excluded.sequence, last_end_ns = excluded.last_end_ns, "
            "missed = excluded.missed, moved = excluded.moved"
        ),
        [
            {
                "node": state.cursor.node_uid,
                "spool": state.cursor.spool_id,
                "sequence": state.cursor.sequence,
                "end": state.last_end_ns,
                "missed": state.missed,
                "moved": state.moved,
            }
            for state in states
        ],
    )


def totals_between(
    session: Session, start_ns: int, end_ns: int, node_uids: Sequence[str]
) -> dict[tuple[str, str], UsageTotals]:
    """By node and pod, of windows that begin in this time."""
    names = {f"n{place}": uid for place, uid in enumerate(node_uids)}
    rows = session.execute(
        text(
            "SELECT node_uid, pod_uid, SUM(measured_ns) AS measured, SUM(share_ns) AS share, "
            "COALESCE(SUM(energy_mj), 0) AS energy FROM usage_window "
            "WHERE start_ns >= :start AND start_ns < :end "
            f"AND node_uid IN ({', '.join(f':{name}' for name in names)}) GROUP BY node_uid, pod_uid"
        ),
        {"start": start_ns, "end": end_ns, **names},
    )
    return {
        (row.node_uid, row.pod_uid): UsageTotals(int(row.measured), int(row.share), int(row.energy))
        for row in rows
    }


def last_seen_ns(session: Session, pod_uids: Sequence[str], since_ns: int) -> dict[str, int]:
    """Until when a window shows each of these pods; what began before that time is not searched."""
    if not pod_uids:
        return {}
    names = {f"p{place}": uid for place, uid in enumerate(pod_uids)}
    rows = session.execute(
        text(
            "SELECT pod_uid, MAX(end_ns) AS seen FROM usage_window WHERE start_ns >= :since AND held_ns > 0 "
            f"AND pod_uid IN ({', '.join(f':{name}' for name in names)}) GROUP BY pod_uid"
        ),
        {"since": since_ns, **names},
    )
    return {row.pod_uid: int(row.seen) for row in rows}


def drop_before(session: Session, time_ns: int) -> None:
    """Whole days where days are partitions, the rest row by row."""
    if not is_sqlite(session):
        for name, day_ns in _partitions(session).items():
            if day_ns + DAY_NS <= time_ns:
                session.execute(text(f"DROP TABLE {name}"))
    session.execute(text("DELETE FROM usage_window WHERE start_ns < :time"), {"time": time_ns})


def ensure_partitions(session: Session, days: set[int], known_days: set[int]) -> None:
    """A day's partition is made before its first row; rows that got into the rest are moved into it.

    One that is made here is not known yet: the transaction may come to nothing.
    """
    if days <= known_days:
        return
    if not _is_partitioned(session):
        known_days |= days
        return
    existing = set(_partitions(session).values())
    known_days |= days & existing
    for day_ns in sorted(days - existing):
        name = _partition_name(day_ns)
        session.execute(text(f"CREATE TABLE {name} (LIKE usage_window INCLUDING ALL)"))
        session.execute(
            text(
                f"WITH moved AS (DELETE FROM usage_window_rest WHERE start_ns >= {day_ns} "
                f"AND start_ns < {day_ns + DAY_NS} RETURNING *) INSERT INTO {name} SELECT * FROM moved"
            )
        )
        session.execute(
            text(
                f"ALTER TABLE usage_window ATTACH PARTITION {name} "
                f"FOR VALUES FROM ({day_ns}) TO ({day_ns + DAY_NS})"
            )
        )


def touched_hours(rows: Iterable[UsageRow]) -> set[tuple[int, str]]:
    return {(hour_of(row.start_ns), row.node_uid) for row in rows}


def _is_partitioned(session: Session) -> bool:
    statement = "SELECT relkind = 'p' FROM pg_class WHERE oid = 'usage_window'::regclass"
    return bool(session.execute(text(statement)).scalar())


def _partitions(session: Session) -> dict[str, int]:
    """Name and day of each."""
    rows = session.execute(
        text(
            "SELECT child.relname AS name FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
            "WHERE inhparent = 'usage_window'::regclass AND child.relname LIKE 'usage_window_d%'"
        )
    )
    return {row.name: int(row.name.removeprefix("usage_window_d")) * DAY_NS for row in rows}


def _partition_name(day_ns: int) -> str:
    return f"usage_window_d{day_ns // DAY_NS}"


def _copy(session: Session, table: str, lines: str) -> None:
    connection: Any = session.connection().connection.driver_connection
    with connection.cursor() as cursor:
        try:
            with cursor.copy(f"COPY {table} ({_LISTED}) FROM STDIN") as copy:
                copy.write(lines)
        except Exception as error:
            driver: Any = session.get_bind().dialect.dbapi
            if not isinstance(error, driver.Error):
                raise
            # As SQLAlchemy would: whoever writes waits for a server that is slow or full, and tries again.
            raise DBAPIError.instance("COPY", None, error, driver.Error) from error


def _line(row: UsageRow) -> str:
    energy, memory = row.energy_mj, row.memory_peak_bytes
    return (
        f"{row.start_ns}\t{row.end_ns}\t{_escaped(row.node_uid)}\t{_escaped(row.pod_uid)}"
        f"\t{_escaped(row.device)}\t{row.milli}\t{row.held_ns}\t{row.measured_ns}\t{row.used_ns}"
        f"\t{row.share_ns}\t{_NULL if energy is None else energy}\t{_NULL if memory is None else memory}\n"
    )


# The same names come every minute.
@lru_cache(maxsize=65_536)
def _escaped(name: str) -> str:
    return name.translate(_ESCAPES)


def _values(row: UsageRow) -> dict[str, Any]:
    return {**asdict(row), "share_ns": row.share_ns}
