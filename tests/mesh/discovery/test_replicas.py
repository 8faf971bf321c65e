"""Replicas of discovery as processes: all serve, one writes, and any of them may die or stand still."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from gpuloom.clients.discovery import ClusterMirror, MirrorOptions
from gpuloom.clients.replicas import Replicas
from gpuloom.kube.objects import JsonObject
from gpuloom.model.gpu import GpuHealth
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.parsers import Address
from gpuloom.sim.kubeapi.verbs.store import STATUS
from gpuloom.sim.processes.ports import free_ports
from tests.mesh.node_agent.builders import Mesh, a_mesh
from tests.mesh.waiting import PATIENCE_S, running, until
from tests.scenarios.discovery.agents import HOST, Script, a_state, serving_agents, with_lost_gpu
from tests.scenarios.discovery.counting import WriteCount
from tests.scenarios.discovery.processes import ReplicaProcess, Surroundings, a_replica, the_elected

SHORT_LEASE_S = 2
LONG_LEASE_S = 30
SETTINGS = {
    "GPULOOM_DISCOVERY_PUBLISH_INTERVAL": "20ms",
    "GPULOOM_DISCOVERY_HEARTBEAT_INTERVAL": "200ms",
}
HAND_OVER_S = LONG_LEASE_S / 3
READERS = 8
_LOOK_EVERY_S = 0.02


@dataclass
class Pair:
    """Two replicas on the nodes n1 and n2, whose agents follow a script; both ready, n1 and n2 written."""

    mesh: Mesh
    script: Script
    writer: ReplicaProcess
    other: ReplicaProcess
    first_writes: WriteCount

    def condition(self, node: str) -> JsonObject:
        conditions = self.mesh.api.store.get("nodes", node)["status"]["conditions"]
        return next((entry for entry in conditions if entry["type"] == "GpusHealthy"), {})

    @asynccontextmanager
    async def reader(self, *replicas: ReplicaProcess) -> AsyncIterator[ClusterMirror]:
        files = tls_files(self.mesh.folder, "cli")
        environment = RpcEnvironment(files, CollectorRegistry(), SystemClock())
        places = [Address(HOST, replica.grpc_port) for replica in replicas]
        options = MirrorOptions(silence_s=1.0, first_backoff_s=0.02, backoff_cap_s=0.1)
        mirror = ClusterMirror(Replicas(environment, places, "discovery"), SystemClock(), options)
        async with running(mirror.run):
            await mirror.wait_synced()
            yield mirror


@asynccontextmanager
async def a_pair(folder: Path, lease_s: int = SHORT_LEASE_S) -> AsyncIterator[Pair]:
    settings = SETTINGS | {"GPULOOM_DISCOVERY_LEASE_DURATION": str(lease_s)}
    async with a_mesh(folder) as mesh:
        script = Script()
        mesh.api.store.create("namespaces", {"metadata": {"name": "gpuloom-system"}})
        for name in ("n1", "n2"):
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
            mesh.api.store.create("nodes", {"metadata": {"name": name}, "status": {"conditions": [ready]}})
            script.say(a_state(name, mesh.node_uid(name)))
        count = WriteCount(mesh.api)
        ports = free_ports(4, random.Random())
        around = Surroundings(folder, folder / "kubeconfig", mesh.agents_file)
        async with serving_agents(script, tls_files(folder, "node_agent")) as agents:
            mesh.tell_agents(**agents)
            async with (
                a_replica(around, "one", (ports[0], ports[1]), **settings) as one,
                a_replica(around, "two", (ports[2], ports[3]), **settings) as two,
            ):
                writer = await the_elected(one, two)
                pair = Pair(mesh, script, writer, two if writer is one else one, count)
                await until(lambda: pair.condition("n1") and pair.condition("n2"))
                yield pair


async def becomes(holds: Callable[[], Awaitable[bool]], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while True:
            if await holds():
                return
            await asyncio.sleep(_LOOK_EVERY_S)


async def test_all_replicas_serve_the_same_facts_and_one_writes_each_node_once(tmp_path: Path) -> None:
    async with a_pair(tmp_path) as pair, pair.reader(pair.writer) as one, pair.reader(pair.other) as two:
        pair.script.say(with_lost_gpu(pair.script.states["n1"], 2))
        await until(lambda: pair.condition("n1").get("status") == "False")
        await until(lambda: lost(one) == lost(two) == 1)
        await becomes(lambda: has_written(pair.writer, 3), within_s=PATIENCE_S)

        assert one.snapshot().nodes == two.snapshot().nodes
        assert one.snapshot().version.epoch != two.snapshot().version.epoch
        assert pair.first_writes.written_nodes() == {"n1": 2, "n2": 1}
        assert pair.first_writes.sent("nodes/status") == 3
        assert await pair.other.writes() == 0
        assert not await pair.other.is_elected()


async def test_when_the_writing_replica_is_killed_readers_go_on_and_another_writes_what_is_due(
    tmp_path: Path,
) -> None:
    async with a_pair(tmp_path) as pair, AsyncExitStack() as stack:
        # Each begins with one of the two by chance.
        readers = [
            await stack.enter_async_context(pair.reader(pair.writer, pair.other)) for _ in range(READERS)
        ]
        pair.writer.signal(signal.SIGKILL)
        await pair.writer.process.wait()
        pair.script.say(with_lost_gpu(pair.script.states["n1"], 2))
        await until(lambda: all(lost(reader) == 1 for reader in readers))
        unwritten = pair.condition("n1")["status"]

        await becomes(pair.other.is_elected, within_s=PATIENCE_S)
        await until(lambda: pair.condition("n1")["status"] == "False")
        await becomes(lambda: has_written(pair.other, 1), within_s=PATIENCE_S)

        assert unwritten == "True"


async def test_a_replica_that_stops_hands_over_without_waiting_for_its_lease(tmp_path: Path) -> None:
    async with a_pair(tmp_path, LONG_LEASE_S) as pair:
        pair.writer.signal(signal.SIGTERM)
        code = await pair.writer.process.wait()

        await becomes(pair.other.is_elected, within_s=HAND_OVER_S)

        assert code == 0
        assert await pair.other.writes() == 0


async def test_a_replica_paused_past_its_lease_writes_nothing_when_it_goes_on(tmp_path: Path) -> None:
    """When it goes on, it sees what another wrote, and for a moment knows older facts than that."""
    async with a_pair(tmp_path) as pair:
        pair.writer.signal(signal.SIGSTOP)
        await becomes(pair.other.is_elected, within_s=PATIENCE_S)
        for name in ("n1", "n2"):
            pair.script.say(with_lost_gpu(pair.script.states[name], 2))
        await until(lambda: all(pair.condition(name)["status"] == "False" for name in ("n1", "n2")))
        after_takeover = pair.first_writes.sent("nodes/status")

        pair.writer.signal(signal.SIGCONT)
        await becomes(lambda: stands_by(pair.writer), within_s=PATIENCE_S)
        async with pair.reader(pair.writer) as woken:
            await until(lambda: lost(woken) == 2)

        assert pair.first_writes.sent("nodes/status") == after_takeover
        assert all(pair.condition(name)["status"] == "False" for name in ("n1", "n2"))


async def test_a_write_of_an_old_term_that_arrives_late_does_not_last(tmp_path: Path) -> None:
    """Its version still fits, because its successor found nothing to write: so the successor writes again."""
    async with a_pair(tmp_path) as pair:
        node = pair.mesh.api.store.get("nodes", "n1")
        conditions = [
            {**entry, "status": "False"} if entry["type"] == "GpusHealthy" else entry
            for entry in node["status"]["conditions"]
        ]
        late = replace_status(node, conditions=conditions)

        pair.mesh.api.store.update("nodes", late, STATUS)

        await until(lambda: pair.condition("n1")["status"] == "True")
        assert pair.first_writes.written_nodes() == {"n1": 3, "n2": 1}


def lost(mirror: ClusterMirror) -> int:
    gpus = (gpu for facts in mirror.snapshot().nodes.values() for gpu in facts.state.gpus)
    return sum(gpu.health is GpuHealth.LOST for gpu in gpus)


async def has_written(replica: ReplicaProcess, count: int) -> bool:
    """It counts a write when the API has answered, which is after the node has changed."""
    return await replica.writes() == count


async def stands_by(replica: ReplicaProcess) -> bool:
    return await replica.value("gpuloom_discovery_elected") == 0.0


def replace_status(node: JsonObject, **changes: object) -> JsonObject:
    return {**node, "status": {**node["status"], **changes}}
