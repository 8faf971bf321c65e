"""Real nodes: kubelet and containerd beside each other on this machine, on both release lines."""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from grpc import aio

from gpuloom.catalog import load_catalog
from gpuloom.codec.allocation import believable, decode_allocation, visible_devices
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.kube.resources import NODES, PODS
from gpuloom.kubelet.podresources_pb2 import ListPodResourcesRequest
from gpuloom.kubelet.podresources_pb2_grpc import PodResourcesListerStub
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_ALLOCATION, LABEL_MODE, RESOURCE_GPU_MEMORY_MIB, RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.machines.audit import audit
from gpuloom.sim.machines.hardware import MachineSpec
from gpuloom.sim.machines.machine import Machine
from tests.cluster.binaries import require_binaries
from tests.cluster.control_plane import ControlPlane, open_control_plane
from tests.cluster.mesh import MeshLayout
from tests.cluster.nodes.configuration import RuntimeLine
from tests.cluster.nodes.pods import (
    NAMESPACE,
    VARIABLE_DEVICES,
    a_pod,
    container_id,
    restarts,
    wait_started,
    wait_unschedulable,
)
from tests.cluster.nodes.programs import require_programs
from tests.cluster.nodes.real_node import Daemon, RealNode
from tests.cluster.nodes.recorder import Recorder
from tests.cluster.nodes.services import lay_out_services, machines_of, start_services

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

CLOCK = SystemClock()


@dataclass(frozen=True)
class Cluster:
    plane: ControlPlane
    client: KubeClient
    nodes: tuple[RealNode, ...]

    def node_of(self, pod: JsonObject) -> RealNode:
        return next(node for node in self.nodes if node.name == pod["spec"]["nodeName"])


@asynccontextmanager
async def a_cluster(directory: Path, lines: Mapping[str, RuntimeLine]) -> AsyncIterator[Cluster]:
    """A control plane with real nodes of these names and lines, all Ready."""
    binaries = require_binaries()
    programs = {line: await require_programs(binaries, line) for line in lines.values()}
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(open_control_plane(binaries, directory / "plane", CLOCK))
        nodes = [RealNode(name, plane, programs[line], line) for name, line in lines.items()]
        for node in nodes:
            await stack.enter_async_context(node)
        yield Cluster(plane, await stack.enter_async_context(plane.client()), tuple(nodes))


@pytest.fixture(params=list(RuntimeLine))
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with a_cluster(tmp_path, dict.fromkeys(["real-a", "real-b"], request.param)) as opened:
        yield opened


async def test_pods_run_on_nodes_that_stand_side_by_side(cluster: Cluster) -> None:
    for node in cluster.nodes:
        await cluster.client.create(PODS, a_pod(f"on-{node.name}", node.name))
    pods = [await wait_started(cluster.client, f"on-{node.name}", CLOCK) for node in cluster.nodes]

    said = [await _environment(cluster, pod) for pod in pods]
    listed = [await _listed_pods(node) for node in cluster.nodes]

    assert [environment["POD_NAME"] for environment in said] == ["on-real-a", "on-real-b"]
    assert listed == [["on-real-a"], ["on-real-b"]]
    for node in cluster.nodes:
        await _connect(node.paths.nri_socket)


async def test_a_pod_outlives_both_daemons_and_extended_resources_stay(cluster: Cluster) -> None:
    node, client = cluster.nodes[0], cluster.client
    await client.patch_status(NODES, node.name, None, {"status": {"capacity": {RESOURCE_GPU_MILLI: "1500"}}})
    await client.create(PODS, a_pod("steady", node.name))
    before = await wait_started(client, "steady", CLOCK)

    await node.kill(Daemon.CONTAINERD)
    await node.kill(Daemon.KUBELET, signal.SIGTERM)
    await node.kill(Daemon.KUBELET)
    shown = await _node_after_heartbeats(client, node.name)
    after = await client.get(PODS, "steady", NAMESPACE)

    assert shown["status"]["capacity"][RESOURCE_GPU_MILLI] == "1500"
    assert shown["status"]["allocatable"][RESOURCE_GPU_MILLI] == "1500"
    assert (container_id(after), restarts(after)) == (container_id(before), 0)
    assert (await _environment(cluster, after))["POD_NAME"] == "steady"


async def test_shares_reach_their_pods(tmp_path: Path) -> None:
    """One node of each line. Two nodes with two GPUs have room for eight halves, not for a ninth.

    The name is short because it is part of the path of a socket.
    """
    halves = [f"half-{number}" for number in range(8)]
    lines = {"real-a": RuntimeLine.CONTAINERD_1_7, "real-b": RuntimeLine.CONTAINERD_2}
    async with a_cluster(tmp_path, lines) as cluster, _simulated_gpus(cluster) as layout:
        for name in halves:
            await cluster.client.create(PODS, a_pod(name, milli=500))
        pods = [await wait_started(cluster.client, name, CLOCK) for name in halves]
        await cluster.client.create(PODS, a_pod("ninth", milli=500))
        refusal = await wait_unschedulable(cluster.client, "ninth", CLOCK)
        delivered = [await _delivered(cluster, pod) for pod in pods]
        await cluster.client.delete(PODS, halves[0], NAMESPACE)
        ninth = await wait_started(cluster.client, "ninth", CLOCK)

        assert delivered == [await _allocated(cluster, pod) for pod in pods]
        assert await _delivered(cluster, ninth) == await _allocated(cluster, ninth) == delivered[0]
        assert "0/2 nodes are available" in refusal
    report = audit(layout.machines)
    assert (report.findings, report.starts) == ((), 9)


@asynccontextmanager
async def _simulated_gpus(cluster: Cluster) -> AsyncIterator[MeshLayout]:
    """Two GPUs a node, offered in mode gpuloom, with our services and scheduler at work."""
    specs = [_a_machine(node.name) for node in cluster.nodes]
    layout = await lay_out_services(cluster.plane, specs, CLOCK)
    machines = machines_of(layout)
    for node, machine in zip(cluster.nodes, machines, strict=True):
        await _offer(cluster.client, machine)
        # The agents ask the kubelets, which know of no device of these pods.
        machine.socket_path.symlink_to(node.paths.pod_resources_socket)
    async with _recording(cluster.nodes, machines):
        await start_services(cluster.plane, layout)
        yield layout


def _a_machine(node: str) -> MachineSpec:
    kind = load_catalog().instance("gcp", "g2-standard-24")
    return MachineSpec(
        node=node,
        mode=NodeMode.GPULOOM,
        gpu_model=kind.gpu.name,
        gpu_count=kind.gpu_count,
        topology=kind.shape.name,
        cpu_cores=kind.vcpus,
        memory_gib=kind.memory_gib,
    )


async def _offer(client: KubeClient, machine: Machine) -> None:
    offered = {
        RESOURCE_GPU_MILLI: str(MILLI_PER_GPU * len(machine.hardware.gpus)),
        RESOURCE_GPU_MEMORY_MIB: str(machine.hardware.memory_mib),
    }
    labels = {LABEL_MODE: NodeMode.GPULOOM.value}
    await client.patch(NODES, machine.spec.node, None, {"metadata": {"labels": labels}})
    await client.patch_status(NODES, machine.spec.node, None, {"status": {"capacity": offered}})


@asynccontextmanager
async def _recording(nodes: Sequence[RealNode], machines: Sequence[Machine]) -> AsyncIterator[None]:
    recorders = [
        Recorder(node.claim.cgroup, machine, CLOCK) for node, machine in zip(nodes, machines, strict=True)
    ]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(recorder.run()) for recorder in recorders]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            for recorder in recorders:
                recorder.close()


async def _delivered(cluster: Cluster, pod: JsonObject) -> str:
    """What the running container sees, asked inside it."""
    return (await _environment(cluster, pod))[VARIABLE_DEVICES]


async def _allocated(cluster: Cluster, pod: JsonObject) -> str:
    """What the pod's allocation says, if it is one for this pod on its node."""
    allocation = decode_allocation(metadata_of(pod)["annotations"][ANNOTATION_ALLOCATION])
    node = await cluster.client.get(NODES, pod["spec"]["nodeName"])
    assert believable(allocation, uid_of(pod), uid_of(node)) is None
    return visible_devices(allocation)


async def _environment(cluster: Cluster, pod: JsonObject) -> dict[str, str]:
    said = await cluster.node_of(pod).run_in_container(pod, "env")
    return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)


async def _listed_pods(node: RealNode) -> list[str]:
    """By the kubelet's PodResources API."""
    async with aio.insecure_channel(f"unix://{node.paths.pod_resources_socket}") as channel:
        answer = await PodResourcesListerStub(channel).List(ListPodResourcesRequest(), timeout=10)
    return sorted(pod.name for pod in answer.pod_resources)


async def _connect(socket: Path) -> None:
    _, writer = await asyncio.open_unix_connection(socket)
    writer.close()
    await writer.wait_closed()


async def _node_after_heartbeats(client: KubeClient, name: str) -> JsonObject:
    """The node after its present kubelet reported at least twice."""
    heartbeats: set[str] = set()
    async with deadline(CLOCK, 60.0):
        while True:
            node = await client.get(NODES, name)
            conditions = {entry["type"]: entry for entry in node["status"]["conditions"]}
            heartbeats.add(conditions["Ready"]["lastHeartbeatTime"])
            if len(heartbeats) > 2:
                return node
            await CLOCK.sleep(0.2)
