"""All replicas of discovery restart in a busy cluster, counted on the API: only what changed is written."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry

from gpuloom.clients.discovery import ClusterMirror, MirrorOptions
from gpuloom.clients.replicas import Replicas
from gpuloom.codec.allocation import encode_allocation
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.node import Holder, HolderSource, PodRef
from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from gpuloom.names import ANNOTATION_ALLOCATION
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.parsers import Address
from gpuloom.sim.kubeapi import SimKubeApi
from gpuloom.sim.kubeapi.verbs import subresources
from gpuloom.sim.kubeapi.verbs.store import STATUS
from services.discovery import app as discovery
from services.discovery.config import DiscoveryConfig
from tests.mesh.node_agent.builders import Mesh, Service, a_mesh
from tests.mesh.waiting import running, until
from tests.scenarios.discovery.agents import (
    CARD_MIB,
    HOST,
    NearAgents,
    Script,
    a_state,
    gpu_of,
    with_lost_gpu,
)
from tests.scenarios.discovery.counting import WriteCount, until_quiet

NODES = 1000
PENDING = 200
LOST, WARNED, ROBBED, COPIED = "n0001", "n0002", "n0003", "n0004"
END = SpotNotice(SpotNoticeKind.INTERRUPTION, datetime(2026, 3, 1, 12, tzinfo=UTC), "aws", "terminate")


@dataclass
class Replica:
    service: Service
    port: int

    @property
    def elected(self) -> bool:
        return self.value("gpuloom_discovery_elected") == 1.0

    @property
    def ready(self) -> bool:
        return not self.service.not_ready()

    def value(self, metric: str, **labels: str) -> float | None:
        return self.service.app.registry.get_sample_value(metric, labels)


@pytest.mark.timeout(400)
async def test_a_restart_of_all_replicas_writes_what_changed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_mesh(tmp_path) as mesh:
        script = a_busy_cluster(mesh.api)
        agents = NearAgents(script, list(script.states))
        monkeypatch.setattr(discovery, "GrpcAgents", lambda _: agents)
        write_agents(mesh, agents)
        first = WriteCount(mesh.api)
        replicas = await start_both(mesh)
        async with a_reader(mesh, replicas) as reader:
            await until_quiet(mesh.api, lambda: len(first.written_nodes()) == NODES)

            for replica in replicas:
                assert await replica.service.stop() == 0
            first.end()
            lose_a_gpu_warn_and_rob(mesh.api, script)
            second = WriteCount(mesh.api)
            replicas = await start_both(mesh, replicas)
            await until_quiet(mesh.api, lambda: len(second.written_nodes()) == 3)
            await until(lambda: shows_the_changes(reader))
            fresh = [await mesh.mirror(replica.service) for replica in replicas]
            await until(lambda: all(mirror.synced for mirror in fresh))

            # Nobody is touched but the nodes that changed, each once; and each reason is told once.
            assert first.written_nodes() == dict.fromkeys(script.states, 1)
            assert second.written_nodes() == {LOST: 1, WARNED: 1, ROBBED: 1}
            for count in (first, second):
                assert count.sent("nodes/status") == len(count.written_nodes())
                assert (count.sent("pods"), count.sent("nodes"), count.sent_elsewhere()) == (0, 0, 0)
                assert count.events_by_reason() == {(COPIED, "AllocationOfAnotherPod"): 1}
                assert count.sent("events") == 1
            # A reader that followed all the time has what both replicas say now.
            assert len(reader.snapshot().nodes) == NODES
            assert all(mirror.snapshot().nodes == reader.snapshot().nodes for mirror in fresh)
            check_nodes(mesh.api)


def a_busy_cluster(api: SimKubeApi) -> Script:
    """Nodes whose first GPU a pod was given and holds; pods that wait; and a pod with a copied allocation."""
    script = Script()
    api.store.create("namespaces", {"metadata": {"name": "gpuloom-system"}})
    for number in range(NODES):
        name = f"n{number:04d}"
        amounts = {"cpu": "96", "memory": "1152Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        uid = api.store.create("nodes", {"metadata": {"name": name}, "status": status})["metadata"]["uid"]
        pod = bind_pod(api, f"busy-{number}", (name, uid), gpu_of(name, 0))
        holder = Holder(pod, "main", (DeviceRef(gpu_of(name, 0)),), HolderSource.RUNTIME)
        script.say(a_state(name, uid, holder))
    for number in range(PENDING):
        api.store.create("pods", a_pod(f"pending-{number}"))
    copied_uid = script.states[COPIED].node_uid
    bind_pod(api, "copy", (COPIED, copied_uid), gpu_of(COPIED, 5), gpu_of(COPIED, 6), owner="somebody-else")
    return script


def a_pod(name: str) -> dict[str, Any]:
    limits = {"gpuloom.dev/gpu-milli": "1000"}
    container = {"name": "main", "image": "example.test/main", "resources": {"limits": limits}}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


def bind_pod(api: SimKubeApi, name: str, node: tuple[str, str], *gpus: str, owner: str = "") -> PodRef:
    """A pod on the node (name, UID) that carries an allocation of these GPUs, its own or somebody's."""
    uid = str(api.store.create("pods", a_pod(name))["metadata"]["uid"])
    devices = tuple(AllocatedDevice(DeviceRef(gpu), 1000, CARD_MIB) for gpu in gpus)
    given = encode_allocation(Allocation(owner or uid, node[1], "main", False, devices))
    metadata = {"name": name, "annotations": {ANNOTATION_ALLOCATION: given}}
    binding = {"metadata": metadata, "target": {"kind": "Node", "name": node[0]}}
    subresources.bind(api.store, "default", name, binding)
    return PodRef("default", name, uid)


def write_agents(mesh: Mesh, agents: NearAgents) -> None:
    addresses = {name: str(address) for name, address in agents.addresses.items()}
    mesh.agents_file.write_bytes(orjson.dumps(addresses))


async def start_both(mesh: Mesh, before: list[Replica] | None = None) -> list[Replica]:
    """Two replicas that are ready and have elected one of them; at the ports of those before."""
    started = []
    for port in [replica.port for replica in before] if before else [0, 0]:
        settings = {
            "GPULOOM_AGENTS_FILE": str(mesh.agents_file),
            "GPULOOM_GRPC_HOST": HOST,
            "GPULOOM_GRPC_PORT": str(port),
            # Replicas, API and readers share one event loop, which may be late for a lease of 6 s.
            "GPULOOM_DISCOVERY_LEASE_DURATION": "60",
        }
        service = await mesh._start("discovery", DiscoveryConfig, discovery.build, settings)
        started.append(Replica(service, service.port))
    await until(lambda: all(replica.ready for replica in started), timeout_s=60)
    await until(lambda: any(replica.elected for replica in started), timeout_s=60)
    assert sum(replica.elected for replica in started) == 1
    return started


@asynccontextmanager
async def a_reader(mesh: Mesh, replicas: list[Replica]) -> AsyncIterator[ClusterMirror]:
    environment = RpcEnvironment(
        tls_files(mesh.folder, "scheduler_extender"), CollectorRegistry(), SystemClock()
    )
    places = [Address(HOST, replica.port) for replica in replicas]
    mirror = ClusterMirror(
        Replicas(environment, places, "discovery"), SystemClock(), MirrorOptions(backoff_cap_s=0.5)
    )
    async with running(mirror.run):
        await mirror.wait_synced()
        yield mirror


def lose_a_gpu_warn_and_rob(api: SimKubeApi, script: Script) -> None:
    script.say(with_lost_gpu(script.states[LOST], 3))
    script.change(WARNED, spot=END)
    node = api.store.get("nodes", ROBBED)
    allocatable = {key: value for key, value in node["status"]["allocatable"].items() if "gpuloom" not in key}
    api.store.update("nodes", {**node, "status": {**node["status"], "allocatable": allocatable}}, STATUS)


def shows_the_changes(reader: ClusterMirror) -> bool:
    by_name = {facts.state.node_name: facts.state for facts in reader.snapshot().nodes.values()}
    return by_name[LOST].gpus[3].health is GpuHealth.LOST and by_name[WARNED].spot == END


def check_nodes(api: SimKubeApi) -> None:
    def of(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        node = api.store.get("nodes", name)
        return node, {condition["type"]: condition for condition in node["status"]["conditions"]}

    lost, conditions = of(LOST)
    assert conditions["GpusHealthy"]["status"] == "False"
    assert conditions["Ready"]["reason"] == "KubeletReady"
    assert lost["status"]["allocatable"]["gpuloom.dev/gpu-milli"] == "8k"
    warned, _ = of(WARNED)
    assert warned["metadata"]["annotations"]["gpuloom.dev/spot-notice"] == "aws"
    robbed, _ = of(ROBBED)
    assert robbed["status"]["allocatable"]["gpuloom.dev/gpu-milli"] == "8k"
