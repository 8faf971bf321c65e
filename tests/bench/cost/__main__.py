"""`make bench-cost`: what the engine's store does, against PostgreSQL without it, in one run.

Ingest: rows a second through the store, a transaction a tick, against COPY of the same rows into a table
without any index in one transaction, with and without the time to write them as text. Query: 30 days by
namespace and day from the sums by day, against the same from raw windows. Both at growing sizes.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import PodRef
from gpuloom.model.usage import DeviceUsage, UsageBatch, UsageCursor, UsageWindow
from gpuloom.runtime.clock import SystemClock
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig, database_url
from services.cost_engine.core.intervals import (
    DAY_NS,
    HOUR_NS,
    UNITS_PER_GPU,
    Claim,
    NodeInterval,
    NodeTraits,
    PodIdentity,
    PodInterval,
)
from services.cost_engine.core.prices import Price, Source
from services.cost_engine.core.tracking import NodeChange, PodChange
from services.cost_engine.core.windows import UsageRow
from services.cost_engine.store import usage
from services.cost_engine.store.costs import Window
from services.cost_engine.store.store import MIGRATIONS, CostStore, FactChanges, StoreSettings
from tests.contract.store.postgres import server_url

MINUTE_NS = 60_000_000_000
START_NS = 20_400 * DAY_NS
DAYS = 30
PODS_A_NODE = 8
NAMESPACES = 20
PRICE = Price("aws", "", "", "t", "on-demand", 32 * 10**9, 0, None, Source.CUSTOM)


def keep(rows: list[UsageRow], known_days: set[int], session: Session) -> None:
    usage.write_rows(session, rows, known_days)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def rows_of_minute(minute: int, pods: int) -> list[UsageRow]:
    start = START_NS + minute * MINUTE_NS
    return [
        UsageRow(
            start_ns=start,
            end_ns=start + MINUTE_NS,
            node_uid=f"node-{pod // PODS_A_NODE:05d}",
            pod_uid=f"00000000-0000-4000-8000-{pod:012d}",
            device=f"GPU-00000000-0000-4000-8000-{pod:012d}",
            milli=1000,
            held_ns=MINUTE_NS,
            measured_ns=MINUTE_NS,
            used_ns=(pod * 7 + minute) % 60 * 1_000_000_000,
            energy_mj=1000,
        )
        for pod in range(pods)
    ]


async def prepare(store: CostStore, pods: int) -> None:
    end = START_NS + DAYS * DAY_NS
    nodes, held = [], []
    for number in range(-(-pods // PODS_A_NODE)):
        interval = NodeInterval(
            f"node-{number:05d}", START_NS, end, NodeTraits(f"node-{number:05d}", 8, instance_type="t")
        )
        nodes.append(NodeChange(interval, (START_NS, START_NS)))
    for pod in range(pods):
        uid = f"00000000-0000-4000-8000-{pod:012d}"
        on_node = PodInterval(uid, f"node-{pod // PODS_A_NODE:05d}", START_NS, end, Claim(UNITS_PER_GPU, 1))
        identity = PodIdentity(uid, f"team-{pod % NAMESPACES}", f"pod-{pod}", {"gpu-project": str(pod % 7)})
        held.append(PodChange(on_node, identity, (START_NS, START_NS)))
    await store.replace_prices(Source.CUSTOM, [PRICE], end)
    await store.save_facts(FactChanges(nodes, held), end)


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


@dataclass(frozen=True)
class Ingest:
    """Rows a second: through the store; COPY of the same rows into a bare table; COPY of their text alone."""

    ours: float
    bare: float
    text: float


async def bench_ingest(database: Database, rows: int, pods: int) -> Ingest:
    minutes = [rows_of_minute(minute, pods) for minute in range(rows // pods)]
    total = sum(map(len, minutes))

    async def ours() -> None:
        known_days: set[int] = set()
        for listed in minutes:
            await database.write(partial(keep, listed, known_days))

    texts = [usage.copy_lines(listed) for listed in minutes]
    await database.write(lambda session: session.execute(text("DROP TABLE IF EXISTS bare")))
    await database.write(lambda session: session.execute(text("CREATE TABLE bare (LIKE usage_window)")))
    ours_s = await timed(ours)
    bare_s = await timed(lambda: database.write(partial(copy_bare, map(usage.copy_lines, minutes))))
    text_s = await timed(lambda: database.write(partial(copy_bare, texts)))
    return Ingest(total / ours_s, total / bare_s, total / text_s)


def copy_bare(parts: Iterable[str], session: Session) -> None:
    """One transaction for all, no index: as fast as the server takes rows."""
    connection: Any = session.connection().connection.driver_connection
    with connection.cursor() as cursor:
        for part in parts:
            with cursor.copy(f"COPY bare ({', '.join(usage.COLUMNS)}) FROM STDIN") as copy:
                copy.write(part)


def fill_day(day_ns: int, pods: int, session: Session) -> None:
    """A window a minute for each pod, made by the server itself: what is measured is the question."""
    usage.ensure_partitions(session, {day_ns}, set())
    uid, used = "'00000000-0000-4000-8000-' || lpad(p::text, 12, '0')", "(p * 7 + m) % 60 * 1000000000"
    session.execute(
        text(
            f"INSERT INTO usage_window ({', '.join(usage.COLUMNS)}) "  # noqa: S608 - numbers and constants
            f"SELECT {day_ns} + m * {MINUTE_NS}, {day_ns} + (m + 1) * {MINUTE_NS}, "
            f"'node-' || lpad((p / {PODS_A_NODE})::text, 5, '0'), {uid}, 'GPU-' || {uid}, "
            f"1000, {MINUTE_NS}, {MINUTE_NS}, {used}, {used}, 1000, NULL "
            f"FROM generate_series(0::bigint, 1439) m, generate_series(0::bigint, {pods - 1}) p"
        )
    )


async def fill(database: Database, store: CostStore, rows: int) -> int:
    """So many windows over 30 days, then their costs. How many pods there are."""
    pods = max(PODS_A_NODE, rows // (DAYS * 24 * 60))
    await prepare(store, pods)
    for day in range(DAYS):
        await database.write(partial(fill_day, START_NS + day * DAY_NS, pods))
    await store.compute(await store.book(), START_NS + DAYS * DAY_NS)
    return pods


RAW = """
    SELECT w.start_ns / 86400000000000 AS day, p.namespace,
        SUM(w.held_ns), SUM(w.measured_ns), SUM(w.share_ns)
    FROM usage_window w JOIN pod p ON p.uid = w.pod_uid
    WHERE w.start_ns >= :start AND w.start_ns < :end GROUP BY 1, 2"""


async def bench_query(database: Database, store: CostStore) -> tuple[float, float]:
    window = Window(START_NS, START_NS + DAYS * DAY_NS, DAY_NS)
    span = {"start": window.start_ns, "end": window.end_ns}
    ours = [await timed(lambda: store.facts(window, frozenset({"namespace"}))) for _ in range(7)]
    raw = [
        await timed(lambda: database.read(lambda session: len(session.execute(text(RAW), span).all())))
        for _ in range(3)
    ]
    return statistics.median(ours), statistics.median(raw)


async def run(url: str, sizes: list[int], ingest_rows: int) -> None:
    config = StoreConfig(url=database_url(url), threads=4, timeout_s=1800.0)
    async with Database(config, SystemClock()) as database:
        store = CostStore(database, StoreSettings(raw_retention_ns=400 * DAY_NS))
        columns = ("pods a tick", "ours rows/s", "bare COPY", "ratio", "text only", "ratio")
        say(" ".join(f"{name:>12}" for name in columns))
        for pods in (200, 2000, 10_000):
            await store.open()
            found = await bench_ingest(database, ingest_rows, pods)
            say(
                f"{pods:>12} {found.ours:>12,.0f} {found.bare:>12,.0f} {found.ours / found.bare:>12.2f} "
                f"{found.text:>12,.0f} {found.ours / found.text:>12.2f}"
            )
            await database.write(lambda session: session.execute(text("DROP TABLE bare")))
            await MIGRATIONS.downgrade(database)
        say(f"{'windows':>12} {'pods':>6} {'by day ms':>10} {'raw ms':>10} {'ratio':>6} {'filled in s':>12}")
        for size in sizes:
            await store.open()
            started = time.perf_counter()
            pods = await fill(database, store, size)
            filled_s = time.perf_counter() - started
            ours_s, raw_s = await bench_query(database, store)
            say(
                f"{size:>12,} {pods:>6} {ours_s * 1000:>10.1f} {raw_s * 1000:>10.0f} "
                f"{raw_s / ours_s:>6.0f} {filled_s:>12.0f}",
            )
            await MIGRATIONS.downgrade(database)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", default="1000000,10000000", help="sizes of the query part")
    parser.add_argument("--ingest-rows", type=int, default=400_000)
    parser.add_argument("--agents", type=int, default=0, help="instead: memory with so many agents' windows")
    arguments = parser.parse_args()
    sizes = [int(part) for part in arguments.windows.split(",") if part]
    with server_url() as url:
        if arguments.agents:
            asyncio.run(memory(url, arguments.agents))
        else:
            asyncio.run(run(url, sizes, arguments.ingest_rows))


async def memory(url: str, agents: int) -> None:
    """Resident memory of this process while it keeps windows of so many agents and computes their hour."""
    config = StoreConfig(url=database_url(url), threads=4, timeout_s=600.0)
    async with Database(config, SystemClock()) as database:
        store = CostStore(database)
        await store.open()
        await prepare(store, agents * PODS_A_NODE)
        now = START_NS + HOUR_NS
        for minute in range(10):
            started = time.perf_counter()
            for first in range(0, agents, 64):
                batches = [a_batch(agent, minute) for agent in range(first, min(agents, first + 64))]
                await store.ingest(batches, now)
            ingested_s = time.perf_counter() - started
            started = time.perf_counter()
            await store.compute(await store.book(), START_NS + (minute + 1) * MINUTE_NS)
            computed_s = time.perf_counter() - started
            say(
                f"minute {minute}: ingest {ingested_s:.1f} s, compute {computed_s:.1f} s, "
                f"RSS {resident_mib():.0f} MiB",
            )
        await MIGRATIONS.downgrade(database)


def a_batch(agent: int, minute: int) -> UsageBatch:
    start = datetime.fromtimestamp((START_NS + minute * MINUTE_NS) / 1e9, UTC)
    devices = tuple(
        DeviceUsage(
            DeviceRef(f"GPU-00000000-0000-4000-8000-{agent * PODS_A_NODE + place:012d}"),
            PodRef("team", "pod", f"00000000-0000-4000-8000-{agent * PODS_A_NODE + place:012d}"),
            1000,
            MINUTE_NS,
            MINUTE_NS,
            MINUTE_NS // 2,
        )
        for place in range(PODS_A_NODE)
    )
    node = f"node-{agent:05d}"
    window = UsageWindow(minute + 1, node, start, MINUTE_NS, devices)
    return UsageBatch(UsageCursor(node, f"spool-{agent}", minute + 1), node, (window,))


def resident_mib() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
