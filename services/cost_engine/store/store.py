"""What the engine remembers, as questions and changes in the words of its core. Open this room here.

Every change is one transaction that also marks the hours it touches, so that a crash at any point leaves
either nothing or all of it, and what was marked is computed after the next start.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import TypeVar

from sqlalchemy import text
from sqlalchemy.orm import Session

from gpuloom.errors import NotReadyError
from gpuloom.model.usage import UsageBatch, UsageCursor
from gpuloom.store.database import Database
from gpuloom.store.migrations import Migrations
from services.cost_engine.core.grouping import CostFact
from services.cost_engine.core.intervals import (
    DAY_NS,
    HOUR_NS,
    NANOSECONDS_PER_SECOND,
    NodeInterval,
    PodInterval,
    day_of,
    hour_of,
)
from services.cost_engine.core.objects import SliceRule
from services.cost_engine.core.prices import BookSettings, Price, PriceBook, Source
from services.cost_engine.core.tracking import Gap, NodeChange, PodChange
from services.cost_engine.store import costs, intervals, prices, spending, timescale, usage
from services.cost_engine.store.ingest import Ingested, Received, ingest

Result = TypeVar("Result")

MIGRATIONS = Migrations("cost_engine", Path(__file__).parent / "migrations")
DIRTY_A_PASS = 2000
RECENT_NS = 60 * NANOSECONDS_PER_SECOND
MOST_OUTAGE_NS = 366 * DAY_NS
"""So far back hours are made up for: a clock that was wrong once must not ask for half a century of them."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    raw_retention_ns: int = 7 * DAY_NS
    hourly_retention_ns: int = 400 * DAY_NS
    gpu_permille: int = 1000
    slice_rule: SliceRule = SliceRule.COMPUTE
    book: BookSettings = field(default_factory=BookSettings)


@dataclass(frozen=True, slots=True)
class FactChanges:
    nodes: Sequence[NodeChange] = ()
    pods: Sequence[PodChange] = ()
    gaps: Sequence[Gap] = ()
    alive_nodes: Sequence[str] = ()
    alive_pods: Sequence[str] = ()


class CostStore:
    def __init__(self, database: Database, settings: StoreSettings | None = None) -> None:
        self._database = database
        self.settings = settings or StoreSettings()
        self._days: set[int] = set()
        """Those that have a partition."""
        self._term: int | None = None

    async def open(self) -> None:
        await MIGRATIONS.upgrade(self._database)
        if not self._database.is_sqlite:
            await self._database.write(self._set_retention)

    async def ping(self) -> None:
        await self._database.ping()

    async def open_intervals(self) -> tuple[list[tuple[NodeInterval, int]], list[tuple[PodInterval, int]]]:
        return await self._database.read(
            lambda session: (intervals.open_nodes(session), intervals.open_pods(session))
        )

    async def known_end_ns(self, pod_uids: Sequence[str], since_ns: int) -> dict[str, int]:
        """Until when usage shows each of these pods."""
        return await self._database.read(
            lambda session: usage.last_seen_ns(session, list(pod_uids), since_ns)
        )

    async def save_facts(self, changes: FactChanges, now_ns: int) -> None:
        await self.write(lambda session: self._save_facts(session, changes, now_ns))

    async def ingest(self, batches: Sequence[UsageBatch], received_ns: int) -> Ingested:
        """All of these and the cursors after them, or nothing. What was read before is left out."""
        return await self.write(lambda session: self._ingest(session, batches, received_ns))

    async def begin_term(self, now_ns: int) -> None:
        """From now on this store's owner leads: whoever led before can't write any more, paused or not."""
        self._term = await self._database.write(lambda session: _next_term(session, now_ns))

    async def epoch_ns(self, now_ns: int) -> int:
        """Since when this database counts: its first start. Nothing before it is billed."""
        return await self._database.write(lambda session: _epoch(session, now_ns))

    async def cursors(self) -> list[UsageCursor]:
        return await self._database.read(usage.cursors)

    async def book(self) -> PriceBook:
        return PriceBook(await self._database.read(prices.load_prices), self.settings.book)

    async def prices(self) -> list[Price]:
        return await self._database.read(prices.load_prices)

    async def save_prices(self, told: Iterable[Price], now_ns: int) -> int:
        """Late news of a price changes the hours since it holds, as far back as windows are kept."""
        listed = list(told)
        return await self.write(lambda session: self._save_prices(session, listed, now_ns))

    async def replace_prices(self, source: Source, listed: Sequence[Price], now_ns: int) -> None:
        await self.write(lambda session: self._replace_prices(session, source, listed, now_ns))

    async def compute(self, book: PriceBook, now_ns: int, *, grow: bool = True) -> int:
        """Bring costs up to date; `grow`: also the hour that lasts. How many node hours were computed."""
        if grow:
            # A bill needs no windows: after a long outage it is made up for, with use that is not known.
            unseen_ns = hour_of(now_ns - MOST_OUTAGE_NS)
            await self.write(lambda session: costs.mark_open(session, now_ns, unseen_ns))
        how = costs.Computation(book, now_ns, self.settings.gpu_permille)
        done = 0
        while True:
            due = await self._database.read(lambda session: costs.dirty_hours(session, now_ns, DIRTY_A_PASS))
            for hour, nodes in due:
                for first in range(0, len(nodes), costs.NODES_A_TRANSACTION):
                    part = nodes[first : first + costs.NODES_A_TRANSACTION]
                    await self.write(_computing(hour, part, how))
                    done += len(part)
            if sum(len(nodes) for _, nodes in due) < DIRTY_A_PASS:
                return done

    async def facts(
        self,
        window: costs.Window,
        dimensions: frozenset[str],
        conditions: Mapping[str, Sequence[str]] | None = None,
    ) -> list[CostFact]:
        """All at once: for what is known to be few."""
        return await self._database.read(
            lambda session: list(costs.read_facts(session, window, dimensions, conditions or {}))
        )

    async def fold(
        self, window: costs.Window, dimensions: frozenset[str], work: Callable[[Iterable[CostFact]], Result]
    ) -> Result:
        """What `work` makes, in a thread, of facts that come one after the other.

        A caller that is cancelled waits for that thread, which ends with the next fact.
        """
        stopped = Event()

        def folded(session: Session) -> Result:
            with closing(costs.read_facts(session, window, dimensions, {})) as facts:
                return work(_as_long_as_wanted(facts, stopped))

        reading = asyncio.ensure_future(self._database.read(folded))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            stopped.set()
            await asyncio.gather(reading, return_exceptions=True)
            raise

    async def spending(self, start_ns: int, end_ns: int, label_names: frozenset[str]) -> list[CostFact]:
        """By day, and by hour for the day in which this ends."""
        return await self._database.read(
            lambda session: spending.read_spending(session, start_ns, end_ns, label_names)
        )

    async def gaps(self, start_ns: int, end_ns: int) -> list[Gap]:
        rows = await self._database.read(lambda session: intervals.gaps_between(session, start_ns, end_ns))
        return [Gap(row.node_uid, row.pod_uid, row.start_ns, row.end_ns, row.reason) for row in rows]

    async def nodes(self, start_ns: int, end_ns: int) -> list[NodeInterval]:
        return await self._database.read(lambda session: intervals.nodes_between(session, start_ns, end_ns))

    async def computed_until_ns(self) -> int | None:
        return await self._database.read(costs.last_computed_ns)

    async def has_marks(self, start_ns: int, end_ns: int) -> bool:
        return await self._database.read(lambda session: costs.has_marks(session, start_ns, end_ns))

    async def expire(self, now_ns: int) -> None:
        """Drop what is older than it is to be kept, and not needed any more. Sums by day stay."""
        due_ns = await self._database.read(costs.earliest_due_ns)
        due_ns = now_ns if due_ns is None else due_ns
        raw_ns = min(now_ns - self.settings.raw_retention_ns, due_ns)
        # A day of which an hour may be computed again is summed up anew from all its hours.
        again_ns = day_of(min(self._oldest_ns(now_ns), due_ns))
        hourly_ns = min(hour_of(now_ns - self.settings.hourly_retention_ns), again_ns)
        await self._database.write(lambda session: usage.drop_before(session, raw_ns))
        await self._database.write(lambda session: costs.drop_hours_before(session, hourly_ns))

    async def write(self, work: Callable[[Session], Result]) -> Result:
        """In one transaction. Raise NotReadyError if this store's owner has led and leads no more."""

        def fenced(session: Session) -> Result:
            self._require_term(session)
            return work(session)

        return await self._database.write(fenced)

    async def read(self, work: Callable[[Session], Result]) -> Result:
        return await self._database.read(work)

    def _oldest_ns(self, now_ns: int) -> int:
        """Hours before this have lost windows: to compute them again would call use unknown."""
        return hour_of(now_ns - self.settings.raw_retention_ns) + HOUR_NS

    def _set_retention(self, session: Session) -> None:
        if timescale.is_installed(session.connection()):
            timescale.set_retention(session.connection(), self.settings.raw_retention_ns)

    def _require_term(self, session: Session) -> None:
        if self._term is None:
            return
        # Held to the end of the transaction, so that a new term begins after it.
        lock = "" if self._database.is_sqlite else " FOR SHARE"
        term = session.execute(text(f"SELECT term FROM engine{lock}")).scalar()
        if term != self._term:
            raise NotReadyError("another replica leads now")

    def _save_facts(self, session: Session, changes: FactChanges, now_ns: int) -> None:
        oldest_ns = self._oldest_ns(now_ns)
        for node in changes.nodes:
            intervals.save_node(session, node.interval, now_ns)
            intervals.mark_span(session, node.interval.node_uid, _until(node.touched, now_ns), oldest_ns)
        for pod in changes.pods:
            uid, node_uid = pod.interval.pod_uid, pod.interval.node_uid
            known = intervals.find_pod_interval(session, uid, node_uid)
            interval = _ending_once(known, pod.interval)
            if known == interval:
                continue
            if pod.identity is not None:
                intervals.save_pod(session, pod.identity, now_ns)
            intervals.save_pod_interval(session, interval, now_ns)
            intervals.mark_span(session, pod.interval.node_uid, _until(pod.touched, now_ns), oldest_ns)
        for gap in changes.gaps:
            self._save_gap(session, gap, oldest_ns)
        intervals.touch(session, changes.alive_nodes, changes.alive_pods, now_ns)

    def _save_gap(self, session: Session, gap: Gap, oldest_ns: int) -> None:
        """Windows that came before it may show the pod for longer."""
        start_ns = gap.start_ns
        if gap.pod_uid:
            seen = usage.last_seen_ns(session, [gap.pod_uid], gap.start_ns - HOUR_NS)
            start_ns = min(gap.end_ns, max(start_ns, seen.get(gap.pod_uid, 0)))
        if start_ns > gap.start_ns:
            intervals.extend_pod(session, gap.pod_uid, gap.node_uid, start_ns)
            intervals.mark_span(session, gap.node_uid, (gap.start_ns, start_ns), oldest_ns)
        if start_ns < gap.end_ns:
            intervals.save_gap(session, gap.node_uid, gap.pod_uid, (start_ns, gap.end_ns), gap.reason)

    def _ingest(self, session: Session, batches: Sequence[UsageBatch], received_ns: int) -> Ingested:
        received = Received(received_ns, self._oldest_ns(received_ns), self.settings.slice_rule)
        return ingest(session, batches, received, self._days)

    def _save_prices(self, session: Session, told: Sequence[Price], now_ns: int) -> int:
        changed = prices.save_prices(session, told)
        if changed:
            self._mark_types(session, told, now_ns)
        return changed

    def _replace_prices(self, session: Session, source: Source, listed: Sequence[Price], now_ns: int) -> None:
        before = [price for price in prices.load_prices(session) if price.source is source]
        if set(before) != set(listed):
            prices.replace_source(session, source, listed)
            self._mark_types(session, [*before, *listed], now_ns)

    def _mark_types(self, session: Session, changed: Sequence[Price], now_ns: int) -> None:
        since = {price.instance_type: price.valid_from_ns for price in changed}
        for price in changed:
            since[price.instance_type] = min(since[price.instance_type], price.valid_from_ns)
        oldest_ns = self._oldest_ns(now_ns)
        for node in intervals.nodes_between(session, oldest_ns, now_ns):
            start_ns = since.get(node.traits.instance_type)
            if start_ns is not None:
                span = max(node.start_ns, start_ns, oldest_ns), min(node.end_ns or now_ns, now_ns)
                intervals.mark_span(session, node.node_uid, span, oldest_ns)


def _ending_once(known: PodInterval | None, told: PodInterval) -> PodInterval:
    """A pod that has ended does not end once more much later, as by the clock of a node that is ahead."""
    if known is None or known.recovered or known.end_ns is None or told.end_ns is None:
        return told
    return replace(told, end_ns=known.end_ns) if told.end_ns > known.end_ns + RECENT_NS else told


def _until(touched: tuple[int, int], now_ns: int) -> tuple[int, int]:
    """What was computed between a change and now, when it is written, lacks it."""
    start_ns, end_ns = touched
    return start_ns, max(end_ns, now_ns) if now_ns - end_ns < RECENT_NS else end_ns


def _as_long_as_wanted(facts: Iterable[CostFact], stopped: Event) -> Iterator[CostFact]:
    for fact in facts:
        if stopped.is_set():
            raise NotReadyError("nobody waits for this answer any more")
        yield fact


def _computing(hour: int, nodes: Sequence[str], how: costs.Computation) -> Callable[[Session], int]:
    return lambda session: costs.compute_hour(session, hour, nodes, how)


def _epoch(session: Session, now_ns: int) -> int:
    statement = "INSERT INTO engine (id, epoch_ns, term) VALUES (1, :now, 0) ON CONFLICT DO NOTHING"
    session.execute(text(statement), {"now": now_ns})
    return int(session.execute(text("SELECT epoch_ns FROM engine")).scalar_one())


def _next_term(session: Session, now_ns: int) -> int:
    _epoch(session, now_ns)
    session.execute(text("UPDATE engine SET term = term + 1"))
    return int(session.execute(text("SELECT term FROM engine")).scalar_one())
