"""Nodes and pods from when to when, as they are kept. Every change marks the hours it touches."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from services.cost_engine.core.intervals import (
    Claim,
    NodeInterval,
    NodeTraits,
    PodIdentity,
    PodInterval,
    hours_between,
)

_TRAITS = (
    "name",
    "gpu_count",
    "advertised",
    "provider",
    "region",
    "zone",
    "instance_type",
    "capacity_type",
    "pool",
    "gpu_model",
)


def open_nodes(session: Session) -> list[tuple[NodeInterval, int]]:
    """Those that last still, with when each was last known to be there."""
    rows = session.execute(text("SELECT * FROM node_interval WHERE end_ns IS NULL"))
    return [(_node(row), row.seen_ns) for row in rows]


def open_pods(session: Session) -> list[tuple[PodInterval, int]]:
    rows = session.execute(text("SELECT * FROM pod_interval WHERE end_ns IS NULL"))
    return [(_pod_interval(row), row.seen_ns) for row in rows]


def save_node(session: Session, node: NodeInterval, seen_ns: int) -> None:
    columns = ", ".join(_TRAITS)
    session.execute(
        text(
            f"INSERT INTO node_interval (node_uid, start_ns, end_ns, seen_ns, {columns}) "
            f"VALUES (:node_uid, :start_ns, :end_ns, :seen_ns, {', '.join(f':{name}' for name in _TRAITS)}) "
            "ON CONFLICT (node_uid, start_ns) DO UPDATE SET end_ns = excluded.end_ns, "
            f"seen_ns = excluded.seen_ns, {', '.join(f'{name} = excluded.{name}' for name in _TRAITS)}"
        ),
        {
            "node_uid": node.node_uid,
            "start_ns": node.start_ns,
            "end_ns": node.end_ns,
            "seen_ns": seen_ns,
            **asdict(node.traits),
        },
    )


def save_pod(session: Session, pod: PodIdentity, seen_ns: int) -> None:
    """The first sight stays: labels that are changed later don't move cost of the past."""
    session.execute(
        text(
            "INSERT INTO pod (uid, namespace, name, labels, workload, optimized, first_seen_ns) "
            "VALUES (:uid, :namespace, :name, :labels, :workload, :optimized, :seen) "
            "ON CONFLICT (uid) DO UPDATE SET labels = excluded.labels, workload = excluded.workload, "
            "optimized = excluded.optimized WHERE pod.labels = '{}' AND pod.workload = ''"
        ),
        {
            "uid": pod.uid,
            "namespace": pod.namespace,
            "name": pod.name,
            # In escapes: PostgreSQL keeps no character 0.
            "labels": json.dumps(dict(pod.labels), sort_keys=True),
            "workload": pod.workload,
            "optimized": int(pod.optimized),
            "seen": seen_ns,
        },
    )


def save_pod_interval(session: Session, pod: PodInterval, seen_ns: int) -> None:
    session.execute(
        text(
            "INSERT INTO pod_interval "
            "(pod_uid, node_uid, start_ns, end_ns, seen_ns, units, devices, mechanism, recovered) "
            "VALUES (:pod, :node, :start, :end, :seen, :units, :devices, :mechanism, :recovered) "
            "ON CONFLICT (pod_uid, node_uid) DO UPDATE SET start_ns = excluded.start_ns, "
            "end_ns = excluded.end_ns, seen_ns = excluded.seen_ns, units = excluded.units, "
            "devices = excluded.devices, mechanism = excluded.mechanism, recovered = excluded.recovered"
        ),
        {
            "pod": pod.pod_uid,
            "node": pod.node_uid,
            "start": pod.start_ns,
            "end": pod.end_ns,
            "seen": seen_ns,
            "units": pod.claim.units,
            "devices": pod.claim.devices,
            "mechanism": pod.claim.mechanism,
            "recovered": int(pod.recovered),
        },
    )


def touch(session: Session, node_uids: Iterable[str], pod_uids: Iterable[str], seen_ns: int) -> None:
    """They are still there."""
    for table, column, uids in (
        ("node_interval", "node_uid", node_uids),
        ("pod_interval", "pod_uid", pod_uids),
    ):
        rows = [{"uid": uid, "seen": seen_ns} for uid in uids]
        if rows:
            statement = f"UPDATE {table} SET seen_ns = :seen WHERE {column} = :uid AND end_ns IS NULL"
            session.execute(text(statement), rows)


def find_pod_interval(session: Session, pod_uid: str, node_uid: str) -> PodInterval | None:
    row = session.execute(
        text("SELECT * FROM pod_interval WHERE pod_uid = :pod AND node_uid = :node"),
        {"pod": pod_uid, "node": node_uid},
    ).first()
    return None if row is None else _pod_interval(row)


def pod_intervals(session: Session, pod_uids: Sequence[str]) -> dict[str, PodInterval]:
    """By pod; of one that was on several nodes, one that Kubernetes showed before one that was recovered."""
    clause, names = _within("pod_uid", pod_uids)
    rows = session.execute(
        text(f"SELECT * FROM pod_interval WHERE 1 = 1{clause} ORDER BY recovered DESC"), names
    )
    return {row.pod_uid: _pod_interval(row) for row in rows}


def nodes_between(
    session: Session, start_ns: int, end_ns: int, node_uids: Sequence[str] | None = None
) -> list[NodeInterval]:
    clause, names = _within("node_uid", node_uids)
    rows = session.execute(
        text(
            "SELECT * FROM node_interval WHERE start_ns < :end AND (end_ns IS NULL OR end_ns > :start)"
            f"{clause} ORDER BY node_uid, start_ns"
        ),
        {"start": start_ns, "end": end_ns, **names},
    )
    return [_node(row) for row in rows]


def pods_between(
    session: Session, start_ns: int, end_ns: int, node_uids: Sequence[str]
) -> dict[str, list[PodInterval]]:
    clause, names = _within("node_uid", node_uids)
    rows = session.execute(
        text(
            "SELECT * FROM pod_interval WHERE start_ns < :end AND (end_ns IS NULL OR end_ns > :start)"
            f"{clause} ORDER BY pod_uid"
        ),
        {"start": start_ns, "end": end_ns, **names},
    )
    found: dict[str, list[PodInterval]] = {}
    for row in rows:
        found.setdefault(row.node_uid, []).append(_pod_interval(row))
    return found


def identities(session: Session, uids: Sequence[str]) -> dict[str, PodIdentity]:
    found: dict[str, PodIdentity] = {}
    for first in range(0, len(uids), 500):
        clause, names = _within("uid", uids[first : first + 500])
        for row in session.execute(text(f"SELECT * FROM pod WHERE 1 = 1{clause}"), names):
            labels = json.loads(row.labels)
            found[row.uid] = PodIdentity(
                row.uid, row.namespace, row.name, labels, row.workload, bool(row.optimized)
            )
    return found


def save_gap(session: Session, node_uid: str, pod_uid: str, span: tuple[int, int], reason: str) -> None:
    session.execute(
        text(
            "INSERT INTO gap (node_uid, pod_uid, start_ns, end_ns, reason) "
            "VALUES (:node, :pod, :start, :end, :reason) ON CONFLICT DO NOTHING"
        ),
        {"node": node_uid, "pod": pod_uid, "start": span[0], "end": span[1], "reason": reason},
    )


def pod_gaps(session: Session, node_uids: Sequence[str]) -> dict[str, list[Row[Any]]]:
    """Of pods, by node."""
    clause, names = _within("node_uid", node_uids)
    rows = session.execute(text(f"SELECT * FROM gap WHERE pod_uid <> ''{clause} ORDER BY pod_uid"), names)
    found: dict[str, list[Row[Any]]] = {}
    for row in rows:
        found.setdefault(row.node_uid, []).append(row)
    return found


def replace_gap(session: Session, gap: Row[Any], span: tuple[int, int] | None) -> None:
    """By a shorter one, or by nothing."""
    session.execute(
        text("DELETE FROM gap WHERE node_uid = :node AND pod_uid = :pod AND start_ns = :start"),
        {"node": gap.node_uid, "pod": gap.pod_uid, "start": gap.start_ns},
    )
    if span is not None:
        save_gap(session, gap.node_uid, gap.pod_uid, span, gap.reason)


def extend_pod(session: Session, pod_uid: str, node_uid: str, end_ns: int) -> None:
    """It was there at least until then. One that lasts still is left alone."""
    session.execute(
        text(
            "UPDATE pod_interval SET end_ns = :end "
            "WHERE pod_uid = :pod AND node_uid = :node AND end_ns < :end"
        ),
        {"pod": pod_uid, "node": node_uid, "end": end_ns},
    )


def gaps_between(session: Session, start_ns: int, end_ns: int, limit: int = 1000) -> list[Row[Any]]:
    return list(
        session.execute(
            text(
                "SELECT * FROM gap WHERE start_ns < :end AND end_ns > :start "
                "ORDER BY start_ns, node_uid, pod_uid LIMIT :limit"
            ),
            {"start": start_ns, "end": end_ns, "limit": limit},
        )
    )


def mark(session: Session, hours: Iterable[tuple[int, str]], not_before_ns: int) -> None:
    """To be computed anew. What lies before that time stays as it is: its raw windows are gone."""
    rows = [{"hour": hour, "node": node} for hour, node in sorted(set(hours)) if hour >= not_before_ns]
    if rows:
        statement = (
            "INSERT INTO dirty_hour (hour_ns, node_uid, marked) VALUES (:hour, :node, 1) "
            "ON CONFLICT (hour_ns, node_uid) DO UPDATE SET marked = dirty_hour.marked + 1"
        )
        session.execute(text(statement), rows)


def mark_span(session: Session, node_uid: str, span: tuple[int, int], not_before_ns: int) -> None:
    start_ns = max(span[0], not_before_ns)
    mark(session, ((hour, node_uid) for hour in hours_between(start_ns, span[1])), not_before_ns)


def _within(column: str, uids: Sequence[str] | None) -> tuple[str, dict[str, str]]:
    if uids is None:
        return "", {}
    names = {f"u{place}": uid for place, uid in enumerate(uids)}
    listed = ", ".join(f":{name}" for name in names) or "NULL"
    return f" AND {column} IN ({listed})", names


def _node(row: Row[Any]) -> NodeInterval:
    traits = NodeTraits(**{name: getattr(row, name) for name in _TRAITS})
    return NodeInterval(row.node_uid, row.start_ns, row.end_ns, traits)


def _pod_interval(row: Row[Any]) -> PodInterval:
    claim = Claim(row.units, row.devices, row.mechanism)
    return PodInterval(row.pod_uid, row.node_uid, row.start_ns, row.end_ns, claim, bool(row.recovered))
