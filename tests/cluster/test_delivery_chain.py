"""From a pending pod to the device nodes in its container: every part real but the GPUs.

kube-scheduler and our extender choose, the admission policy is in force, and the agent's own process reads
NVML and delivers by the runtime of a real node. The GPUs are the stand-in library's; their device nodes are
copies of /dev/null.
"""

import json
import os
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuloom.catalog import load_catalog
from gpuloom.cli.scheduling.scheduler_config import OWN_SCHEDULER
from gpuloom.codec.allocation import decode_allocation, encode_allocation
from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.kube.objects import JsonObject, metadata_of, resource_version_of, uid_of
from gpuloom.kube.resources import NODES, PODS, RUNTIME_CLASSES
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_ALLOCATION, LABEL_MODE, RESOURCE_GPU_MEMORY_MIB, RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.machines.hardware import MachineSpec
from gpuloom.sim.processes.child_process import ProcessSpec
from gpuloom.sim.processes.ports import HOST
from tests.cluster.control_plane import ControlPlane
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
from tests.cluster.nodes.real_node import Daemon, RealNode
from tests.cluster.nodes.services import lay_out_services
from tests.cluster.shared import MANIFESTS
from tests.cluster.test_delivery import refusal
from tests.cluster.test_real_nodes import a_cluster
from tests.nvml.library import STATE_VARIABLE, Standin, compile_library
from tests.nvml.machines import some_gpus, uuid

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

CLOCK = SystemClock()
NODE = "real-a"
AGENT = "agent"
GPUS = 2
MEMORY_MIB = 40960

Metrics = dict[str, float]
"""The agent's samples, by name and labels as they are written."""


@dataclass(frozen=True)
class Chain:
    plane: ControlPlane
    client: KubeClient
    extender: KubeClient
    """Under the account of the extender, which alone may say which devices a pod has."""
    node: RealNode
    standin: Standin
    metrics_url: str
    """Of the agent."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(params=list(RuntimeLine))
async def chain(request: pytest.FixtureRequest, tmp_path: Path, library: Path) -> AsyncIterator[Chain]:
    async with a_chain(tmp_path, library, request.param, {}) as opened:
        yield opened


async def test_pods_see_exactly_the_cards_they_were_given_also_after_the_agent_restarted(
    chain: Chain,
) -> None:
    async with a_running_pod(chain, "pair", milli=2000) as pair:
        pair_sees, pair_has = await seen_by(chain, pair), given_to(pair)
    async with a_running_pod(chain, "plain", milli=0) as plain:
        plain_sees = await seen_by(chain, plain)
    async with a_running_pod(chain, "half", milli=500) as half:
        half_sees, half_has = await seen_by(chain, half), given_to(half)
        await restart_agent(chain)
        async with a_running_pod(chain, "whole", milli=1000) as whole:
            whole_sees, whole_has = await seen_by(chain, whole), given_to(whole)
            await chain.client.create(PODS, a_pod("more", milli=600))
            refused = await wait_unschedulable(chain.client, "more", CLOCK)

    assert pair_sees == pair_has == ["gpu-0", "gpu-1"]
    assert plain_sees == []
    assert half_sees == half_has
    assert whole_sees == whole_has
    assert sorted(half_sees + whole_sees) == ["gpu-0", "gpu-1"]
    assert "0/1 nodes are available" in refused


async def test_containers_get_their_devices_and_no_others_while_every_call_of_nvml_hangs(
    chain: Chain,
) -> None:
    """The kubelet restarts on top of it; in this mode nothing of ours hangs on it."""
    async with a_running_pod(chain, "half", milli=500) as half:
        chain.standin.set({"hang": 1, "all.hang": 1})
        await metrics_where(chain, lambda told: told.get('gpuloom_node_agent_gpus{health="unknown"}') == GPUS)
        await chain.node.kill(Daemon.KUBELET)
        (free,) = {0, 1} - {int(name[-1]) for name in given_to(half)}
        wrong = {
            "forged": an_allocation("GPU-unknown", milli=100),
            "copied": allocation_of(half),
            "misplaced": replace(an_allocation(uuid(free), milli=100), container="side"),
            "wider": an_allocation(uuid(free)),
        }
        for name, allocation in wrong.items():
            await bind(chain, name, 100, allocation)
        refused = {name: await refusal(chain.client, name) for name in wrong}
        await bind(chain, "late", 1000, an_allocation(uuid(free)))
        late = await wait_started(chain.client, "late", CLOCK)
        still = await chain.client.get(PODS, "half", NAMESPACE)
        told = await metrics_where(chain, lambda told: told.get("gpuloom_node_agent_holders") == 2)
        late_sees, half_sees = await seen_by(chain, late), await seen_by(chain, still)

    assert late_sees == [f"gpu-{free}"]
    assert half_sees == given_to(half)
    assert (container_id(still), restarts(still)) == (container_id(half), 0)
    assert "gpuloom: this node has no GPU GPU-unknown" in refused["forged"]
    assert "gpuloom: the allocation names another pod" in refused["copied"]
    assert "gpuloom: the allocation is for container side, but main asks for GPUs" in refused["misplaced"]
    assert (
        "gpuloom: the allocation gives 1000 milli, but container main asks for 100 milli" in refused["wider"]
    )
    answers = "gpuloom_node_agent_delivery_answer_duration_seconds"
    assert told[f'{answers}_bucket{{le="0.05"}}'] == told[f"{answers}_count"] > len(wrong)
    assert told['gpuloom_node_agent_gpus{health="unknown"}'] == GPUS


async def test_without_nri_a_pod_of_nvidias_runtime_class_gets_its_devices_by_environment(
    tmp_path: Path, library: Path
) -> None:
    """The runtime of that class is the plain one here: what it would make of the variable is not ours."""
    settings = {"GPULOOM_AGENT_DELIVERY": "env"}
    async with a_chain(tmp_path, library, RuntimeLine.CONTAINERD_2, settings) as chain:
        await _add_runtime_class(chain)
        await chain.client.create(PODS, a_pod("plain", milli=500))
        refused = await wait_unschedulable(chain.client, "plain", CLOCK)
        by_class = a_pod("by-class", milli=500)
        by_class["spec"]["runtimeClassName"] = "nvidia"
        await chain.client.create(PODS, by_class)
        pod = await wait_started(chain.client, "by-class", CLOCK)
        said = await chain.node.run_in_container(pod, "env")
        told = await metrics_where(chain, lambda told: told.get("gpuloom_node_agent_holders") == 1)
        await chain.client.delete(PODS, "by-class", NAMESPACE)
        await metrics_where(chain, lambda told: told.get("gpuloom_node_agent_holders") == 0)

    (device,) = allocation_of(pod).devices
    assert f"{VARIABLE_DEVICES}={device.device.gpu_uuid}" in said.splitlines()
    assert "the pod needs runtimeClassName nvidia" in refused
    assert told['gpuloom_node_agent_delivery_way{way="env"}'] == 1


async def test_under_nri_no_container_of_nvidias_runtime_class_is_created(
    tmp_path: Path, library: Path
) -> None:
    async with a_chain(tmp_path, library, RuntimeLine.CONTAINERD_2, {}) as chain:
        await _add_runtime_class(chain)
        await restart_agent(chain)
        by_class = a_pod("by-class", node=NODE)
        by_class["spec"]["runtimeClassName"] = "nvidia"
        await chain.client.create(PODS, by_class)

        assert "gpuloom: runtime handler nvidia could show this pod every GPU" in await refusal(
            chain.client, "by-class"
        )


@asynccontextmanager
async def a_chain(
    folder: Path, library: Path, line: RuntimeLine, settings: Mapping[str, str]
) -> AsyncIterator[Chain]:
    """Everything runs. `settings` are the agent's, beside its usual ones."""
    standin = Standin(folder / "state", some_gpus(GPUS))
    async with a_cluster(folder, {NODE: line}) as cluster:
        (node,) = cluster.nodes
        layout = await lay_out_services(cluster.plane, [_two_cards()], CLOCK)
        await cluster.plane.apply(MANIFESTS / "admission.yaml")
        await _offer(cluster.client)
        _describe_cards(node)
        loaded = {"LD_LIBRARY_PATH": str(library.parent), STATE_VARIABLE: str(standin.path)}
        agent = _agent(layout, node, {**loaded, **settings})
        await cluster.plane.supervisor.start([[agent], [layout.discovery(), layout.extender()]])
        await cluster.plane.start_scheduler(layout.scheduler_config(OWN_SCHEDULER))
        metrics_url = f"http://{HOST}:{layout.ports.fleet_http}/metrics"
        async with cluster.plane.client(layout.accounts["scheduler-extender"]) as extender:
            yield Chain(cluster.plane, cluster.client, extender, node, standin, metrics_url)
        standin.release_hangs()


async def restart_agent(chain: Chain) -> None:
    """Kill it, and return when its successor is the runtime's plugin."""
    chain.plane.supervisor.kill(AGENT)
    async with deadline(CLOCK, 30.0):
        await chain.plane.supervisor.until(lambda supervisor: supervisor.restarts(AGENT) > 0)
    await metrics_where(chain, lambda told: told.get('gpuloom_node_agent_delivery_way{way="nri"}') == 1)


async def metrics_where(chain: Chain, condition: Callable[[Metrics], bool]) -> Metrics:
    """What the agent tells of itself once that is so. Raise TimeoutError if it never is."""
    async with deadline(CLOCK, 30.0):
        while True:
            told = await _metrics(chain.metrics_url)
            if told and condition(told):
                return told
            await CLOCK.sleep(0.1)


async def _metrics(url: str) -> Metrics:
    """Empty while the agent does not answer."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            text = await response.text()
    except aiohttp.ClientError:
        return {}
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {_written(sample.name, sample.labels): sample.value for sample in samples}


def _written(name: str, labels: dict[str, str]) -> str:
    written = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{written}}}" if written else name


@asynccontextmanager
async def a_running_pod(chain: Chain, name: str, milli: int) -> AsyncIterator[JsonObject]:
    await chain.client.create(PODS, a_pod(name, milli=milli))
    yield await wait_started(chain.client, name, CLOCK)
    await chain.client.delete(PODS, name, NAMESPACE)


async def bind(chain: Chain, name: str, milli: int, allocation: Allocation) -> None:
    """By the extender's account but past its judgement. The pod has a second container that asks for nothing.

    A pod UID or node UID that the allocation does not say is filled in.
    """
    manifest = a_pod(name, milli=milli)
    manifest["spec"]["schedulerName"] = "nobody"
    (main,) = manifest["spec"]["containers"]
    manifest["spec"]["containers"] = [main, {**main, "name": "side", "resources": {}}]
    pod = await chain.client.create(PODS, manifest)
    node_uid = uid_of(await chain.client.get(NODES, NODE))
    told = replace(
        allocation, pod_uid=allocation.pod_uid or uid_of(pod), node_uid=allocation.node_uid or node_uid
    )
    annotations = {ANNOTATION_ALLOCATION: encode_allocation(told)}
    binding = PodBinding(NAMESPACE, name, NODE, uid_of(pod), resource_version_of(pod), annotations)
    await chain.extender.bind(binding)


def an_allocation(gpu_uuid: str, milli: int = MILLI_PER_GPU) -> Allocation:
    memory_mib = MEMORY_MIB * milli // MILLI_PER_GPU
    return Allocation("", "", "main", False, (AllocatedDevice(DeviceRef(gpu_uuid), milli, memory_mib),))


async def seen_by(chain: Chain, pod: JsonObject) -> list[str]:
    listed = await chain.node.run_in_container(pod, "ls", "/dev")
    return sorted(name for name in listed.split() if name.startswith("gpu-"))


def given_to(pod: JsonObject) -> list[str]:
    given = {allocated.device.gpu_uuid for allocated in allocation_of(pod).devices}
    return [f"gpu-{gpu}" for gpu in range(GPUS) if uuid(gpu) in given]


def allocation_of(pod: JsonObject) -> Allocation:
    return decode_allocation(metadata_of(pod)["annotations"][ANNOTATION_ALLOCATION])


def _agent(layout: MeshLayout, node: RealNode, more: Mapping[str, str]) -> ProcessSpec:
    """The agent alone in its process, as on any node."""
    fleet = layout.fleet()
    address = orjson.loads(layout.agents_file.read_bytes())[NODE]
    shared = {name: value for name, value in fleet.environment.items() if "FLEET" not in name}
    settings = {
        "GPULOOM_NODE_NAME": NODE,
        "GPULOOM_AGENT_DRIVER": "nvml",
        "GPULOOM_AGENT_MODE": NodeMode.GPULOOM.value,
        "GPULOOM_KUBELET_SOCKET": str(node.paths.pod_resources_socket),
        "GPULOOM_AGENT_EXPORTER": "off",
        "GPULOOM_GRPC_PORT": address.rpartition(":")[2],
        "GPULOOM_AGENT_NRI_SOCKET": str(node.paths.nri_socket),
        "GPULOOM_AGENT_CDI_DIRS": f"{node.paths.static_cdi},{node.paths.cdi}",
    }
    return replace(
        fleet,
        name=AGENT,
        argv=(*fleet.argv[:-1], "services.node_agent"),
        log_path=layout.logs / "agent.log",
        environment={**shared, **settings, **more},
    )


def _describe_cards(node: RealNode) -> None:
    devices = []
    for gpu in range(GPUS):
        path = node.paths.home / f"gpu-{gpu}"
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        nodes = [{"path": f"/dev/gpu-{gpu}", "hostPath": str(path)}]
        devices.append({"name": uuid(gpu), "containerEdits": {"deviceNodes": nodes}})
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (node.paths.cdi / "gpus.json").write_text(json.dumps(spec), encoding="utf-8")


async def _add_runtime_class(chain: Chain) -> None:
    runtime = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]'
    with (chain.node.paths.home / "containerd.toml").open("a", encoding="utf-8") as configuration:
        configuration.write(f'{runtime}\nruntime_type = "io.containerd.runc.v2"\n')
    await chain.node.kill(Daemon.CONTAINERD)
    await chain.client.create(RUNTIME_CLASSES, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})


def _two_cards() -> MachineSpec:
    """For the names and addresses of the services alone: the GPUs are the stand-in library's."""
    kind = load_catalog().instance("gcp", "g2-standard-24")
    return MachineSpec(
        node=NODE,
        mode=NodeMode.GPULOOM,
        gpu_model=kind.gpu.name,
        gpu_count=GPUS,
        topology=kind.shape.name,
        cpu_cores=kind.vcpus,
        memory_gib=kind.memory_gib,
    )


async def _offer(client: KubeClient) -> None:
    offered = {
        RESOURCE_GPU_MILLI: str(MILLI_PER_GPU * GPUS),
        RESOURCE_GPU_MEMORY_MIB: str(MEMORY_MIB * GPUS),
    }
    await client.patch(NODES, NODE, None, {"metadata": {"labels": {LABEL_MODE: NodeMode.GPULOOM.value}}})
    await client.patch_status(NODES, NODE, None, {"status": {"capacity": offered}})
