"""The mesh in real processes: agents and the engine are killed again and again, and the bill is checked
against what the simulated kubelets journalled, which nothing of ours has a hand in.
"""

import os
import random
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from pathlib import Path

import pytest

from gpuloom.clients.cost import query_costs
from gpuloom.errors import GpuloomError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.cost import CostQuestion
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.runtime.metrics import new_registry
from gpuloom.sim.embedded import EmbeddedMesh, open_mesh
from gpuloom.sim.journal import JOURNAL_FILE, EntryKind, read_journal
from gpuloom.sim.mesh import MeshOptions, agent_process
from gpuloom.sim.supervisor import ProcessState
from services.cost_engine.core.billing import bill_nano_usd
from services.cost_engine.prices.catalogue import catalogue_prices

CLOCK = SystemClock()
SECOND_NS = 1_000_000_000
ATTEMPTS = 30
KILLS = int(os.environ.get("GPULOOM_COST_KILLS", "50"))
ROUNDING_S = 3.0
"""Kubernetes writes whole seconds, and the kubelet's journal is written a moment after a status."""
START_S = 30.0
"""A pod is billed from its Binding; on a busy machine its kubelet starts it that much later at the most."""
AWAY_S = 5.0
"""The end of a pod that was deleted while the engine was away is known only as well as this."""


@dataclass(frozen=True)
class Holding:
    """What one pod held, in seconds since 1970. `end_s` is None while it lasts."""

    node: str
    start_s: float
    end_s: float | None
    gpus: float


@dataclass(frozen=True)
class Account:
    """The engine's tables at one moment. `gpu_seconds` is by pod, `cost` and `until_ns` by node."""

    gpu_seconds: Mapping[str, float]
    cost: Mapping[str, int]
    until_ns: Mapping[str, int]
    holdings: Mapping[str, Holding]


async def kill(mesh: EmbeddedMesh, process: str) -> None:
    """Return when it is up again."""
    supervisor = mesh.supervisor
    restarts, pid = supervisor.restarts(process), supervisor.pid(process)
    supervisor.kill(process)
    async with deadline(CLOCK, 40.0):
        await supervisor.until(
            lambda s: (
                s.restarts(process) > restarts
                and s.pid(process) != pid
                and any(p.name == process and p.state is ProcessState.RUNNING for p in s.statuses())
            )
        )


def journalled_holdings(machines: Path) -> dict[str, Holding]:
    """By pod UID, as the kubelets journalled them; shares count as their part."""
    found: dict[str, Holding] = {}
    for folder in machines.iterdir():
        if not folder.is_dir():
            continue
        for entry in read_journal(folder / JOURNAL_FILE).entries:
            time_s = datetime.fromisoformat(entry.time.replace("Z", "+00:00")).timestamp()
            milli = sum(map(_milli, entry.devices))
            if entry.kind is EntryKind.START and milli:
                found[entry.pod.uid] = Holding(folder.name, time_s, None, milli / 1000)
            elif entry.kind is EntryKind.END and entry.pod.uid in found:
                found[entry.pod.uid] = replace(found[entry.pod.uid], end_s=time_s)
    return found


def _milli(given: AllocatedDevice) -> float:
    """Of a slice its part of the seven compute slices that every card here has."""
    mig = given.device.mig
    return given.milli if mig is None else 1000 * int(mig.profile[0]) / 7


def read_account(database: Path) -> Account:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True, isolation_level=None) as connection:
        connection.execute("BEGIN")
        pods = connection.execute("SELECT owner, SUM(unit_ms) / 21000.0 / 1000 FROM cost_hour GROUP BY owner")
        gpu_seconds = dict(pods.fetchall())
        nodes = connection.execute(
            "SELECT node, SUM(cost), MAX(as_of_ns) FROM cost_hour GROUP BY node"
        ).fetchall()
        intervals = connection.execute(
            "SELECT pod_uid, name, p.start_ns, p.end_ns, units "
            "FROM pod_interval p JOIN node_interval n USING (node_uid)"
        ).fetchall()
    return Account(
        gpu_seconds,
        {node: cost for node, cost, _ in nodes},
        {node: until_ns for node, _, until_ns in nodes},
        {
            uid: Holding(node, start / SECOND_NS, None if end is None else end / SECOND_NS, units / 21000)
            for uid, node, start, end, units in intervals
        },
    )


def differences(account: Account, journalled: Mapping[str, Holding]) -> list[str]:
    """What the account says of pods that the journals do not, and the other way round."""
    found = [f"{uid}: never ran" for uid in account.holdings.keys() - journalled.keys()]
    found += [f"{uid}: billed without an interval" for uid in account.gpu_seconds if _is_lost(uid, account)]
    for uid, ran in journalled.items():
        until_s = account.until_ns[ran.node] / SECOND_NS
        billed = account.holdings.get(uid)
        if billed is None:
            if ran.start_s < until_s:
                found.append(f"{uid}: not in the account")
            continue
        if not -ROUNDING_S <= ran.start_s - billed.start_s <= START_S:
            found.append(f"{uid}: began at {ran.start_s}, billed from {billed.start_s}")
        last_s = min(until_s, ran.end_s or until_s)
        billed_last_s = min(until_s, billed.end_s or until_s)
        if abs(last_s - billed_last_s) > ROUNDING_S + AWAY_S:
            found.append(f"{uid}: ended at {last_s}, billed to {billed_last_s}")
        exact = max(0.0, billed_last_s - billed.start_s) * ran.gpus
        if abs(account.gpu_seconds.get(uid, 0.0) - exact) > 0.01 * max(1.0, ran.gpus):
            found.append(f"{uid}: {exact} GPU seconds, billed {account.gpu_seconds.get(uid)}")
    return found


def _is_lost(owner: str, account: Account) -> bool:
    return not owner.startswith("__") and owner not in account.holdings


def node_bill(database: Path, node: str, until_ns: int) -> int:
    """By the list price, as a fraction, without the engine's book."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        rows = connection.execute(
            "SELECT instance_type, start_ns, end_ns FROM node_interval WHERE name = ?", (node,)
        ).fetchall()
        used = {row[0] for row in connection.execute("SELECT price FROM cost_hour WHERE node = ?", (node,))}
    total = 0
    for name, start_ns, end_ns in rows:
        (rate,) = {
            price.nano_usd_per_hour
            for price in catalogue_prices()
            if price.instance_type == name and any(key.startswith(price.key) for key in used)
        }
        last = until_ns if end_ns is None else end_ns
        exact = Fraction(rate * (last - start_ns), 3600 * SECOND_NS)
        billed = bill_nano_usd(rate, start_ns, last)
        assert abs(billed - exact) <= 1
        total += billed
    return total


@pytest.mark.real
@pytest.mark.timeout(600)
async def test_the_bill_is_that_of_the_journals_whatever_is_killed(tmp_path: Path) -> None:
    chance = random.Random(3)
    async with open_mesh(MeshOptions(nodes=2, pods_per_minute=20), tmp_path / "run", CLOCK) as mesh:
        await mesh.start()
        processes = ["cost", *(agent_process(node) for node in mesh.plan.modes)]
        for _ in range(KILLS):
            await CLOCK.sleep(chance.uniform(0.1, 0.8))
            await kill(mesh, chance.choice(processes))
        database = mesh.plan.directory.databases / "cost.db"
        account = await settled(mesh, database)

    for node, cost in account.cost.items():
        assert cost == node_bill(database, node, account.until_ns[node]), node


async def settled(mesh: EmbeddedMesh, database: Path) -> Account:
    """The account once it agrees with the journals and with what the engine answers.

    What ends at this very moment is still on its way to the engine, so it is compared until it does.
    """
    files = tls_files(mesh.plan.directory.certificates, "cli")
    rpc = RpcEnvironment(files, new_registry("test"), CLOCK)
    problems: list[str] = []
    async with RpcChannel(rpc, mesh.plan.address("cost_engine"), "cost_engine") as channel:
        for _ in range(ATTEMPTS):
            await CLOCK.sleep(2.0)
            try:
                account = read_account(database)
                answer = await query_costs(channel, CostQuestion(group_by=("node",)))
            except GpuloomError as error:
                problems = [str(error)]
                continue
            problems = differences(account, journalled_holdings(mesh.plan.directory.machines))
            if answer.total.cost != sum(account.cost.values()):
                problems.append(f"answered {answer.total.cost}, stored {sum(account.cost.values())}")
            if not problems:
                return account
    pytest.fail("; ".join(problems))
