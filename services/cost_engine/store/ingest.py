"""Keeps batches of usage windows of many nodes in one transaction, with a handful of statements for all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.node import PodRef
from gpuloom.model.usage import UsageBatch, UsageCursor
from services.cost_engine.core.intervals import UNITS_PER_GPU, Claim, PodIdentity, PodInterval
from services.cost_engine.core.windows import UsageRow, place_window, pods_of, rows_of
from services.cost_engine.store import intervals, usage


@dataclass(frozen=True, slots=True)
class Ingested:
    rows: int
    moved: int
    late: int
    """Windows from before the raw retention: they are left out."""


@dataclass(frozen=True, slots=True)
class Times:
    received_ns: int
    oldest_ns: int


def ingest(session: Session, batches: Sequence[UsageBatch], times: Times, known_days: set[int]) -> Ingested:
    """What was read before is left out."""
    states = usage.spool_states(session, sorted({batch.cursor.spool_id for batch in batches}))
    rows: list[UsageRow] = []
    moved = late = 0
    for batch in batches:
        state = states.get(batch.cursor.spool_id) or usage.SpoolState(replace(batch.cursor, sequence=0), 0)
        placed, after, too_late = _placed(batch, state, times)
        rows += placed
        moved, late = moved + after.moved - state.moved, late + too_late
        states[batch.cursor.spool_id] = after
    usage.write_rows(session, rows, known_days)
    _recover_pods(session, batches, rows, times.received_ns)
    intervals.mark(session, usage.touched_hours(rows), times.oldest_ns)
    usage.save_spools(session, [states[batch.cursor.spool_id] for batch in batches])
    return Ingested(len(rows), moved, late)


def _placed(
    batch: UsageBatch, state: usage.SpoolState, times: Times
) -> tuple[list[UsageRow], usage.SpoolState, int]:
    end_ns, moved, late, rows = state.last_end_ns, 0, 0, list[UsageRow]()
    for window in batch.windows:
        if window.sequence <= state.cursor.sequence:
            continue
        placed = place_window(window, end_ns, times.received_ns)
        end_ns, moved = placed.end_ns, moved + placed.moved
        if placed.start_ns < times.oldest_ns:
            late += 1
            continue
        rows += rows_of(window, placed, window.node_uid or batch.cursor.node_uid)
    newest = max(batch.cursor.sequence, state.cursor.sequence)
    after = usage.SpoolState(
        UsageCursor(batch.cursor.node_uid, batch.cursor.spool_id, newest),
        end_ns,
        state.missed + batch.missed,
        state.moved + moved,
    )
    return rows, after, late


def _recover_pods(
    session: Session, batches: Sequence[UsageBatch], rows: Sequence[UsageRow], now_ns: int
) -> None:
    """Pods that came and went while nobody followed Kubernetes are known by their windows alone."""
    by_pod: dict[str, list[UsageRow]] = {}
    for row in rows:
        by_pod.setdefault(row.pod_uid, []).append(row)
    known = intervals.pod_intervals(session, sorted(by_pod))
    if all(uid in known and not known[uid].recovered for uid in by_pod):
        return
    seen = pods_of(window for batch in batches for window in batch.windows)
    for uid, own in sorted(by_pod.items()):
        before = known.get(uid)
        if before is None or before.recovered:
            _save_recovered(session, seen[uid], own, (before, now_ns))


def _save_recovered(
    session: Session, pod: PodRef, own: Sequence[UsageRow], context: tuple[PodInterval | None, int]
) -> None:
    before, now_ns = context
    devices = {row.device: row.milli for row in own}
    start_ns = min(row.start_ns for row in own)
    end_ns = max(row.start_ns + row.held_ns for row in own)
    if before is not None:
        start_ns, end_ns = min(start_ns, before.start_ns), max(end_ns, before.end_ns or end_ns)
    units = sum(milli * UNITS_PER_GPU // MILLI_PER_GPU for milli in devices.values())
    claim = Claim(units, len(devices), "share")
    intervals.save_pod(session, PodIdentity(pod.uid, pod.namespace, pod.name), now_ns)
    found = PodInterval(pod.uid, own[0].node_uid, start_ns, end_ns, claim, recovered=True)
    intervals.save_pod_interval(session, found, now_ns)
