"""What the engine counts on, on SQLite and on PostgreSQL."""

from collections.abc import Awaitable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from gpuloom.errors import DeadlineError, NotReadyError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import PodRef
from gpuloom.model.usage import DeviceUsage, UsageBatch, UsageCursor, UsageWindow
from gpuloom.runtime.clock import SystemClock
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig, database_url
from services.cost_engine.core.attribution import bill_of
from services.cost_engine.core.grouping import Amounts, grouped, total
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
from services.cost_engine.core.objects import SliceRule
from services.cost_engine.core.prices import Price, PriceBook, Source
from services.cost_engine.core.tracking import Gap, NodeChange, PodChange, Tracker
from services.cost_engine.store import intervals, timescale
from services.cost_engine.store.costs import Window
from services.cost_engine.store.store import MIGRATIONS, CostStore, FactChanges, StoreSettings

MINUTE_NS = 60_000_000_000
START_NS = 20_000 * DAY_NS
PRICE = Price("aws", "", "", "g4dn.xlarge", "on-demand", 526_000_001, 0, None, Source.CUSTOM)
HOSTILE = """'; DROP TABLE pod; -- " \\ \t 中文 🎉 %s :name {} \\u0000 \0"""


def a_node(uid: str = "n1", start_ns: int = START_NS, end_ns: int | None = None) -> NodeChange:
    traits = NodeTraits(f"node-{uid}", 1, provider="aws", instance_type="g4dn.xlarge", pool="gpu")
    span = (start_ns, START_NS + 4 * HOUR_NS if end_ns is None else end_ns)
    return NodeChange(NodeInterval(uid, start_ns, end_ns, traits), span)


def a_pod(uid: str, milli: int = 250, *, node: str = "n1", labels: dict[str, str] | None = None) -> PodChange:
    claim = Claim(milli * UNITS_PER_GPU // 1000, 1, "share")
    interval = PodInterval(uid, node, START_NS, START_NS + 3 * HOUR_NS, claim)
    return PodChange(
        interval, PodIdentity(uid, f"ns-{uid[-1]}", uid, labels or {}), (START_NS, START_NS + 3 * HOUR_NS)
    )


def windows(first: int, count: int, pods: tuple[str, ...] = ("p1",), used: float = 0.1) -> list[UsageWindow]:
    found = []
    for number in range(first, first + count):
        start = datetime.fromtimestamp((START_NS + (number - 1) * MINUTE_NS) / 1e9, UTC)
        devices = tuple(
            DeviceUsage(
                DeviceRef("GPU-1"),
                PodRef("ns", uid, uid),
                milli=250,
                held_ns=MINUTE_NS,
                measured_ns=MINUTE_NS,
                used_ns=int(MINUTE_NS * used),
            )
            for uid in pods
        )
        found.append(UsageWindow(number, "n1", start, MINUTE_NS, devices))
    return found


def a_batch(listed: list[UsageWindow], spool: str = "s1") -> UsageBatch:
    return UsageBatch(UsageCursor("n1", spool, listed[-1].sequence), "node-n1", tuple(listed))


async def totals(store: CostStore, group_by: tuple[str, ...] = ()) -> dict[tuple[str, ...], Amounts]:
    facts = await store.facts(
        Window(START_NS, START_NS + DAY_NS), frozenset({"owner", "namespace", "node", "pool"})
    )
    return {row.group: row.amounts for row in grouped(facts, group_by)}


NOW_NS = START_NS + 4 * HOUR_NS


def bill(book: PriceBook) -> int:
    return bill_of(a_node().interval, START_NS, NOW_NS, book)


async def prepared(store: CostStore) -> PriceBook:
    await store.replace_prices(Source.CUSTOM, [PRICE], NOW_NS)
    pods = [a_pod("p1"), a_pod("p2", 500), a_pod("p3", labels={"team": HOSTILE, "gpu-project": "x"})]
    await store.save_facts(FactChanges([a_node()], pods), NOW_NS)
    return await store.book()


async def test_costs_add_up_to_the_bill_and_used_is_what_was_measured(store: CostStore) -> None:
    book = await prepared(store)
    await store.ingest([a_batch(windows(1, 180))], NOW_NS)

    await store.compute(book, NOW_NS)

    found = await totals(store, ("pod",))
    assert sum(amounts.cost for amounts in found.values()) == bill_of(
        a_node().interval, START_NS, NOW_NS, book
    )
    used = found["ns-1/p1",]
    assert used.used == pytest.approx(used.cost * 0.4, abs=3)
    assert (used.unknown, found["ns-2/p2",].unknown) == (0, found["ns-2/p2",].cost)


async def test_a_replay_twice_is_once_whatever_part_of_it_comes_again(store: CostStore) -> None:
    book = await prepared(store)
    await store.ingest([a_batch(windows(1, 60))], NOW_NS)
    await store.compute(book, NOW_NS)
    once = await totals(store, ("pod",))

    await store.ingest([a_batch(windows(1, 60))], NOW_NS)
    await store.ingest([a_batch(windows(30, 31))], NOW_NS)
    # The same windows under another spool's name: an agent whose cursor was lost.
    await store.ingest([a_batch(windows(1, 60), spool="s2")], NOW_NS)
    await store.save_facts(FactChanges([a_node()], [a_pod("p1")]), NOW_NS)
    await store.compute(book, NOW_NS)

    assert await totals(store, ("pod",)) == once


async def test_late_windows_give_exactly_what_they_would_have_given_in_time(store: CostStore) -> None:
    book = await prepared(store)
    await store.ingest([a_batch(windows(1, 100))], NOW_NS)
    await store.compute(book, NOW_NS)
    early = await totals(store, ("pod",))
    await store.ingest([a_batch(windows(101, 80))], NOW_NS + HOUR_NS)

    await store.compute(book, NOW_NS, grow=False)

    late = await totals(store, ("pod",))
    assert late["ns-1/p1",].cost == early["ns-1/p1",].cost
    assert (early["ns-1/p1",].unknown > 0, late["ns-1/p1",].unknown) == (True, 0)


async def test_hours_and_days_say_the_same_and_any_grouping_adds_up(store: CostStore) -> None:
    book = await prepared(store)
    await store.compute(book, NOW_NS)
    by_hour = await store.facts(Window(START_NS, START_NS + 12 * HOUR_NS, HOUR_NS), frozenset({"owner"}))
    by_day = await store.facts(Window(START_NS, START_NS + DAY_NS, DAY_NS), frozenset({"owner"}))

    assert total(grouped(by_hour, ("pod",))) == total(grouped(by_day, ("label:team",)))
    assert len({fact.bucket_ns for fact in by_hour}) == 4
    assert (HOSTILE,) in {row.group for row in grouped(by_day, ("label:team",))}
    for end_ns in (START_NS + 12 * HOUR_NS, START_NS + 36 * HOUR_NS):
        spending = await store.spending(START_NS, end_ns, frozenset({"team"}))
        by_team = grouped(spending, ("label:team",))
        assert total(by_team).cost == total(grouped(by_day, ())).cost
        assert (HOSTILE,) in {row.group for row in by_team}


async def test_a_pod_that_only_windows_show_is_recovered_from_them(store: CostStore) -> None:
    book = await prepared(store)
    await store.ingest([a_batch(windows(1, 30, pods=("ghost",)))], NOW_NS)
    await store.ingest([a_batch(windows(31, 30, pods=("ghost",)))], NOW_NS)

    await store.compute(book, NOW_NS)

    found = await totals(store, ("pod",))
    assert sum(amounts.cost for amounts in found.values()) == bill_of(
        a_node().interval, START_NS, NOW_NS, book
    )
    assert found["ns/ghost",].cost > 0
    assert found["ns/ghost",].unknown == 0


async def test_a_pod_that_only_windows_show_is_billed_for_the_hours_between_them(store: CostStore) -> None:
    """However they come: one from three hours before, when costs were computed already."""
    for first, second in ((1, 200), (201, 2)):
        book = await prepared(store)
        uid = f"ghost-{first}"
        for number in (first, second):
            await store.ingest([a_batch(windows(number, 1, (uid,)), f"{uid}-{number}")], NOW_NS)
            await store.compute(book, NOW_NS, grow=False)

        held_ns = (await totals(store, ("pod",)))[f"ns/{uid}",].unit_ms
        assert held_ns > 3 * 3_600_000 * UNITS_PER_GPU // 4 // 2


async def test_a_slice_that_only_windows_show_is_billed_as_a_slice(store: CostStore) -> None:
    await prepared(store)
    ref = DeviceRef("GPU-1", MigPlacement(0, "1g.10gb"))
    (window,) = windows(1, 1, pods=("ghost",))
    usage = replace(window.devices[0], device=ref, milli=None)

    await store.ingest([a_batch([replace(window, devices=(usage,))])], NOW_NS)

    pods = await store.read(lambda session: intervals.pod_intervals(session, ["ghost"]))
    assert pods["ghost"].claim == Claim(UNITS_PER_GPU // 7, 1, "mig")


async def test_a_pod_that_was_gone_after_a_restart_is_billed_as_long_as_later_windows_show_it(
    store: CostStore,
) -> None:
    book = await prepared(store)
    assumed_ns, back_ns = START_NS + 60 * MINUTE_NS, START_NS + 90 * MINUTE_NS
    claim = a_pod("gone").interval.claim
    ended = PodInterval("gone", "n1", START_NS, assumed_ns, claim)
    change = PodChange(ended, PodIdentity("gone", "ns", "gone"), (START_NS, NOW_NS))
    await store.ingest([a_batch(windows(1, 55, pods=("gone",)))], NOW_NS)
    gap = Gap("n1", "gone", assumed_ns, back_ns, "the engine was away")
    await store.save_facts(FactChanges([], [change], [gap]), NOW_NS)
    await store.compute(book, NOW_NS)

    await store.ingest([a_batch(windows(56, 20, pods=("gone",)))], NOW_NS)
    until_then = await store.gaps(START_NS, NOW_NS)
    await store.ingest([a_batch(windows(76, 10, pods=()))], NOW_NS)
    await store.compute(book, NOW_NS, grow=False)

    (cost,) = [row.cost for group, row in (await totals(store, ("pod",))).items() if group == ("ns/gone",)]
    alike = PodInterval("gone", "n1", START_NS, START_NS + 75 * MINUTE_NS, claim)
    await store.save_facts(FactChanges([], [replace(change, interval=alike)]), NOW_NS)
    await store.compute(book, NOW_NS, grow=False)
    (told,) = [row.cost for group, row in (await totals(store, ("pod",))).items() if group == ("ns/gone",)]
    assert cost == told
    assert [(gap.start_ns, gap.end_ns) for gap in until_then] == [(START_NS + 75 * MINUTE_NS, back_ns)]
    assert await store.gaps(START_NS, NOW_NS) == []


@pytest.mark.parametrize("written_after", [1, 3, 5, 9])
@pytest.mark.parametrize("engine_was_away", [False, True])
async def test_a_pod_that_was_removed_by_force_is_billed_until_windows_show_it_no_more(
    store: CostStore, written_after: int, engine_was_away: bool
) -> None:
    """Whenever its removal is written: windows before and after tell the same."""
    await prepared(store)
    tracker = Tracker(0, (), SliceRule.COMPUTE)
    removed_ns = START_NS + 2 * MINUTE_NS
    pod = {"metadata": {"uid": "forced"}, "spec": {"nodeName": "node-n1"}, "status": {"phase": "Running"}}
    interval = replace(a_pod("forced").interval, end_ns=None)
    tracker.restore([(a_node().interval, START_NS)], [(interval, START_NS)])
    started = PodChange(interval, PodIdentity("forced", "ns", "forced"), (START_NS, START_NS))
    await store.save_facts(FactChanges([], [started]), START_NS)
    if engine_was_away:
        tracker.settle({"forced": START_NS}, frozenset({"n1"}), {}, removed_ns)
    else:
        tracker.forget_pod(pod, removed_ns)
    pending = tracker.drain()

    for number in range(1, 10):
        pods = ("forced",) if number <= 4 else ()
        await store.ingest([a_batch(windows(number, 1, pods=pods))], NOW_NS)
        if number == written_after:
            await store.save_facts(FactChanges(pending.nodes, pending.pods, pending.gaps), NOW_NS)
    await store.ingest([a_batch(windows(10, 1, pods=()))], NOW_NS)

    kept = await store.read(lambda session: intervals.pod_intervals(session, ["forced"]))
    assert kept["forced"].end_ns == START_NS + 4 * MINUTE_NS
    assert await store.gaps(START_NS, NOW_NS) == []


async def test_a_price_that_changes_or_comes_late_changes_the_hours_since_it_holds(store: CostStore) -> None:
    await prepared(store)
    await store.compute(await store.book(), NOW_NS)
    spot = replace(PRICE, source=Source.AWS, valid_from_ns=START_NS + HOUR_NS)
    await store.replace_prices(Source.CUSTOM, [], NOW_NS)
    await store.save_prices(
        [
            replace(spot, nano_usd_per_hour=rate, valid_from_ns=at)
            for rate, at in ((100_000_000, START_NS - DAY_NS), (200_000_000, START_NS + HOUR_NS + 7))
        ],
        NOW_NS,
    )
    assert await store.save_prices([replace(spot, nano_usd_per_hour=200_000_000)], NOW_NS) == 1
    assert await store.save_prices([replace(spot, nano_usd_per_hour=200_000_000)], NOW_NS) == 0

    book = await store.book()
    await store.compute(book, NOW_NS)

    assert bill(book) == 100_000_000 + 3 * 200_000_000
    assert (await totals(store))[()].cost == bill(book)


async def test_a_node_without_a_price_is_unpriced_time_and_never_free(store: CostStore) -> None:
    await store.save_facts(FactChanges([a_node()], [a_pod("p1")]), NOW_NS)

    await store.compute(await store.book(), NOW_NS)

    found = (await totals(store))[()]
    assert (found.cost, found.unpriced_ns > 0) == (0, True)


async def test_old_windows_go_and_what_they_gave_stays(store: CostStore, database: Database) -> None:
    book = await prepared(store)
    await store.ingest([a_batch(windows(1, 180))], NOW_NS)
    await store.compute(book, NOW_NS, grow=False)
    before = await totals(store, ("namespace",))
    later = START_NS + 9 * DAY_NS

    await store.expire(later)
    # Late news of that time can't be counted any more.
    late = await store.ingest([a_batch(windows(181, 2))], later)
    await store.save_facts(FactChanges([], [a_pod("p9")]), later)
    await store.compute(book, later, grow=False)

    kept = await database.read(
        lambda session: session.execute(text("SELECT COUNT(*) FROM usage_window")).scalar()
    )
    assert (kept, late.rows, late.late) == (0, 0, 2)
    assert await totals(store, ("namespace",)) == before


async def test_days_keep_their_sums_however_soon_hours_are_dropped(database: Database) -> None:
    store = CostStore(database, StoreSettings(raw_retention_ns=7 * DAY_NS, hourly_retention_ns=DAY_NS))
    await store.open()
    book = await prepared(store)
    later = START_NS + 3 * DAY_NS
    await store.compute(book, later)
    before = await totals(store)

    await store.expire(later)
    await store.ingest([a_batch(windows(1, 5))], later)
    await store.compute(book, later)

    facts = await store.facts(Window(START_NS, START_NS + DAY_NS, DAY_NS), frozenset())
    assert total(grouped(facts, ())).cost == before[()].cost


async def test_an_hour_is_computed_however_many_are_marked_that_have_not_begun(
    store: CostStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the engine's clock was set back by hours."""
    monkeypatch.setattr("services.cost_engine.store.store.DIRTY_A_PASS", 2)
    book = await prepared(store)
    await store.compute(book, NOW_NS)
    ahead = [replace(window, start=window.start + timedelta(hours=5)) for window in windows(1, 180)]
    await store.ingest([a_batch(ahead)], NOW_NS + 5 * HOUR_NS)
    await store.save_facts(FactChanges([a_node("n2")], [a_pod("p5", node="n2")]), NOW_NS)

    await store.compute(book, NOW_NS)

    assert (await totals(store))[()].cost == 2 * bill(book)


async def test_a_clock_that_jumps_an_hour_both_ways_loses_and_doubles_nothing(store: CostStore) -> None:
    book = await prepared(store)
    jumped = []
    for number, window in enumerate(windows(1, 90)):
        hours = (0, 1, 0)[number // 30] if number < 60 else -1
        start = datetime.fromtimestamp(window.start.timestamp() + hours * 3600, UTC)
        jumped.append(replace(window, start=start))
    for window in jumped:
        received = START_NS + window.sequence * MINUTE_NS
        await store.ingest([a_batch([window])], received)

    await store.compute(book, NOW_NS)

    found = (await totals(store, ("pod",)))["ns-1/p1",]
    assert found.used + found.idle == pytest.approx(found.cost * 90 / 180, rel=0.001)


async def test_hours_in_which_nobody_computed_are_computed_when_somebody_does_again(store: CostStore) -> None:
    await store.replace_prices(Source.CUSTOM, [PRICE], START_NS)
    await store.save_facts(FactChanges([replace(a_node(), touched=(START_NS, START_NS + 1))]), START_NS)
    book = await store.book()
    for minutes in (0, 20, 59, 61, 61, 239):
        await store.compute(book, START_NS + minutes * MINUTE_NS)

    await store.compute(book, NOW_NS)

    assert (await totals(store))[()].cost == bill(book)


async def test_a_pod_on_a_node_whose_clock_is_ahead_ends_when_its_end_was_heard_of(store: CostStore) -> None:
    """Also for an engine that starts later, when the time has come that the node's clock told."""
    pod: JsonObject = {
        "metadata": {"name": "p", "namespace": "a", "uid": "p1"},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
        "status": {"phase": "Running", "startTime": iso(START_NS)},
    }
    node = {"metadata": {"name": "n", "uid": "n1"}, "status": {"capacity": {"nvidia.com/gpu": "1"}}}
    ended_ns = START_NS + 30 * MINUTE_NS
    state = {"state": {"terminated": {"finishedAt": iso(ended_ns + HOUR_NS)}}}
    ended = {**pod, "status": {**pod["status"], "phase": "Succeeded", "containerStatuses": [state]}}
    tracker = Tracker(START_NS, (), SliceRule.COMPUTE)
    tracker.observe_node(node, START_NS)
    tracker.observe_pod(pod, START_NS)
    tracker.observe_pod(ended, ended_ns)
    await store.save_facts(FactChanges(pods=tracker.drain().pods), ended_ns)

    later = Tracker(START_NS, (), SliceRule.COMPUTE)
    later.observe_node(node, NOW_NS)
    later.observe_pod(ended, NOW_NS)
    await store.save_facts(FactChanges(pods=later.drain().pods), NOW_NS)

    found = await store.read(lambda session: intervals.find_pod_interval(session, "p1", "n1"))
    assert found is not None
    assert (found.start_ns, found.end_ns) == (START_NS, ended_ns)


def iso(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("waited_ns", [300_000_000, 2 * HOUR_NS])
async def test_an_end_that_is_written_late_leaves_nothing_of_what_was_computed_without_it(
    store: CostStore, waited_ns: int
) -> None:
    """As where the database comes back: costs are computed, and then what changed meanwhile is written."""
    await store.replace_prices(Source.CUSTOM, [PRICE], START_NS)
    book, tracker = await store.book(), Tracker(START_NS, (), SliceRule.COMPUTE)
    node = {
        "metadata": {"name": "n", "uid": "n1", "labels": {"node.kubernetes.io/instance-type": "g4dn.xlarge"}},
        "status": {"capacity": {"nvidia.com/gpu": "1"}},
    }
    tracker.observe_node(node, START_NS)
    pending = tracker.drain()
    await store.save_facts(FactChanges(pending.nodes), START_NS)
    end_ns = START_NS + HOUR_NS - 100_000_000
    tracker.forget_node(node, end_ns)
    later = end_ns + waited_ns

    if waited_ns > HOUR_NS:
        tracker.give_back(tracker.drain(), later - 1)
    await store.compute(book, later - 1)
    pending = tracker.drain()
    await store.save_facts(FactChanges(pending.nodes), later)
    await store.compute(book, later)

    interval = NodeInterval("n1", START_NS, end_ns, pending.nodes[0].interval.traits)
    assert (await totals(store))[()].cost == bill_of(interval, START_NS, later, book)


@pytest.mark.parametrize("hourly_days", [1, 400])
async def test_an_outage_longer_than_windows_are_kept_loses_no_bill(
    database: Database, hourly_days: int
) -> None:
    store = CostStore(database, StoreSettings(hourly_retention_ns=hourly_days * DAY_NS))
    await store.open()
    book = await prepared(store)
    await store.compute(book, NOW_NS)
    await store.ingest([a_batch(windows(1, 180))], NOW_NS)
    later = START_NS + 12 * DAY_NS

    await store.expire(later)
    await store.compute(book, later)
    await store.expire(later + DAY_NS)
    await store.compute(book, later + DAY_NS)

    facts = await store.facts(Window(START_NS, later, DAY_NS), frozenset())
    found = total(grouped(facts, ()))
    assert found.cost == bill_of(a_node().interval, START_NS, later, book)
    # What was read in the last minute before the outage was used all the same.
    assert found.used > 0


async def test_a_leader_of_an_earlier_term_can_not_write(store: CostStore, database: Database) -> None:
    await store.begin_term(START_NS)
    book = await prepared(store)
    await CostStore(database).begin_term(NOW_NS)

    writes: list[Awaitable[object]] = [
        store.save_facts(FactChanges([a_node("n2")]), NOW_NS),
        store.ingest([a_batch(windows(1, 2))], NOW_NS),
        store.compute(book, NOW_NS),
        store.compute(book, NOW_NS, grow=False),
        store.save_prices([replace(PRICE, source=Source.AWS)], NOW_NS),
        store.replace_prices(Source.CUSTOM, [], NOW_NS),
        store.write(lambda session: session.execute(text("DELETE FROM budget_alert"))),
    ]
    for write in writes:
        with pytest.raises(NotReadyError, match="another replica leads"):
            await write


async def test_a_leader_that_was_paused_over_the_hour_does_not_cut_the_hour_that_its_successor_computed(
    store: CostStore, database: Database
) -> None:
    successor = CostStore(database)
    await store.begin_term(START_NS)
    book = await prepared(store)
    paused_ns = START_NS + HOUR_NS - MINUTE_NS
    await successor.begin_term(START_NS + HOUR_NS)
    await successor.compute(book, START_NS + 2 * HOUR_NS)
    before = await totals(store)
    await successor.save_facts(FactChanges([], [a_pod("p4")]), START_NS + 2 * HOUR_NS)

    with pytest.raises(NotReadyError):
        await store.compute(book, paused_ns)
    await successor.compute(book, START_NS + 2 * HOUR_NS)

    assert (await totals(store))[()].cost == before[()].cost


async def test_a_database_that_does_not_answer_in_time_is_an_error_of_ours_and_nothing_is_kept(
    store: CostStore, database: Database, database_address: str
) -> None:
    await prepared(store)
    await store.ingest([a_batch(windows(1, 1))], NOW_NS)
    lock = "BEGIN IMMEDIATE" if database.is_sqlite else "LOCK TABLE usage_window"
    impatient = StoreConfig(url=database_url(database_address), threads=1, timeout_s=0.1)
    async with Database(impatient, SystemClock()) as other:
        with database.engine.connect() as holder:
            holder.exec_driver_sql("ROLLBACK" if database.is_sqlite else "SELECT 1")
            holder.exec_driver_sql(lock)
            with pytest.raises(DeadlineError):
                await CostStore(other).ingest([a_batch(windows(2, 1))], NOW_NS)
            holder.rollback()

        assert (await CostStore(other).ingest([a_batch(windows(2, 1))], NOW_NS)).rows == 1


async def test_migrations_go_up_and_down_and_up_again(store: CostStore, database: Database) -> None:
    await MIGRATIONS.downgrade(database)
    assert await MIGRATIONS.current(database) is None

    await MIGRATIONS.upgrade(database)

    await prepared(store)


async def test_plain_postgresql_parses_what_is_for_timescaledb(database: Database) -> None:
    if database.is_sqlite:
        pytest.skip("only PostgreSQL can parse it")
    await MIGRATIONS.upgrade(database)
    statements = (*timescale.SETUP, *timescale.TEARDOWN, timescale.RETENTION.format(retention_ns=1))
    # Inside a branch that never runs PostgreSQL checks the grammar and looks up no names.
    bodies = " ".join(
        f"{statement.replace('SELECT', 'PERFORM', 1) if statement.startswith('SELECT') else statement};"
        for statement in statements
    )

    await database.write(
        lambda session: session.connection().exec_driver_sql(
            f"DO $parse$ BEGIN IF false THEN {bodies} END IF; END $parse$"
        )
    )
