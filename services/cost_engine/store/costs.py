"""Costs by node, owner and hour, and their sums by day: always what the intervals and windows give.

An hour of a node is computed as a whole and replaces what was there, so computing it again after late or
repeated windows gives the same rows. The mark that asked for it goes in the same transaction, unless it was
set anew meanwhile.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from services.cost_engine.core.attribution import HOST, IDLE, CostRow, NodeHour, UsageTotals, attribute
from services.cost_engine.core.grouping import Amounts, CostFact
from services.cost_engine.core.intervals import (
    DAY_NS,
    HOUR_NS,
    NodeInterval,
    PodIdentity,
    PodInterval,
    day_of,
    hour_of,
    hours_between,
)
from services.cost_engine.core.prices import PriceBook
from services.cost_engine.store import intervals, usage

NODES_A_TRANSACTION = 200
_SUMS = (
    "cost",
    "used",
    "idle",
    "unknown",
    "unallocated",
    "baseline",
    "on_demand",
    "unit_ms",
    "unpriced_ns",
    "energy_mj",
)
_ROW_KEYS = ("node_uid", "owner", "price")
_KEYS = (
    *_ROW_KEYS,
    "node",
    "namespace",
    "pool",
    "capacity_type",
    "instance_type",
    "quality",
    "mechanism",
)
_COLUMNS = ("bucket_ns", *_KEYS, *_SUMS, "as_of_ns")
_SUMMED = ", ".join(f"SUM({name})" for name in _SUMS)
_ROWS_AT_ONCE = 2000
_COMPUTATION = 0x6C6F6F6D
"""The key of its lock in PostgreSQL."""
_INSERT = (
    f"INSERT INTO cost_hour ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
)


@dataclass(frozen=True, slots=True)
class Computation:
    """`now_ns`: until when an hour that lasts still is computed."""

    book: PriceBook
    now_ns: int
    gpu_permille: int


def dirty_hours(session: Session, now_ns: int, limit: int) -> list[tuple[int, list[str]]]:
    """Those that have begun, the newest first, because people look at them; at most so many nodes in all."""
    rows = session.execute(
        text(
            "SELECT hour_ns, node_uid FROM dirty_hour WHERE hour_ns < :now "
            "ORDER BY hour_ns DESC, node_uid LIMIT :limit"
        ),
        {"now": now_ns, "limit": limit},
    )
    found: dict[int, list[str]] = {}
    for row in rows:
        found.setdefault(row.hour_ns, []).append(row.node_uid)
    return list(found.items())


def compute_hour(session: Session, hour_ns: int, node_uids: Sequence[str], how: Computation) -> int:
    """Replace the rows of these nodes in this hour, and their sums of the day; return how many rows."""
    marks = _marks(session, hour_ns, node_uids)
    _wait_for_others(session)
    end_ns = min(hour_ns + HOUR_NS, how.now_ns)
    nodes = intervals.nodes_between(session, hour_ns, end_ns, node_uids)
    pods = intervals.pods_between(session, hour_ns, end_ns, node_uids)
    used = _usage(session, hour_ns, node_uids, _cuts(how.book, nodes, hour_ns))
    names = intervals.identities(session, sorted({pod.pod_uid for held in pods.values() for pod in held}))
    rows = []
    for node in nodes:
        held = pods.get(node.node_uid, [])
        problem = NodeHour(node, hour_ns, end_ns, held, used.get(node.node_uid, {}), how.gpu_permille)
        rows += _records(hour_ns, node, attribute(problem, how.book), (held, names, how.now_ns))
    clause, uids = _listed(node_uids)
    session.execute(
        text(f"DELETE FROM cost_hour WHERE bucket_ns = :hour AND node_uid IN ({clause})"),
        {"hour": hour_ns, **uids},
    )
    if rows:
        session.execute(text(_INSERT), rows)
    _sum_day(session, day_of(hour_ns), node_uids)
    statement = "DELETE FROM dirty_hour WHERE hour_ns = :hour AND node_uid = :node AND marked = :marked"
    done = [{"hour": hour_ns, "node": node, "marked": marked} for node, marked in marks.items()]
    if done:
        session.execute(text(statement), done)
    return len(rows)


def _wait_for_others(session: Session) -> None:
    """One computation at a time: that of an engine that was killed may still be under way on the server.

    Without it, both would delete what neither sees of the other, and the second could not insert.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _COMPUTATION})


def mark_open(session: Session, now_ns: int, not_before_ns: int) -> None:
    """Time has gone on for every node that was there since this was asked last, however long ago that is."""
    last = session.execute(text("SELECT marked_ns FROM progress")).scalar()
    if last is None:
        last = session.execute(text("SELECT MIN(start_ns) FROM node_interval")).scalar()
    start_ns = max(now_ns if last is None else min(int(last), now_ns), not_before_ns)
    hours = [
        (hour, node.node_uid)
        for hour in hours_between(start_ns, now_ns + 1)
        for node in intervals.nodes_between(session, max(hour, start_ns), hour + HOUR_NS)
    ]
    intervals.mark(session, hours, not_before_ns)
    statement = (
        "INSERT INTO progress (id, marked_ns) VALUES (1, :now) "
        "ON CONFLICT (id) DO UPDATE SET marked_ns = excluded.marked_ns"
    )
    session.execute(text(statement), {"now": now_ns})


@dataclass(frozen=True, slots=True)
class Window:
    """Whole hours, or days where `step_ns` is a day or more. `step_ns` 0: all in one."""

    start_ns: int
    end_ns: int
    step_ns: int = 0

    def bucket(self, time_ns: int) -> int:
        return self.start_ns if self.step_ns == 0 else time_ns - time_ns % self.step_ns


def read_facts(
    session: Session, window: Window, dimensions: frozenset[str], conditions: Mapping[str, Sequence[str]]
) -> Generator[CostFact, None, None]:
    """Sums of what `dimensions` asks for, one after the other: they may be more than fit in memory.

    `owner` among them gives pods with their labels.
    """
    columns = tuple(name for name in _KEYS if name in dimensions)
    where, values = _conditions(conditions)
    bucket = f"bucket_ns - bucket_ns % {window.step_ns}" if window.step_ns else "0"
    whose = f"CASE WHEN owner IN ('{IDLE}', '{HOST}') THEN owner ELSE '' END"
    parts, spans = [], dict[str, int]()
    for place, (table, start_ns, end_ns) in enumerate(_spans(window)):
        named = ", ".join((f"{bucket} AS bucket", f"{whose} AS whose", *columns, *_SUMS))
        span = f"bucket_ns >= :start{place} AND bucket_ns < :end{place}"
        parts.append(f"SELECT {named} FROM {table} WHERE {span}{where}")
        spans |= {f"start{place}": start_ns, f"end{place}": end_ns}
    keys = ", ".join((*columns, "bucket", "whose"))
    by_pod = "owner" in dimensions
    # A pod's rows come together, so that its labels are read about once. By all keys: SQLite sorts once then.
    statement = (
        f"SELECT {keys}, {_SUMMED} FROM ({' UNION ALL '.join(parts)}) part "
        f"GROUP BY {keys}{f' ORDER BY {keys}' if by_pod else ''}"
    )
    streamed = {"yield_per": _ROWS_AT_ONCE}
    with session.execute(text(statement), {**spans, **values}, execution_options=streamed) as result:
        for rows in result.partitions(_ROWS_AT_ONCE):
            pods = intervals.identities(session, sorted({row.owner for row in rows})) if by_pod else {}
            for row in rows:
                named_as = dict(zip(columns, row, strict=False))
                amounts = [int(value) for value in row[len(columns) + 2 :]]
                yield _fact(window, row.bucket, row.whose, named_as, (amounts, pods))


def drop_hours_before(session: Session, time_ns: int) -> None:
    session.execute(text("DELETE FROM cost_hour WHERE bucket_ns < :time"), {"time": time_ns})


def earliest_due_ns(session: Session) -> int | None:
    """The first hour that is still to be computed, as far as that is known; None before the first mark."""
    due = "SELECT hour_ns FROM dirty_hour UNION ALL SELECT marked_ns FROM progress"
    statement = f"SELECT MIN(hour_ns) FROM ({due}) due"
    value = session.execute(text(statement)).scalar()
    return None if value is None else hour_of(int(value))


def last_computed_ns(session: Session) -> int | None:
    value = session.execute(text("SELECT MAX(as_of_ns) FROM cost_hour")).scalar()
    return None if value is None else int(value)


def has_marks(session: Session, start_ns: int, end_ns: int) -> bool:
    statement = "SELECT 1 FROM dirty_hour WHERE hour_ns >= :start AND hour_ns < :end LIMIT 1"
    return session.execute(text(statement), {"start": start_ns, "end": end_ns}).first() is not None


def _fact(
    window: Window,
    bucket: int,
    whose: str,
    named: Mapping[str, str],
    context: tuple[list[int], Mapping[str, PodIdentity]],
) -> CostFact:
    amounts, pods = context
    pod: PodIdentity | None = None
    if not whose:
        uid = named.get("owner", "")
        pod = pods.get(uid) or PodIdentity(uid, named.get("namespace", ""), uid)
    return CostFact(
        bucket_ns=int(bucket) if window.step_ns else window.start_ns,
        owner=whose or named.get("owner", ""),
        amounts=Amounts(**dict(zip(_SUMS, amounts, strict=True))),
        pod=pod,
        node=named.get("node", ""),
        pool=named.get("pool", ""),
        capacity_type=named.get("capacity_type", ""),
        instance_type=named.get("instance_type", ""),
        quality=named.get("quality", ""),
        mechanism=named.get("mechanism", ""),
    )


def _spans(window: Window) -> list[tuple[str, int, int]]:
    """Days where whole days are asked for, hours for the rest."""
    start_ns, end_ns = window.start_ns, window.end_ns
    first_day, last_day = -(-start_ns // DAY_NS) * DAY_NS, day_of(end_ns)
    by_day = window.step_ns == 0 or window.step_ns % DAY_NS == 0
    if not by_day or first_day >= last_day:
        return [("cost_hour", start_ns, end_ns)]
    spans = [
        ("cost_hour", start_ns, first_day),
        ("cost_day", first_day, last_day),
        ("cost_hour", last_day, end_ns),
    ]
    return [span for span in spans if span[1] < span[2]]


def _conditions(conditions: Mapping[str, Sequence[str]]) -> tuple[str, dict[str, str]]:
    parts, values = [], {}
    for column, allowed in conditions.items():
        if column not in _KEYS:
            raise ValueError(f"no column {column}")
        names = {f"c_{column}_{place}": value for place, value in enumerate(allowed)}
        parts.append(f" AND {column} IN ({', '.join(f':{name}' for name in names) or 'NULL'})")
        values.update(names)
    return "".join(parts), values


def _usage(
    session: Session, hour_ns: int, node_uids: Sequence[str], cuts: Sequence[int]
) -> dict[str, dict[str, list[tuple[int, UsageTotals]]]]:
    found: dict[str, dict[str, list[tuple[int, UsageTotals]]]] = {}
    for first, last in zip(cuts, (*cuts[1:], hour_ns + HOUR_NS), strict=True):
        for (node, pod), totals in usage.totals_between(session, first, last, node_uids).items():
            found.setdefault(node, {}).setdefault(pod, []).append((first, totals))
    return found


def _cuts(book: PriceBook, nodes: Sequence[NodeInterval], hour_ns: int) -> list[int]:
    """Where the price of one of these nodes changes: windows are summed between."""
    cuts = {hour_ns}
    for node in nodes:
        segments = book.segments(node.traits, hour_ns, hour_ns + HOUR_NS)
        cuts.update(segment.start_ns for segment in segments)
        if hour_ns < node.start_ns < hour_ns + HOUR_NS:
            cuts.add(node.start_ns)
    return sorted(cuts)


def _records(
    hour_ns: int,
    node: NodeInterval,
    rows: Sequence[CostRow],
    context: tuple[Sequence[PodInterval], Mapping[str, PodIdentity], int],
) -> list[dict[str, Any]]:
    held, names, now_ns = context
    mechanisms = {pod.pod_uid: pod.claim.mechanism for pod in held}
    return [
        {
            "bucket_ns": hour_ns,
            "node_uid": node.node_uid,
            "owner": row.owner,
            # Two intervals of a node may meet in an hour under one price.
            "price": f"{row.price.key if row.price else ''}|{node.start_ns}",
            "node": node.traits.name,
            "namespace": names[row.owner].namespace if row.owner in names else "",
            "pool": node.traits.pool,
            "capacity_type": node.traits.capacity_type or "on-demand",
            "instance_type": node.traits.instance_type,
            "quality": str(row.price.quality) if row.price else "",
            "mechanism": mechanisms.get(row.owner, ""),
            "cost": row.cost,
            "used": row.used,
            "idle": row.idle,
            "unknown": row.unknown,
            "unallocated": row.cost if row.owner in (IDLE, HOST) else 0,
            "baseline": row.baseline,
            "on_demand": row.on_demand,
            "unit_ms": row.unit_ns // 1_000_000,
            "unpriced_ns": row.unpriced_ns,
            "energy_mj": row.energy_mj,
            "as_of_ns": now_ns,
        }
        for row in rows
    ]


def _sum_day(session: Session, day_ns: int, node_uids: Sequence[str]) -> None:
    clause, uids = _listed(node_uids)
    values = {"day": day_ns, "end": day_ns + DAY_NS, **uids}
    session.execute(
        text(f"DELETE FROM cost_day WHERE bucket_ns = :day AND node_uid IN ({clause})"), values | {"end": 0}
    )
    # Hours that are still to be computed anew may call the same owner otherwise: it has one row all the same.
    named = ", ".join(f"MAX({name})" for name in _KEYS[len(_ROW_KEYS) :])
    keys = ", ".join(_ROW_KEYS)
    session.execute(
        text(
            f"INSERT INTO cost_day ({', '.join(_COLUMNS)}) "
            f"SELECT CAST(:day AS BIGINT), {keys}, {named}, {_SUMMED}, MAX(as_of_ns) FROM cost_hour "
            f"WHERE bucket_ns >= :day AND bucket_ns < :end AND node_uid IN ({clause}) GROUP BY {keys}"
        ),
        values,
    )


def _marks(session: Session, hour_ns: int, node_uids: Sequence[str]) -> dict[str, int]:
    clause, uids = _listed(node_uids)
    statement = f"SELECT node_uid, marked FROM dirty_hour WHERE hour_ns = :hour AND node_uid IN ({clause})"
    rows = session.execute(text(statement), {"hour": hour_ns, **uids})
    return {row.node_uid: row.marked for row in rows}


def _listed(uids: Sequence[str]) -> tuple[str, dict[str, str]]:
    names = {f"n{place}": uid for place, uid in enumerate(uids)}
    return ", ".join(f":{name}" for name in names) or "NULL", names
