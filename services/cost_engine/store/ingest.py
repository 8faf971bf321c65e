"""Keeps batches of usage windows of many nodes in one transaction, with a handful of statements for all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.engine import Row
from sqlalchemy.orm import Session

from gpuloom.model.node import PodRef
from gpuloom.model.usage import UsageBatch, UsageCursor
from services.cost_engine.core.gaps import Sight, narrow
from services.cost_engine.core.intervals import NodeTraits, PodIdentity, PodInterval
from services.cost_engine.core.objects import SliceRule, held_claim
from services.cost_engine.core.windows import PlacedWindow, UsageRow, place_window, pods_of, rows_of
from services.cost_engine.store import intervals, usage


@dataclass(frozen=True, slots=True)
class Ingested:
    rows: int
    moved: int
    late: int
    """Windows from before the raw retention: they are left out."""


@dataclass(frozen=True, slots=True)
class Received:
    """When; from when on windows are kept; what a slice counts."""

    received_ns: int
    oldest_ns: int
    rule: SliceRule = SliceRule.COMPUTE


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch as it is kept: its windows in their place, and how far its spool was and is read."""

    windows: list[PlacedWindow]
    rows: list[UsageRow]
    before: usage.SpoolState
    after: usage.SpoolState
    late: int

    @property
    def node_uid(self) -> str:
        return self.after.cursor.node_uid


def ingest(
    session: Session, batches: Sequence[UsageBatch], times: Received, known_days: set[int]
) -> Ingested:
    """What was read before is left out."""
    states = usage.spool_states(session, sorted({batch.cursor.spool_id for batch in batches}))
    placed: list[_Batch] = []
    for batch in batches:
        state = states.get(batch.cursor.spool_id) or usage.SpoolState(replace(batch.cursor, sequence=0), 0)
        placed.append(_placed(batch, state, times))
        states[batch.cursor.spool_id] = placed[-1].after
    rows = [row for batch in placed for row in batch.rows]
    usage.write_rows(session, rows, known_days)
    _recover_pods(session, batches, rows, times)
    _recover_ends(session, placed, times)
    intervals.mark(session, usage.touched_hours(rows), times.oldest_ns)
    usage.save_spools(session, [states[batch.cursor.spool_id] for batch in batches])
    moved = sum(batch.after.moved - batch.before.moved for batch in placed)
    return Ingested(len(rows), moved, sum(batch.late for batch in placed))


def _placed(batch: UsageBatch, state: usage.SpoolState, times: Received) -> _Batch:
    end_ns, moved, late = state.last_end_ns, 0, 0
    windows, rows = list[PlacedWindow](), list[UsageRow]()
    for window in batch.windows:
        if window.sequence <= state.cursor.sequence:
            continue
        placed = place_window(window, end_ns, times.received_ns)
        end_ns, moved = placed.end_ns, moved + placed.moved
        if placed.start_ns < times.oldest_ns:
            late += 1
            continue
        windows.append(placed)
        rows += rows_of(window, placed, window.node_uid or batch.cursor.node_uid)
    newest = max(batch.cursor.sequence, state.cursor.sequence)
    after = usage.SpoolState(
        UsageCursor(batch.cursor.node_uid, batch.cursor.spool_id, newest),
        end_ns,
        state.missed + batch.missed,
        state.moved + moved,
    )
    return _Batch(windows, rows, state, after, late)


def _recover_ends(session: Session, placed: Sequence[_Batch], times: Received) -> None:
    """Pods that were gone when the engine came back were there for as long as their agents' windows say."""
    told = [batch for batch in placed if batch.windows]
    with_gaps = intervals.pod_gaps(session, sorted({batch.node_uid for batch in told})).keys()
    for batch in told:
        if batch.node_uid in with_gaps:
            # Read again: a batch before it may have narrowed them.
            for gap in intervals.pod_gaps(session, [batch.node_uid]).get(batch.node_uid, ()):
                _recover_end(session, gap, batch, times.oldest_ns)


def _recover_end(session: Session, gap: Row[Any], batch: _Batch, oldest_ns: int) -> None:
    held: dict[int, int] = {}
    for row in batch.rows:
        if row.pod_uid == gap.pod_uid and row.held_ns:
            held[row.start_ns] = max(held.get(row.start_ns, 0), row.start_ns + row.held_ns)
    sights = (Sight(w.start_ns, w.end_ns, held.get(w.start_ns)) for w in batch.windows)
    found = narrow((gap.start_ns, gap.end_ns), batch.before.last_end_ns, sights)
    if found.gap == (gap.start_ns, gap.end_ns):
        return
    intervals.replace_gap(session, gap, found.gap)
    if found.end_ns > gap.start_ns:
        intervals.extend_pod(session, gap.pod_uid, gap.node_uid, found.end_ns)
        intervals.mark_span(session, gap.node_uid, (gap.start_ns, found.end_ns), oldest_ns)


def _recover_pods(
    session: Session, batches: Sequence[UsageBatch], rows: Sequence[UsageRow], times: Received
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
            _save_recovered(session, seen[uid], own, (before, times))


def _save_recovered(
    session: Session, pod: PodRef, own: Sequence[UsageRow], context: tuple[PodInterval | None, Received]
) -> None:
    before, times = context
    if before is not None and before.node_uid != own[0].node_uid:
        # The node came back under another UID: that is another stretch of it.
        before = intervals.find_pod_interval(session, pod.uid, own[0].node_uid)
    start_ns = min(row.start_ns for row in own)
    end_ns = max(row.start_ns + row.held_ns for row in own)
    if before is not None:
        start_ns, end_ns = min(start_ns, before.start_ns), max(end_ns, before.end_ns or end_ns)
    nodes = intervals.nodes_between(session, start_ns, end_ns, [own[0].node_uid])
    traits = nodes[-1].traits if nodes else NodeTraits("", 1)
    claim = held_claim({row.device: row.milli for row in own}, traits, times.rule)
    intervals.save_pod(session, PodIdentity(pod.uid, pod.namespace, pod.name), times.received_ns)
    found = PodInterval(pod.uid, own[0].node_uid, start_ns, end_ns, claim, recovered=True)
    intervals.save_pod_interval(session, found, times.received_ns)
    # Also the time between windows, if some were lost: their own hours alone are marked with them.
    known_ns = start_ns if before is None or before.claim != claim else before.end_ns or start_ns
    intervals.mark_span(session, found.node_uid, (min(known_ns, end_ns), end_ns), times.oldest_ns)
    if before is not None and start_ns < before.start_ns:
        intervals.mark_span(session, found.node_uid, (start_ns, before.start_ns), times.oldest_ns)
