"""One agent: a machine, the loop that looks at it, and the gRPC server that tells of it."""

from dataclasses import dataclass, field
from pathlib import Path

from gpuloom.errors import InvalidRequestError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer
from gpuloom.rpc.serving import Served, ServingConfig, serve
from gpuloom.runtime.app import App
from gpuloom.sim.machine import Machine
from gpuloom.v1 import node_agent_pb2
from gpuloom.v1.node_agent_pb2_grpc import add_NodeAgentServiceServicer_to_server
from services.node_agent.adapters.kubelet import PodResourcesKubelet
from services.node_agent.adapters.kubernetes import InformedPods
from services.node_agent.adapters.pod_index import PodIndex
from services.node_agent.adapters.simulated import (
    SimulatedCgroups,
    SimulatedDriver,
    SimulatedProcessTable,
    SimulatedRuntime,
)
from services.node_agent.attribution.census import Census
from services.node_agent.attribution.listing import ProcessLister
from services.node_agent.claims import GpuClaims
from services.node_agent.config import Timing
from services.node_agent.delivery.config import DeliveryConfig
from services.node_agent.delivery.known_pods import Cluster
from services.node_agent.delivery.wiring import start_delivery
from services.node_agent.exporter.config import ExporterConfig
from services.node_agent.exporter.wiring import NodeExport, start_exporter
from services.node_agent.metrics import AgentMetrics
from services.node_agent.node import Node
from services.node_agent.nvml.device_ids import device_of
from services.node_agent.ports import GpuDriver, Kubelet, PodGroups, ProcessTable, Runtime
from services.node_agent.sampler import Owners, Sampler
from services.node_agent.server import ALLOWED_CALLERS, NodeAgentServer
from services.node_agent.spot.config import SpotConfig
from services.node_agent.spot.metrics import SpotMetrics
from services.node_agent.spot.wiring import start_spot
from services.node_agent.state import first_state

SERVICE = node_agent_pb2.DESCRIPTOR.services_by_name["NodeAgentService"]

_DELIVERY = {NodeMode.NVIDIA: Delivery.DEVICE_PLUGIN, NodeMode.GPULOOM: Delivery.NRI}
_LATE_LOOKS = 10
DRAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What agents of one process share."""

    app: App
    rpc: RpcEnvironment
    metrics: AgentMetrics
    client: KubeClient
    nodes: Informer
    pods: PodIndex
    export: NodeExport
    spot_metrics: SpotMetrics


@dataclass(frozen=True, slots=True)
class Sources:
    """How agents of one process see Kubernetes; `pods` and `nodes` hold at least theirs."""

    client: KubeClient
    nodes: Informer
    pods: Informer


async def surround(
    app: App, rpc: RpcEnvironment, sources: Sources, exporter: ExporterConfig, *, simulated: bool
) -> Surroundings:
    """`simulated`: the agents are of simulated machines, of which many may run here."""
    app.add_loop("nodes", sources.nodes.run)
    app.add_loop("pods", sources.pods.run)
    return Surroundings(
        app=app,
        rpc=rpc,
        metrics=AgentMetrics(app.registry),
        client=sources.client,
        nodes=sources.nodes,
        pods=PodIndex(sources.pods),
        export=await start_exporter(app, exporter, sources.pods, simulated=simulated),
        spot_metrics=SpotMetrics(app.registry),
    )


@dataclass(frozen=True, slots=True)
class AgentOptions:
    grpc: ServingConfig
    timing: Timing
    delivery: DeliveryConfig = field(default_factory=DeliveryConfig)
    spot: SpotConfig = field(default_factory=SpotConfig)


@dataclass(frozen=True, slots=True)
class Parts:
    """The node that an agent is on, and through what it sees it.

    `runtime` is that of a simulated machine; on a real one, whoever delivers knows who holds devices.
    """

    node_name: str
    mode: NodeMode
    delivery: Delivery
    driver: GpuDriver
    kubelet: Kubelet
    processes: ProcessTable
    groups: PodGroups
    runtime: Runtime | None = None


def open_machine(directory: Path, node_name: str) -> Machine:
    machine = Machine.open(directory)
    if machine.spec.node != node_name:
        raise InvalidRequestError(f"the machine in {directory} is {machine.spec.node}, not {node_name}")
    return machine


async def add_agent(around: Surroundings, machine: Machine, options: AgentOptions) -> RpcServer:
    """Start an agent for this simulated machine; it runs until the process ends."""
    app, spec = around.app, machine.spec
    kubelet = await app.enter(PodResourcesKubelet(machine.socket_path, _gpu_claims(machine)))
    driver, runtime = SimulatedDriver(machine, app.clock), SimulatedRuntime(machine)
    processes, groups = SimulatedProcessTable(machine), SimulatedCgroups(machine, app.clock)
    parts = Parts(spec.node, spec.mode, _DELIVERY[spec.mode], driver, kubelet, processes, groups, runtime)
    return await add_agent_of(around, parts, options)


async def add_agent_of(around: Surroundings, parts: Parts, options: AgentOptions) -> RpcServer:
    """Start an agent that sees its node through these parts; it runs until the process ends."""
    app, name = around.app, parts.node_name
    timing = options.timing
    max_age_s = _LATE_LOOKS * max(timing.sample_interval_s, 1.0)
    node = Node(first_state(name, parts.mode, parts.delivery), app.clock, max_age_s)
    around.metrics.watch(node)
    pods = InformedPods(name, around.nodes, around.pods)
    cluster = Cluster(around.pods.informer, around.client)
    runtime = await start_delivery(app, options.delivery, node, pods, parts.runtime, cluster)
    start_spot(app, options.spot, node, around.nodes, around.spot_metrics)
    driver = around.export.show(node, parts.driver)
    census = Census(parts.processes, pods)
    owners = Owners(parts.kubelet, runtime, pods, census, parts.groups)
    sampler = Sampler(node, driver, owners, app.clock, around.metrics)
    app.add_loop(f"sampler {name}", lambda: sampler.run(timing.sample_interval_s, timing.usage_interval_s))
    app.add_liveness(f"sampler {name}", node.stale_reason)
    app.add_readiness(f"first sample of {name}", lambda: _not_looked(node))
    lister = await app.enter(ProcessLister(driver, census))
    return await _serve(around, node, lister, options)


async def _serve(around: Surroundings, node: Node, lister: ProcessLister, options: AgentOptions) -> RpcServer:
    servicer = NodeAgentServer(node, lister, options.timing.heartbeat_interval_s, around.metrics)
    served = Served(servicer, add_NodeAgentServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)
    name = f"grpc {node.state.node_name}"
    return await serve(around.app, options.grpc, around.rpc, served, name=name, drain_s=DRAIN_S)


def _not_looked(node: Node) -> str | None:
    return None if node.looked_at else "the node has not been sampled yet"


def _gpu_claims(machine: Machine) -> GpuClaims:
    """The minor number of a simulated GPU is its index."""
    gpus = machine.hardware.gpus
    instances = {gpu.uuid: gpu.mig_instances for gpu in gpus}
    minors = {gpu.index: gpu.uuid for gpu in gpus}
    return GpuClaims(lambda device_id: device_of(device_id, instances), minors.get)
