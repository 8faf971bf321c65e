"""Two real nodes, one of each mode, with all of GPULoom; and eyes inside their containers.

On `OWN` our agent delivers by the runtime's plugin interface, on `PLUGGED` NVIDIA's own device plugin does.
There are two replicas of the extender, one of which leads.
The cards are the stand-in library's; those of `OWN` are device nodes, copies of /dev/null, named by number.
"""

import json
import os
import random
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
from grpc import aio

from gpuloom.catalog import load_catalog
from gpuloom.cli.scheduling.scheduler_config import OWN_SCHEDULER
from gpuloom.codec.allocation import decode_allocation
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.kube.parse import quantity_value
from gpuloom.kube.resources import NODES
from gpuloom.kubelet.podresources_pb2 import ListPodResourcesRequest
from gpuloom.kubelet.podresources_pb2_grpc import PodResourcesListerStub
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_ALLOCATION, RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.machines.hardware import MachineSpec
from gpuloom.sim.processes.child_process import ProcessSpec
from gpuloom.sim.processes.ports import HOST, free_ports
from gpuloom.sim.processes.probes import answers_ok
from gpuloom.sim.processes.supervisor import ProcessState, Supervisor
from tests.cluster.binaries import require_binaries
from tests.cluster.mesh import MeshLayout
from tests.cluster.nodes.configuration import RuntimeLine
from tests.cluster.nodes.device_plugin import OFFER_TIMEOUT_S, start_device_plugin, wait_offered
from tests.cluster.nodes.pods import VARIABLE_DEVICES
from tests.cluster.nodes.programs import require_device_plugin
from tests.cluster.nodes.real_node import Daemon, RealNode
from tests.cluster.nodes.services import lay_out_services
from tests.cluster.real_replicas import LEADER, STANDBY, Electorate, open_electorate
from tests.cluster.shared import MANIFESTS
from tests.cluster.test_real_nodes import a_cluster
from tests.nvml.library import STATE_VARIABLE, Standin
from tests.nvml.machines import some_gpus, uuid

OWN = "real-own"
PLUGGED = "real-plugged"
CARDS = 2
MODES = {OWN: NodeMode.GPULOOM, PLUGGED: NodeMode.NVIDIA}

# A UUID is one card's in the whole world.
_FIRST_CARD = {OWN: 0, PLUGGED: 100}
_LIST_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class RealPair:
    client: KubeClient
    supervisor: Supervisor
    """Of our services."""
    nodes: Mapping[str, RealNode]
    extenders: Electorate

    def parts(self) -> list[str]:
        """All that can be restarted."""
        daemons = [f"{daemon} of {name}" for name in self.nodes for daemon in Daemon]
        return [LEADER, STANDBY, *map(agent_name, self.nodes), *daemons]

    async def restart(self, part: str) -> bool:
        """Kill it, and it is started again at once. Nothing is done, and False told, if it is not up.

        Raise TimeoutError if no extender leads for too long.
        """
        daemon, _, node = part.partition(" of ")
        if node:
            await self.nodes[node].kill(Daemon(daemon))
            return True
        if part in (LEADER, STANDBY):
            return await self.extenders.kill(part)
        (status,) = (one for one in self.supervisor.statuses() if one.name == part)
        if status.state is not ProcessState.RUNNING:
            return False
        self.supervisor.kill(part)
        return True

    async def seen_inside(self, pod: JsonObject) -> frozenset[str]:
        """The cards that the running container sees, by UUID. Raise UnavailableError if nobody can look."""
        node = self.nodes[pod["spec"]["nodeName"]]
        if node.name == OWN:
            listed = await node.run_in_container(pod, "ls", "/dev")
            return frozenset(uuid(int(name[4:])) for name in listed.split() if name.startswith("gpu-"))
        said = await node.run_in_container(pod, "env")
        environment = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
        return frozenset(filter(None, environment.get(VARIABLE_DEVICES, "").split(",")))

    async def given_to(self, pod: JsonObject) -> frozenset[str] | None:
        """The cards that it may see: by its allocation, or, of NVIDIA's plugin, by the kubelet's list.

        None if the kubelet does not say.
        """
        if pod["spec"]["nodeName"] == OWN:
            allocation = decode_allocation(metadata_of(pod)["annotations"][ANNOTATION_ALLOCATION])
            assert allocation.pod_uid == uid_of(pod)
            return frozenset(given.device.gpu_uuid for given in allocation.devices)
        socket = self.nodes[PLUGGED].paths.pod_resources_socket
        try:
            async with aio.insecure_channel(f"unix://{socket}") as channel:
                stub = PodResourcesListerStub(channel)
                answer = await stub.List(ListPodResourcesRequest(), timeout=_LIST_TIMEOUT_S)
        except aio.AioRpcError:
            return None
        listed = frozenset(
            device_id
            for shown in answer.pod_resources
            if shown.name == metadata_of(pod)["name"]
            for container in shown.containers
            for given in container.devices
            for device_id in given.device_ids
        )
        return listed or None


@asynccontextmanager
async def a_real_pair(folder: Path, library: Path, clock: Clock) -> AsyncIterator[RealPair]:
    """Both nodes offer their cards, and kube-scheduler finds the extender that leads."""
    program = require_device_plugin(require_binaries())
    lines = {OWN: RuntimeLine.CONTAINERD_2, PLUGGED: RuntimeLine.CONTAINERD_1_7}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(a_cluster(folder, lines))
        nodes = {node.name: node for node in cluster.nodes}
        layout = await lay_out_services(cluster.plane, [_machine(name) for name in lines], clock)
        await cluster.plane.apply(MANIFESTS / "admission.yaml")
        drivers = {name: _driver(folder / f"{name}.state", library, _FIRST_CARD[name]) for name in lines}
        _describe_cards(nodes[OWN])
        await _let_containers_wait_for_the_agent(nodes[OWN])
        await start_device_plugin(nodes[PLUGGED], program, drivers[PLUGGED])
        # Not the control plane's supervisor, which gives up what dies before it was ready.
        supervisor = await stack.enter_async_context(Supervisor(clock))
        agents = [_agent(layout, nodes[name], drivers[name]) for name in lines]
        await supervisor.start([agents, [layout.discovery()]])
        extenders = await stack.enter_async_context(
            open_electorate(cluster.client, layout, supervisor, clock)
        )
        reached = extenders.seen_by_the_scheduler(layout)
        await cluster.plane.start_scheduler(reached.scheduler_config(OWN_SCHEDULER))
        await _wait_offered_by_us(cluster.client, clock)
        await wait_offered(cluster.client, PLUGGED, RESOURCE_NVIDIA_GPU, CARDS, clock)
        yield RealPair(cluster.client, supervisor, nodes, extenders)


async def _wait_offered_by_us(client: KubeClient, clock: Clock) -> None:
    """Until discovery has told what our agent has. Raise TimeoutError."""
    async with deadline(clock, OFFER_TIMEOUT_S):
        while True:
            offered = (await client.get(NODES, OWN))["status"]["allocatable"].get(RESOURCE_GPU_MILLI, "0")
            if quantity_value(offered) == CARDS * MILLI_PER_GPU:
                return
            await clock.sleep(0.1)


def agent_name(node: str) -> str:
    return f"agent-{node}"


def _driver(state: Path, library: Path, first_card: int) -> dict[str, str]:
    """The environment in which a program finds the node's cards."""
    named = {f"gpu.{gpu}.uuid": uuid(first_card + gpu) for gpu in range(CARDS)}
    standin = Standin(state, some_gpus(CARDS) | named)
    return {"LD_LIBRARY_PATH": str(library.parent), STATE_VARIABLE: str(standin.path)}


def _agent(layout: MeshLayout, node: RealNode, driver: Mapping[str, str]) -> ProcessSpec:
    """The agent alone in its process, as on any node."""
    fleet = layout.fleet()
    address = orjson.loads(layout.agents_file.read_bytes())[node.name]
    (http_port,) = free_ports(1, random.Random())
    shared = {name: value for name, value in fleet.environment.items() if "FLEET" not in name}
    settings = {
        "GPULOOM_NODE_NAME": node.name,
        "GPULOOM_AGENT_DRIVER": "nvml",
        "GPULOOM_AGENT_MODE": MODES[node.name].value,
        "GPULOOM_KUBELET_SOCKET": str(node.paths.pod_resources_socket),
        "GPULOOM_AGENT_EXPORTER": "off",
        "GPULOOM_GRPC_PORT": address.rpartition(":")[2],
        "GPULOOM_HTTP_PORT": str(http_port),
        "GPULOOM_AGENT_NRI_SOCKET": str(node.paths.nri_socket),
        "GPULOOM_AGENT_CDI_DIRS": f"{node.paths.static_cdi},{node.paths.cdi}",
    }
    return replace(
        fleet,
        name=agent_name(node.name),
        argv=(*fleet.argv[:-1], "services.node_agent"),
        log_path=layout.logs / f"{agent_name(node.name)}.log",
        environment={**shared, **settings, **driver},
        ready=answers_ok(f"http://{HOST}:{http_port}/readyz", layout.clock),
    )


def _describe_cards(node: RealNode) -> None:
    devices = []
    for gpu in range(CARDS):
        path = node.paths.home / f"gpu-{gpu}"
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        nodes = [{"path": f"/dev/gpu-{gpu}", "hostPath": str(path)}]
        devices.append({"name": uuid(gpu), "containerEdits": {"deviceNodes": nodes}})
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (node.paths.cdi / "gpus.json").write_text(json.dumps(spec), encoding="utf-8")


async def _let_containers_wait_for_the_agent(node: RealNode) -> None:
    """As the agent's manual advises where the runtime can: none is made while its plugin is away."""
    with (node.paths.home / "containerd.toml").open("a", encoding="utf-8") as configuration:
        configuration.write('\n[plugins."io.containerd.nri.v1.nri".default_validator]\nenable = true\n')
    await node.kill(Daemon.CONTAINERD)


def _machine(node: str) -> MachineSpec:
    """For the names and addresses of the services alone: the cards are the stand-in library's."""
    kind = load_catalog().instance("gcp", "g2-standard-24")
    return MachineSpec(
        node=node,
        mode=MODES[node],
        gpu_model=kind.gpu.name,
        gpu_count=kind.gpu_count,
        topology=kind.shape.name,
        cpu_cores=kind.vcpus,
        memory_gib=kind.memory_gib,
    )
