"""What was spent, told apart by no more than budgets and team rules ask for.

A month of every pod by the hour is more than fits in memory, and budgets are looked at every minute: past
days are read as their sums, the day that lasts by hour, and rows are added up as they come.
"""

import json
from collections.abc import Iterable

from sqlalchemy import text
from sqlalchemy.orm import Session

from services.cost_engine.core.attribution import HOST, IDLE
from services.cost_engine.core.grouping import Amounts, CostFact
from services.cost_engine.core.intervals import PodIdentity, day_of

_ROWS_AT_ONCE = {"yield_per": 2000}
_WITHIN = "bucket_ns >= :start AND bucket_ns < :end"

Labels = tuple[tuple[str, str], ...]


def read_spending(
    session: Session, start_ns: int, end_ns: int, label_names: frozenset[str]
) -> list[CostFact]:
    """From a midnight on. Pods of a namespace that are alike in these labels are one."""
    today = day_of(end_ns - 1)
    sums: dict[tuple[int, str, str, str, Labels], list[int]] = {}
    for table, span in (("cost_day", (start_ns, today)), ("cost_hour", (today, end_ns))):
        if span[0] < span[1]:
            _add_up(session, table, {"start": span[0], "end": span[1]}, (label_names, sums))
    return [
        CostFact(
            bucket_ns=bucket,
            owner=whose,
            amounts=Amounts(cost=cost, unpriced_ns=unpriced_ns),
            pod=None if whose else PodIdentity("", namespace, "", dict(labels)),
            pool=pool,
        )
        for (bucket, whose, namespace, pool, labels), (cost, unpriced_ns) in sums.items()
    ]


def _add_up(
    session: Session,
    table: str,
    span: dict[str, int],
    into: tuple[frozenset[str], dict[tuple[int, str, str, str, Labels], list[int]]],
) -> None:
    label_names, sums = into
    labels = _labels(session, table, span, sorted(label_names)) if label_names else {}
    keys = (
        f"bucket_ns, CASE WHEN owner IN ('{IDLE}', '{HOST}') THEN owner ELSE '' END, namespace, pool"
        f"{', owner' if label_names else ''}"
    )
    groups = ", ".join(str(place + 1) for place in range(5 if label_names else 4))
    statement = text(
        f"SELECT {keys}, SUM(cost), SUM(unpriced_ns) FROM {table} WHERE {_WITHIN} GROUP BY {groups}"
    )
    for row in session.execute(statement, span, execution_options=_ROWS_AT_ONCE):
        bucket, whose, namespace, pool, *owner, cost, unpriced_ns = row
        key = (bucket, whose, namespace, pool, labels.get(owner[0], ()) if owner else ())
        known = sums.setdefault(key, [0, 0])
        known[0] += int(cost)
        known[1] += int(unpriced_ns)


def _labels(session: Session, table: str, span: dict[str, int], names: Iterable[str]) -> dict[str, Labels]:
    """Of pods that have any of these; the same ones are one object."""
    alike: dict[Labels, Labels] = {}
    found: dict[str, Labels] = {}
    statement = text(f"SELECT uid, labels FROM pod WHERE uid IN (SELECT owner FROM {table} WHERE {_WITHIN})")
    for uid, document in session.execute(statement, span, execution_options=_ROWS_AT_ONCE):
        told = json.loads(document)
        labels = tuple((name, str(told[name])) for name in names if name in told)
        if labels:
            found[uid] = alike.setdefault(labels, labels)
    return found
