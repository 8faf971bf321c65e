"""The mesh in real processes: agents and the engine are killed again and again, and the bill is checked
against what the simulated kubelets journalled, which nothing of ours has a hand in.
"""

import os
import random
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest

from gpuloom.clients.cost import cost_summary, query_costs
from gpuloom.errors import GpuloomError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.cost import CostAnswer, CostQuestion
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
KILLS = int(os.environ.get("GPULOOM_COST_KILLS", "50"))
ROUNDING_S = 3.0
"""Kubernetes writes whole seconds, and the kubelet's journal is written a moment after a status."""


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


def held_seconds(machines: Path, until: datetime) -> dict[str, float]:
    """GPU seconds by pod UID, as the kubelets journalled them; shares count as their part."""
    found: dict[str, float] = {}
    for folder in machines.iterdir():
        if not folder.is_dir():
            continue
        begun: dict[str, tuple[datetime, float]] = {}
        for entry in read_journal(folder / JOURNAL_FILE).entries:
            time = datetime.fromisoformat(entry.time.replace("Z", "+00:00"))
            milli = sum(map(_milli, entry.devices))
            if entry.kind is EntryKind.START and milli:
                begun[entry.pod.uid] = (time, milli)
            elif entry.kind is EntryKind.END and entry.pod.uid in begun:
                start, given = begun.pop(entry.pod.uid)
                found[entry.pod.uid] = (time - start).total_seconds() * given / 1000
        for uid, (start, given) in begun.items():
            found[uid] = (until - start).total_seconds() * given / 1000
    return found


def _milli(given: AllocatedDevice) -> float:
    """Of a slice its part of the seven compute slices that every card here has."""
    mig = given.device.mig
    return given.milli if mig is None else 1000 * int(mig.profile[0]) / 7


def costs_by_pod(database: Path) -> tuple[dict[str, float], dict[str, int], Mapping[str, int]]:
    """GPU seconds by pod, cost by node, and until when each node is computed."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        pods = dict(
            connection.execute("SELECT owner, SUM(unit_ms) / 21000.0 / 1000 FROM cost_hour GROUP BY owner")
        )
        nodes = dict(connection.execute("SELECT node, SUM(cost) FROM cost_hour GROUP BY node"))
        until = dict(connection.execute("SELECT node, MAX(as_of_ns) FROM cost_hour GROUP BY node"))
    return pods, nodes, until


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
        answer = await settled(mesh)
        database = mesh.plan.directory.databases / "cost.db"
        pods, nodes, until = costs_by_pod(database)
        journalled = held_seconds(mesh.plan.directory.machines, datetime.now(UTC))

    assert answer.total.cost == sum(nodes.values())
    for node, cost in nodes.items():
        assert cost == node_bill(database, node, until[node]), node
    for uid, seconds in journalled.items():
        assert pods.get(uid, 0.0) == pytest.approx(seconds, abs=ROUNDING_S + 5.0), uid
    assert {uid for uid in pods if not uid.startswith("__")} <= journalled.keys()


async def settled(mesh: EmbeddedMesh) -> CostAnswer:
    """Costs once the engine is up after the last kill."""
    files = tls_files(mesh.plan.directory.certificates, "cli")
    rpc = RpcEnvironment(files, new_registry("test"), CLOCK)
    async with (
        deadline(CLOCK, 60.0),
        RpcChannel(rpc, mesh.plan.address("cost_engine"), "cost_engine") as channel,
    ):
        while True:
            try:
                before = (await cost_summary(channel)).total.cost
                await CLOCK.sleep(5.0)
                answer = await query_costs(channel, CostQuestion(group_by=("node",)))
                if answer.total.cost > before > 0:
                    return answer
            except GpuloomError:
                await CLOCK.sleep(0.5)
