"""The mesh in real processes: agents and the engine are killed again and again, and the engine's tables are
checked against what the simulation wrote down.

Money, usage and times are compared exactly. A clock is only asked where Kubernetes says nothing: how long a
pod was there that ended, and was removed, while no engine looked.
"""

import os
import random
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

from gpuloom.catalog.prices import load_list_prices
from gpuloom.clients.cost import list_budgets, query_costs
from gpuloom.errors import GpuloomError
from gpuloom.model.cost import CostQuestion
from gpuloom.model.usage import UsageWindow
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.runtime.metrics import new_registry
from gpuloom.sim.embedded import EmbeddedMesh, open_mesh
from gpuloom.sim.mesh.plan import MeshOptions, agent_process
from gpuloom.sim.processes.supervisor import ProcessState
from tests.scenarios.cost_engine.books import (
    UNITS_PER_GPU,
    Holding,
    Shown,
    ShownPod,
    held_on,
    shown_by,
    spooled_on,
    told_for_sure,
)

CLOCK = SystemClock()
SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
KILLS = int(os.environ.get("GPULOOM_COST_KILLS", "50"))
START_S, SETTLE_S = 120.0, 240.0
"""Only how long a hopeless run goes on."""
SAMPLE_NS = 6 * SECOND_NS
"""An agent believes no two samples that are further apart: so long after its end a window may show a pod."""
NOTED_NS = 3 * SECOND_NS
"""So much later than its machine's state a kubelet's journal may be written. More is a gap, which is told."""
MOVED_NS = SECOND_NS // 1000

Used = tuple[int, int, int, int]
"""Windows of a pod and device, nanoseconds held, measured and used."""


@dataclass(frozen=True)
class Billed:
    node_uid: str
    start_ns: int
    end_ns: int | None
    units: int
    recovered: bool


@dataclass(frozen=True)
class Stretch:
    """Of a node: in which it was the same."""

    start_ns: int
    end_ns: int | None
    instance_type: str
    gpus: int


@dataclass(frozen=True)
class CostRow:
    node_uid: str
    owner: str
    price: str
    cost: int
    parts: int


@dataclass(frozen=True)
class Account:
    """The engine's tables at one moment, at which nothing was left to compute."""

    epoch_ns: int
    nodes: Mapping[str, Sequence[Stretch]]
    until_ns: Mapping[str, int]
    pods: Mapping[str, Billed]
    gaps: Mapping[str, tuple[int, int]]
    costs: Sequence[CostRow]
    days: int
    cursors: Mapping[str, int]
    used: Mapping[str, Used]


@dataclass
class Restarts:
    """Of the engine, as positions in the API's journal: where it was killed, and had listed it again."""

    state: Path
    channel: RpcChannel
    done: list[tuple[int, int]] = field(default_factory=list)
    killed: int | None = 0

    def note_kill(self) -> None:
        if self.killed is None:
            self.killed = self.position()

    def position(self) -> int:
        return self.state.stat().st_size

    async def look(self) -> None:
        """An engine that leads has listed, and written what it found."""
        if self.killed is None:
            return
        try:
            await list_budgets(self.channel)
        except GpuloomError:
            return
        self.done.append((self.killed, self.position()))
        self.killed = None


@pytest.mark.real
@pytest.mark.timeout(900)
async def test_the_bill_is_that_of_the_journals_whatever_is_killed(tmp_path: Path) -> None:
    chance = random.Random(3)
    async with open_mesh(MeshOptions(nodes=2, pods_per_minute=20), tmp_path / "run", CLOCK) as mesh:
        await mesh.start()
        rpc = RpcEnvironment(tls_files(mesh.plan.directory.certificates, "cli"), new_registry("test"), CLOCK)
        processes = ["cost", *(agent_process(node) for node in mesh.plan.modes)]
        async with RpcChannel(rpc, mesh.plan.address("cost_engine"), "cost_engine") as channel:
            restarts = Restarts(mesh.plan.directory.api_state, channel)
            for _ in range(KILLS):
                await restarts.look()
                await CLOCK.sleep(chance.uniform(0.1, 0.8))
                await restarts.look()
                await kill(mesh, chance.choice(processes), restarts)
            await settle(mesh, restarts)


async def kill(mesh: EmbeddedMesh, process: str, restarts: Restarts) -> None:
    """Return when it runs again."""
    supervisor = mesh.supervisor
    before, pid = supervisor.restarts(process), supervisor.pid(process)
    if process == "cost":
        restarts.note_kill()
    supervisor.kill(process)
    async with deadline(CLOCK, START_S):
        await supervisor.until(
            lambda s: (
                s.restarts(process) > before
                and s.pid(process) != pid
                and any(p.name == process and p.state is ProcessState.RUNNING for p in s.statuses())
            )
        )


async def settle(mesh: EmbeddedMesh, restarts: Restarts) -> None:
    """Return once the account and the simulation's agree.

    What happens at this very moment is still on its way to the engine: only what was there some time ago must
    have come, and on a slow machine that takes longer.
    """
    problems, started_s, wait_s = ["it never led again"], CLOCK.monotonic(), 2.0
    while CLOCK.monotonic() - started_s < SETTLE_S:
        await restarts.look()
        settled_at = restarts.position()
        await CLOCK.sleep(wait_s)
        if restarts.killed is not None:
            continue
        account = await computed_account(mesh)
        if account is not None:
            problems = await compare(mesh, restarts, account, settled_at)
            if not problems:
                return
        wait_s = min(15.0, wait_s * 1.5)
    pytest.fail("\n".join(problems))


async def computed_account(mesh: EmbeddedMesh) -> Account | None:
    for _ in range(100):
        account = read_account(database_of(mesh))
        if account is not None:
            return account
        await CLOCK.sleep(0.1)
    return None


def database_of(mesh: EmbeddedMesh) -> Path:
    return mesh.plan.directory.databases / "cost.db"


async def compare(mesh: EmbeddedMesh, restarts: Restarts, account: Account, settled_at: int) -> list[str]:
    machines = mesh.plan.directory.machines
    shown, held, spools = shown_by(restarts.state), held_on(machines), spooled_on(machines)
    try:
        answer = await query_costs(restarts.channel, CostQuestion(group_by=("pod",)))
    except GpuloomError as error:
        return [str(error)]
    evidence = Evidence(shown, held, seen_ns(account, spools), restarts.done, settled_at)
    found = list(differing_pods(account, evidence))
    found += [*differing_usage(account, spools), *differing_sums(account, shown)]
    stored, again = sum(row.cost for row in account.costs), read_account(database_of(mesh))
    if again is not None and again.until_ns == account.until_ns and answer.total.cost != stored:
        found.append(f"answered {answer.total.cost}, stored {stored}")
    return found


@dataclass(frozen=True)
class Evidence:
    """`settled_at`: what stood in the API's journal there must be known by now. `seen`: first and last
    nanosecond at which windows that were read show each pod."""

    shown: Shown
    held: Mapping[str, Holding]
    seen: Mapping[str, tuple[int, int]]
    restarts: Sequence[tuple[int, int]]
    settled_at: int

    def is_told(self, first: int, gone: int | None) -> bool:
        return first <= self.settled_at and told_for_sure(first, gone, self.restarts)


def differing_pods(account: Account, evidence: Evidence) -> Iterator[str]:
    for uid in account.pods.keys() - evidence.shown.pods.keys():
        yield f"{uid}: billed, and never bound"
    for uid, pod in evidence.shown.pods.items():
        billed, told = account.pods.get(uid), evidence.is_told(pod.bound_at, pod.gone_at)
        if billed is None:
            if uid in evidence.held and (told or uid in evidence.seen):
                yield f"{uid}: not in the account"
            continue
        if uid in evidence.held and billed.units != evidence.held[uid].units:
            yield f"{uid}: {billed.units} units billed, {evidence.held[uid].units} held"
        bound_ns = max(account.epoch_ns, pod.bound_s * SECOND_NS)
        earliest_ns = bound_ns if told or not billed.recovered else evidence.seen[uid][0]
        if not bound_ns <= billed.start_ns <= earliest_ns:
            yield f"{uid}: bound at {bound_ns}, billed from {billed.start_ns}"
        yield from differing_end(uid, pod, billed, (account, evidence))


def differing_end(
    uid: str, pod: ShownPod, billed: Billed, context: tuple[Account, Evidence]
) -> Iterator[str]:
    account, evidence = context
    if pod.ended_s is not None and billed.end_ns == max(billed.start_ns, pod.ended_s * SECOND_NS):
        return
    said = f"{uid}: billed to {billed.end_ns}"
    held, ended_at = evidence.held.get(uid), pod.ended_at
    if billed.end_ns is None:
        if pod.gone_at is not None and pod.gone_at <= evidence.settled_at:
            yield f"{said}, and gone"
        elif ended_at is not None and evidence.is_told(ended_at, pod.gone_at):
            yield f"{said}, and ended at {pod.ended_s}"
    elif pod.ended_s is not None and ended_at is not None and evidence.is_told(ended_at, pod.gone_at):
        yield f"{said}, ended at {pod.ended_s}"
    elif held is not None and held.end_s is None:
        yield f"{said}, and is there"
    elif held is not None and held.end_s is not None:
        yield from differing_unseen_end(said, billed.end_ns, held.end_s, (account, evidence, uid))


def differing_unseen_end(
    said: str, billed_ns: int, ended_s: float, context: tuple[Account, Evidence, str]
) -> Iterator[str]:
    """Of a pod whose end the engine need not have heard of: windows show it, or a gap says so."""
    account, evidence, uid = context
    ended_ns = round(ended_s * SECOND_NS)
    seen_ns = min(ended_ns, evidence.seen[uid][1]) if uid in evidence.seen else 0
    gap = account.gaps.get(uid, (billed_ns, billed_ns))
    if billed_ns < seen_ns:
        yield f"{said}, windows show it until {seen_ns}"
    if billed_ns > ended_ns + SAMPLE_NS:
        yield f"{said}, ended at {ended_s}"
    if max(billed_ns, gap[1]) < ended_ns - NOTED_NS or gap[0] > billed_ns:
        yield f"{said}, ended at {ended_s}, and the gap is {gap}"


def seen_ns(account: Account, spools: Mapping[str, Sequence[UsageWindow]]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for spool, windows in spools.items():
        for window in windows:
            if window.sequence > account.cursors.get(spool, 0):
                continue
            start_ns = round(window.start.timestamp() * 1_000_000) * 1000
            for usage in window.devices:
                if usage.pod is not None and usage.held_ns:
                    # The engine may move a window by what its beginning was rounded.
                    times = start_ns + MOVED_NS, start_ns + usage.held_ns
                    first, last = found.get(usage.pod.uid, times)
                    found[usage.pod.uid] = min(first, times[0]), max(last, times[1])
    return found


def differing_usage(account: Account, spools: Mapping[str, Sequence[UsageWindow]]) -> Iterator[str]:
    """Every window that was kept and read is there once, to the nanosecond."""
    expected: dict[str, Used] = {}
    for spool, windows in spools.items():
        for window in windows:
            if window.sequence > account.cursors.get(spool, 0):
                continue
            for usage in window.devices:
                if usage.pod is not None:
                    count, held, measured, used = expected.get(usage.pod.uid, (0, 0, 0, 0))
                    expected[usage.pod.uid] = (
                        count + 1,
                        held + usage.held_ns,
                        measured + usage.measured_ns,
                        used + usage.used_ns,
                    )
    for uid in expected.keys() | account.used.keys():
        if expected.get(uid) != account.used.get(uid):
            yield f"{uid}: {expected.get(uid)} in spools, {account.used.get(uid)} in the account"


def differing_sums(account: Account, shown: Shown) -> Iterator[str]:
    for row in account.costs:
        if row.cost != row.parts:
            yield f"{row.owner}: costs {row.cost}, its parts {row.parts}"
    if account.days != sum(row.cost for row in account.costs):
        yield f"days cost {account.days}, their hours {sum(row.cost for row in account.costs)}"
    for uid, stretches in account.nodes.items():
        until_ns, rows = account.until_ns[uid], [row for row in account.costs if row.node_uid == uid]
        if stretches[0].start_ns != max(account.epoch_ns, shown.created_s[uid] * SECOND_NS):
            yield f"{uid}: created at {shown.created_s[uid]}, billed from {stretches[0].start_ns}"
        if stretches[-1].end_ns is not None:
            yield f"{uid}: is there, billed to {stretches[-1].end_ns}"
        if any(one.end_ns != other.start_ns for one, other in pairwise(stretches)):
            yield f"{uid}: its stretches {stretches} leave something out"
        rate = list_price(stretches[0].instance_type, {row.price for row in rows})
        bill = rate * until_ns // HOUR_NS - rate * stretches[0].start_ns // HOUR_NS
        if sum(row.cost for row in rows) != bill:
            yield f"{uid}: its bill is {bill}, its rows cost {sum(row.cost for row in rows)}"
        yield from differing_shares(uid, account, rate)


def differing_shares(uid: str, account: Account, rate: int) -> Iterator[str]:
    """Each has the part of the bill that its units are of the node, as a fraction."""
    until_ns, stretches = account.until_ns[uid], account.nodes[uid]
    capacity = stretches[0].gpus * UNITS_PER_GPU
    pods = {name: pod for name, pod in account.pods.items() if pod.node_uid == uid}
    cuts = {until_ns, *(each.start_ns for each in stretches)}
    cuts |= {min(until_ns, time or until_ns) for pod in pods.values() for time in (pod.start_ns, pod.end_ns)}
    cells = list(pairwise(sorted(cut for cut in cuts if cut >= stretches[0].start_ns)))
    exact: dict[str, Fraction] = {}
    rounded: dict[str, Fraction] = {}
    for first, last in cells:
        there = {
            name: pod.units
            for name, pod in pods.items()
            if pod.start_ns <= first and (pod.end_ns is None or pod.end_ns >= last)
        }
        claimed, bill = sum(there.values()), Fraction(rate * (last - first), HOUR_NS)
        for name, units in there.items():
            exact[name] = exact.get(name, Fraction(0)) + bill * units / max(capacity, claimed)
            # What is claimed twice is shared in whole units.
            rounded[name] = rounded.get(name, Fraction(2)) + (bill / capacity if claimed > capacity else 2)
    for name in pods:
        rows = [row for row in account.costs if (row.node_uid, row.owner) == (uid, name)]
        cost, part = sum(row.cost for row in rows), exact.get(name, Fraction(0))
        if abs(cost - part) > rounded.get(name, 0) + 4 * len(rows):
            yield f"{name}: costs {cost}, its part is {float(part)}"


def list_price(instance_type: str, priced_as: set[str]) -> int:
    """By the shipped list, without the engine's book."""
    (rate,) = {
        price.nano_usd_per_hour
        for price in load_list_prices()
        if price.instance_type == instance_type
        and any(f"/{price.region or '*'}/{instance_type}/{price.capacity_type}@" in key for key in priced_as)
    }
    return rate


def read_account(database: Path) -> Account | None:
    """In one transaction; None while something is left to compute."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True, isolation_level=None) as connection:
        connection.execute("BEGIN")
        query = connection.execute
        if query("SELECT COUNT(*) FROM dirty_hour").fetchone()[0]:
            return None
        nodes: dict[str, list[Stretch]] = {}
        for uid, *stretch in query(
            "SELECT node_uid, start_ns, end_ns, instance_type, gpu_count FROM node_interval ORDER BY start_ns"
        ):
            nodes.setdefault(uid, []).append(Stretch(*stretch))
        return Account(
            epoch_ns=query("SELECT epoch_ns FROM engine").fetchone()[0],
            nodes=nodes,
            until_ns=dict(query("SELECT node_uid, MAX(as_of_ns) FROM cost_hour GROUP BY node_uid")),
            pods={
                uid: Billed(*interval)
                for uid, *interval in query(
                    "SELECT pod_uid, node_uid, start_ns, end_ns, units, recovered FROM pod_interval"
                )
            },
            gaps={
                uid: (first, last) for uid, first, last in query("SELECT pod_uid, start_ns, end_ns FROM gap")
            },
            costs=[
                CostRow(*row)
                for row in query(
                    "SELECT node_uid, owner, price, cost, used + idle + unknown + unallocated FROM cost_hour"
                )
            ],
            days=query("SELECT SUM(cost) FROM cost_day").fetchone()[0],
            cursors=dict(query("SELECT spool_id, sequence FROM usage_cursor")),
            used={
                uid: (count, held, measured, used)
                for uid, count, held, measured, used in query(
                    "SELECT pod_uid, COUNT(*), SUM(held_ns), SUM(measured_ns), SUM(used_ns) "
                    "FROM usage_window GROUP BY pod_uid"
                )
            },
        )
