"""From a pending pod to the device nodes in its container: every part real but the GPUs.

kube-scheduler and our extender choose, the admission policy is in force, and the agent's own process delivers
by the runtime of a real node. The GPUs are a simulated machine's; their device nodes are copies of /dev/null.
"""

import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import orjson
import pytest

from gpuloom.catalog import load_catalog
from gpuloom.cli.scheduler_config import OWN_SCHEDULER
from gpuloom.codec.allocation import decode_allocation
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import NODES, PODS
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_ALLOCATION, LABEL_MODE, RESOURCE_GPU_MEMORY_MIB, RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.child_process import ProcessSpec
from gpuloom.sim.hardware import MachineSpec
from gpuloom.sim.machine import Machine
from gpuloom.sim.ports import HOST
from tests.cluster.control_plane import ControlPlane
from tests.cluster.mesh import MeshLayout
from tests.cluster.nodes.configuration import RuntimeLine
from tests.cluster.nodes.pods import NAMESPACE, a_pod, wait_started, wait_unschedulable
from tests.cluster.nodes.real_node import RealNode
from tests.cluster.nodes.services import lay_out_services, machines_of
from tests.cluster.shared import DEPLOY
from tests.cluster.test_real_nodes import a_cluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

CLOCK = SystemClock()
NODE = "real-a"
AGENT = "agent"
CONNECTED = "gpuloom_node_agent_delivery_connected"


@dataclass(frozen=True)
class Chain:
    plane: ControlPlane
    client: KubeClient
    node: RealNode
    machine: Machine
    metrics_url: str
    """Of the agent."""


@pytest.fixture(params=list(RuntimeLine))
async def chain(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Chain]:
    async with a_cluster(tmp_path, {NODE: request.param}) as cluster:
        (node,) = cluster.nodes
        layout = await lay_out_services(cluster.plane, [_two_cards()], CLOCK)
        (machine,) = machines_of(layout)
        await cluster.plane.apply(DEPLOY / "admission")
        await _offer(cluster.client, machine)
        _describe_cards(node, machine)
        services = [[_agent(layout, node)], [layout.discovery(), layout.extender()]]
        await cluster.plane.supervisor.start(services)
        await cluster.plane.start_scheduler(layout.scheduler_config(OWN_SCHEDULER))
        metrics_url = f"http://{HOST}:{layout.ports.fleet_http}/metrics"
        yield Chain(cluster.plane, cluster.client, node, machine, metrics_url)


async def test_pods_see_exactly_the_cards_they_were_given_also_after_the_agent_restarted(
    chain: Chain,
) -> None:
    async with a_running_pod(chain, "pair", milli=2000) as pair:
        pair_sees, pair_has = await seen_by(chain, pair), given_to(chain, pair)
    async with a_running_pod(chain, "plain", milli=0) as plain:
        plain_sees = await seen_by(chain, plain)
    async with a_running_pod(chain, "half", milli=500) as half:
        half_sees, half_has = await seen_by(chain, half), given_to(chain, half)
        await restart_agent(chain)
        async with a_running_pod(chain, "whole", milli=1000) as whole:
            whole_sees, whole_has = await seen_by(chain, whole), given_to(chain, whole)
            await chain.client.create(PODS, a_pod("more", milli=600))
            refusal = await wait_unschedulable(chain.client, "more", CLOCK)

    assert pair_sees == pair_has == ["gpu-0", "gpu-1"]
    assert plain_sees == []
    assert half_sees == half_has
    assert whole_sees == whole_has
    assert sorted(half_sees + whole_sees) == ["gpu-0", "gpu-1"]
    assert "0/1 nodes are available" in refusal


async def restart_agent(chain: Chain) -> None:
    """Kill it, and return when its successor is the runtime's plugin."""
    chain.plane.supervisor.kill(AGENT)
    async with deadline(CLOCK, 30.0):
        await chain.plane.supervisor.until(lambda supervisor: supervisor.restarts(AGENT) > 0)
        while not await _delivers(chain.metrics_url):
            await CLOCK.sleep(0.1)


async def _delivers(metrics_url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as session, session.get(metrics_url) as response:
            return f"{CONNECTED} 1.0" in await response.text()
    except aiohttp.ClientError:
        return False


@asynccontextmanager
async def a_running_pod(chain: Chain, name: str, milli: int) -> AsyncIterator[JsonObject]:
    await chain.client.create(PODS, a_pod(name, milli=milli))
    yield await wait_started(chain.client, name, CLOCK)
    await chain.client.delete(PODS, name, NAMESPACE)


async def seen_by(chain: Chain, pod: JsonObject) -> list[str]:
    listed = await chain.node.run_in_container(pod, "ls", "/dev")
    return sorted(name for name in listed.split() if name.startswith("gpu-"))


def given_to(chain: Chain, pod: JsonObject) -> list[str]:
    allocation = decode_allocation(metadata_of(pod)["annotations"][ANNOTATION_ALLOCATION])
    given = {allocated.device.gpu_uuid for allocated in allocation.devices}
    return [f"gpu-{gpu.index}" for gpu in chain.machine.hardware.gpus if gpu.uuid in given]


def _agent(layout: MeshLayout, node: RealNode) -> ProcessSpec:
    """The agent alone in its process, as on any node; it delivers although its GPUs are simulated."""
    fleet = layout.fleet()
    address = orjson.loads(layout.agents_file.read_bytes())[NODE]
    shared = {name: value for name, value in fleet.environment.items() if "FLEET" not in name}
    settings = {
        "GPULOOM_NODE_NAME": NODE,
        "GPULOOM_AGENT_DRIVER": "simulated",
        "GPULOOM_AGENT_MACHINE_DIR": str(layout.machines / NODE),
        "GPULOOM_GRPC_PORT": address.rpartition(":")[2],
        "GPULOOM_AGENT_DELIVERY": "nri",
        "GPULOOM_AGENT_NRI_SOCKET": str(node.paths.nri_socket),
        "GPULOOM_AGENT_CDI_DIRS": f"{node.paths.static_cdi},{node.paths.cdi}",
    }
    return replace(
        fleet,
        name=AGENT,
        argv=(*fleet.argv[:-1], "services.node_agent"),
        log_path=layout.logs / "agent.log",
        environment={**shared, **settings},
    )


def _describe_cards(node: RealNode, machine: Machine) -> None:
    devices = []
    for gpu in machine.hardware.gpus:
        path = node.paths.home / f"gpu-{gpu.index}"
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        nodes = [{"path": f"/dev/gpu-{gpu.index}", "hostPath": str(path)}]
        devices.append({"name": gpu.uuid, "containerEdits": {"deviceNodes": nodes}})
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (node.paths.cdi / "gpus.json").write_text(json.dumps(spec), encoding="utf-8")


def _two_cards() -> MachineSpec:
    kind = load_catalog().instance("gcp", "g2-standard-24")
    return MachineSpec(
        node=NODE,
        mode=NodeMode.GPULOOM,
        gpu_model=kind.gpu.name,
        gpu_count=2,
        topology=kind.shape.name,
        cpu_cores=kind.vcpus,
        memory_gib=kind.memory_gib,
    )


async def _offer(client: KubeClient, machine: Machine) -> None:
    offered = {
        RESOURCE_GPU_MILLI: str(MILLI_PER_GPU * len(machine.hardware.gpus)),
        RESOURCE_GPU_MEMORY_MIB: str(machine.hardware.memory_mib),
    }
    await client.patch(NODES, NODE, None, {"metadata": {"labels": {LABEL_MODE: NodeMode.GPULOOM.value}}})
    await client.patch_status(NODES, NODE, None, {"status": {"capacity": offered}})
