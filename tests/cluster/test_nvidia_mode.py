"""Mode nvidia with everything real but the cards: who holds what is told as it is.

NVIDIA's device plugin gives out the GPUs on a real node with a real kubelet; our agent, a process of its own,
looks at the same node. Both read the cards through one stand-in library, whose machine changes meanwhile.
"""

import os
import random
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from grpc import aio
from prometheus_client import CollectorRegistry

from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.kube.resources import NODES, PODS
from gpuloom.kubelet.podresources_pb2 import ListPodResourcesRequest
from gpuloom.kubelet.podresources_pb2_grpc import PodResourcesListerStub
from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import Delivery, HolderSource, NodeMode, NodeState, PodRef
from gpuloom.names import RESOURCE_NVIDIA_GPU, RESOURCE_NVIDIA_MIG_PREFIX
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.runtime.parsers import Address
from gpuloom.sim.mesh.plan import clean_environment
from gpuloom.sim.processes.child_process import ProcessSpec
from gpuloom.sim.processes.ports import HOST, free_ports
from gpuloom.sim.processes.probes import answers_ok
from services.discovery.adapters.agents import GrpcAgents
from tests.cluster.binaries import require_binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes.configuration import RuntimeLine
from tests.cluster.nodes.device_plugin import start_device_plugin, wait_offered, write_mig_minors
from tests.cluster.nodes.pods import (
    NAMESPACE,
    VARIABLE_DEVICES,
    a_pod_of_a_plugin,
    wait_gone,
    wait_started,
)
from tests.cluster.nodes.programs import require_device_plugin
from tests.cluster.nodes.real_node import Daemon, RealNode
from tests.cluster.shared import account_of, apply_rights
from tests.cluster.test_real_nodes import a_cluster
from tests.mesh.waiting import running
from tests.nvml.library import STATE_VARIABLE, Standin, compile_library
from tests.nvml.machines import GPU_IS_LOST, mig_machine, nvswitch_machine, uuid

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

CLOCK = SystemClock()
NODE = "real-a"
GPUS = 8
SLICE = "1g.5gb"
SLICE_PROFILE_ID = 19
HEAR_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Place:
    """One real node whose GPUs NVIDIA's plugin gives out, and where our agent listens."""

    node: RealNode
    client: KubeClient
    standin: Standin
    agent: Address
    certificates: Path


@dataclass
class Heard:
    """All that the agent said, in order; `until` goes on where it last found something."""

    states: list[NodeState] = field(default_factory=list)
    _next: int = 0

    async def until(self, wanted: Callable[[NodeState], bool]) -> NodeState:
        async with deadline(CLOCK, HEAR_TIMEOUT_S):
            while True:
                while self._next < len(self.states):
                    state, self._next = self.states[self._next], self._next + 1
                    if wanted(state):
                        return state
                await CLOCK.sleep(0.02)


async def test_container_kubelet_and_agent_name_the_same_gpus_and_the_same_pod(
    library: Path, tmp_path: Path
) -> None:
    async with a_place(tmp_path, library, nvswitch_machine(GPUS)) as place, following(place) as heard:
        await wait_offered(place.client, NODE, RESOURCE_NVIDIA_GPU, GPUS, CLOCK)
        node_uid = uid_of(await place.client.get(NODES, NODE))
        first = await run_pod(place, "train", RESOURCE_NVIDIA_GPU, 2)
        held = await heard.until(has_holders)
        seen, listed = await visible_in(place, first), await listed_by_kubelet(place, "train")
        await place.client.delete(PODS, "train", NAMESPACE)
        await wait_gone(place.client, "train", CLOCK)
        freed = await heard.until(has_no_holders)
        told_before = len(heard.states)
        second = await run_pod(place, "train", RESOURCE_NVIDIA_GPU, 2)
        anew = await heard.until(has_holders)
        seen_anew = await visible_in(place, second)
        since = heard.states[told_before:]

    assert (held.mode, held.delivery, held.node_uid) == (NodeMode.NVIDIA, Delivery.DEVICE_PLUGIN, node_uid)
    assert len(seen) == 2
    assert seen == listed
    assert held_in(held) == {owner_of(first): whole_gpus(seen)}
    assert {holder.source for holder in held.holders} == {HolderSource.KUBELET}
    assert [gpu.health for gpu in freed.gpus] == [GpuHealth.HEALTHY] * GPUS
    assert uid_of(second) != uid_of(first)
    assert held_in(anew) == {owner_of(second): whole_gpus(seen_anew)}
    assert {holder.pod.uid for state in since for holder in state.holders} <= {"", uid_of(second)}


async def test_holders_are_unknown_while_the_kubelet_is_away_and_never_missing(
    library: Path, tmp_path: Path
) -> None:
    """A kubelet that has just started answers, but lists no pods until it has heard of them."""
    async with a_place(tmp_path, library, nvswitch_machine(GPUS)) as place, following(place) as heard:
        await wait_offered(place.client, NODE, RESOURCE_NVIDIA_GPU, GPUS, CLOCK)
        pod = await run_pod(place, "steady", RESOURCE_NVIDIA_GPU, 2)
        before = await heard.until(has_holders)
        listed = await listed_by_kubelet(place, "steady")
        await place.node.kill(Daemon.KUBELET)
        away = await heard.until(lambda state: not holders_are_known(state))
        listed_again = await wait_listed(place, "steady")
        await heard.until(has_holders)
        since = heard.states[heard.states.index(before) :]

    expected = {owner_of(pod): whole_gpus(listed)}
    assert listed == listed_again
    assert away.holders_unknown_reason.startswith("the kubelet does not answer")
    assert held_in(away) == expected
    assert [
        held_in(state) for state in since if holders_are_known(state) and held_in(state) != expected
    ] == []


async def test_holders_stay_word_for_word_the_same_as_long_as_nothing_happens(
    library: Path, tmp_path: Path
) -> None:
    """The kubelet lists a container's devices in another order each time it is asked."""
    async with a_place(tmp_path, library, nvswitch_machine(GPUS)) as place, following(place) as heard:
        await wait_offered(place.client, NODE, RESOURCE_NVIDIA_GPU, GPUS, CLOCK)
        await run_pod(place, "steady", RESOURCE_NVIDIA_GPU, GPUS)
        before = await heard.until(has_holders)
        for temperature_c in range(40, 50):
            await look_again(place, heard, temperature_c)
        since = heard.states[heard.states.index(before) :]

    assert {state.holders for state in since} == {before.holders}


async def test_a_gpu_that_fails_is_reported_by_the_plugin_and_by_us_and_hides_no_other(
    library: Path, tmp_path: Path
) -> None:
    async with a_place(tmp_path, library, nvswitch_machine(GPUS)) as place, following(place) as heard:
        await wait_offered(place.client, NODE, RESOURCE_NVIDIA_GPU, GPUS, CLOCK)
        place.standin.report_xid(5, 79)
        failed = await heard.until(a_gpu_is_ill)
        await wait_offered(place.client, NODE, RESOURCE_NVIDIA_GPU, GPUS - 1, CLOCK)
        pod = await run_pod(place, "rest", RESOURCE_NVIDIA_GPU, GPUS - 1)
        held = await heard.until(has_holders)
        place.standin.set({"gpu.5.fault": GPU_IS_LOST})
        lost = await heard.until(lambda state: state.gpus[5].health is GpuHealth.LOST)

    healthy = {uuid(gpu) for gpu in range(GPUS) if gpu != 5}
    assert failed.gpus[5].health in (GpuHealth.UNHEALTHY, GpuHealth.LOST)
    assert "79" in failed.gpus[5].health_reason
    assert held_in(held) == {owner_of(pod): whole_gpus(healthy)}
    assert {gpu.uuid for gpu in lost.gpus if gpu.health is GpuHealth.HEALTHY} == healthy


async def test_a_slice_is_held_by_its_place_beside_whole_gpus(library: Path, tmp_path: Path) -> None:
    machine = mig_machine(2) | {"gpu.1.mig.mode": 0}
    slices = {f"MIG-0000000{number}-1111-5222-8333-444444444444": number for number in range(7)}
    resource = f"{RESOURCE_NVIDIA_MIG_PREFIX}{SLICE}"
    async with a_place(tmp_path, library, machine, slices) as place, following(place) as heard:
        await wait_offered(place.client, NODE, resource, len(slices), CLOCK)
        await wait_offered(place.client, NODE, RESOURCE_NVIDIA_GPU, 1, CLOCK)
        small = await run_pod(place, "infer", resource, 1)
        whole = await run_pod(place, "train", RESOURCE_NVIDIA_GPU, 1)
        held = await heard.until(lambda state: has_holders(state) and len(state.holders) == 2)
        (seen,), seen_whole = await visible_in(place, small), await visible_in(place, whole)
        listed = await listed_by_kubelet(place, "infer")

    place_of_slice = DeviceRef(uuid(0), MigPlacement(slices[seen], SLICE))
    assert listed == {seen}
    assert held_in(held) == {owner_of(small): {place_of_slice}, owner_of(whole): whole_gpus(seen_whole)}
    assert seen_whole == {uuid(1)}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("nvml"))


@asynccontextmanager
async def a_place(
    directory: Path, library: Path, machine: Mapping[str, object], slices: Mapping[str, int] | None = None
) -> AsyncIterator[Place]:
    """`slices` are instances of GPU 0 of one slot, where they start by their UUIDs."""
    program = require_device_plugin(require_binaries())
    standin = Standin(directory / "state", machine)
    driver = {"LD_LIBRARY_PATH": str(library.parent), STATE_VARIABLE: str(standin.path)}
    async with a_cluster(directory, {NODE: RuntimeLine.CONTAINERD_2}) as cluster:
        (node,) = cluster.nodes
        if slices:
            _cut(standin, node, slices)
        await start_device_plugin(node, program, driver)
        grpc_port, http_port = free_ports(2, random.Random())
        certificates = directory / "certificates"
        place = Place(node, cluster.client, standin, Address(HOST, grpc_port), certificates)
        await cluster.plane.supervisor.start([[await _agent(cluster.plane, place, driver, http_port)]])
        yield place


@asynccontextmanager
async def following(place: Place) -> AsyncIterator[Heard]:
    """As discovery follows an agent, from its first state on."""
    heard = Heard()
    files = tls_files(place.certificates, "discovery")
    agents = GrpcAgents(RpcEnvironment(files, CollectorRegistry(), CLOCK))

    async def listen() -> None:
        async with agents.link(place.agent) as link, link.states() as states:
            async for state in states:
                if state is not None:
                    heard.states.append(state)

    async with running(listen):
        yield heard


async def run_pod(place: Place, name: str, resource: str, count: int) -> JsonObject:
    await place.client.create(PODS, a_pod_of_a_plugin(name, NODE, resource, count))
    return await wait_started(place.client, name, CLOCK)


async def look_again(place: Place, heard: Heard, temperature_c: int) -> None:
    """Until the agent has looked once more, which a new temperature of all cards shows."""
    place.standin.set({"all.temperature_c": temperature_c})
    await heard.until(lambda state: all(usage.temperature_c == temperature_c for usage in state.usage))


async def visible_in(place: Place, pod: JsonObject) -> set[str]:
    """The devices that the running container was told of, asked inside it."""
    said = await place.node.run_in_container(pod, "env")
    environment = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    return set(environment[VARIABLE_DEVICES].split(","))


async def listed_by_kubelet(place: Place, name: str) -> set[str]:
    """The ids of the devices that the kubelet says it gave to this pod."""
    async with aio.insecure_channel(f"unix://{place.node.paths.pod_resources_socket}") as channel:
        answer = await PodResourcesListerStub(channel).List(ListPodResourcesRequest(), timeout=10)
    return {
        device_id
        for pod in answer.pod_resources
        if pod.name == name
        for container in pod.containers
        for given in container.devices
        for device_id in given.device_ids
    }


async def wait_listed(place: Place, name: str) -> set[str]:
    """As listed_by_kubelet, once a kubelet that has just started lists the pod."""
    listed: set[str] = set()
    async with deadline(CLOCK, HEAR_TIMEOUT_S):
        while not listed:
            await CLOCK.sleep(0.05)
            try:
                listed = await listed_by_kubelet(place, name)
            except aio.AioRpcError:
                # It opens this socket after it said that it is healthy.
                continue
    return listed


def held_in(state: NodeState) -> dict[PodRef, set[DeviceRef]]:
    return {holder.pod: set(holder.devices) for holder in state.holders}


def owner_of(pod: JsonObject) -> PodRef:
    return PodRef(NAMESPACE, str(pod["metadata"]["name"]), uid_of(pod))


def whole_gpus(gpu_uuids: set[str]) -> set[DeviceRef]:
    return {DeviceRef(gpu_uuid) for gpu_uuid in gpu_uuids}


def holders_are_known(state: NodeState) -> bool:
    return not state.holders_unknown_reason


def has_holders(state: NodeState) -> bool:
    """And knows all of them: the kubelet lists names, and whose they are shows Kubernetes a moment later."""
    return holders_are_known(state) and bool(state.holders) and all(one.pod.uid for one in state.holders)


def has_no_holders(state: NodeState) -> bool:
    return holders_are_known(state) and not state.holders


def a_gpu_is_ill(state: NodeState) -> bool:
    return any(gpu.health is not GpuHealth.HEALTHY for gpu in state.gpus)


def _cut(standin: Standin, node: RealNode, slices: Mapping[str, int]) -> None:
    ids = {name: start + 1 for name, start in slices.items()}
    standin.put_instances(
        *(f"0 {ids[name]} {SLICE_PROFILE_ID} {start} 1 1 {name}" for name, start in slices.items())
    )
    write_mig_minors(node, [(0, instance) for instance in ids.values()])


async def _agent(plane: ControlPlane, place: Place, driver: Mapping[str, str], http_port: int) -> ProcessSpec:
    """The agent as on any node: a process of its own, under its own account and certificate."""
    await apply_rights(plane)
    issue_development_certificates(place.certificates, CertificateOrder(("node_agent", "discovery")), CLOCK)
    files = tls_files(place.certificates, "node_agent")
    settings = {
        "GPULOOM_NODE_NAME": NODE,
        "GPULOOM_AGENT_DRIVER": "nvml",
        "GPULOOM_AGENT_MODE": NodeMode.NVIDIA.value,
        "GPULOOM_KUBELET_SOCKET": str(place.node.paths.pod_resources_socket),
        "GPULOOM_AGENT_SAMPLE_INTERVAL": "200ms",
        "GPULOOM_GRPC_HOST": HOST,
        "GPULOOM_GRPC_PORT": str(place.agent.port),
        "GPULOOM_HTTP_HOST": HOST,
        "GPULOOM_HTTP_PORT": str(http_port),
        "GPULOOM_KUBECONFIG": str(await plane.service_account_kubeconfig(*account_of("node-agent"))),
        "GPULOOM_TLS_CERT_FILE": str(files.cert_file),
        "GPULOOM_TLS_KEY_FILE": str(files.key_file),
        "GPULOOM_TLS_CA_FILE": str(files.ca_file),
    }
    return ProcessSpec(
        name="agent",
        argv=(sys.executable, "-P", "-m", "services.node_agent"),
        log_path=plane.directory / "logs/agent.log",
        environment={**clean_environment(os.environ), **driver, **settings},
        ready=answers_ok(f"http://{HOST}:{http_port}/readyz", CLOCK),
    )
