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
from gpuloom.sim.machines.machine import Machine
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
from services.node_agent.config import Timing
from services.node_agent.core.claims import GpuClaims
from services.node_agent.core.state import first_state
from services.node_agent.delivery.config import DeliveryConfig
from services.node_agent.delivery.known_pods import Cluster
from services.node_agent.delivery.wiring import start_delivery
from services.node_agent.exporter.config import ExporterConfig
from services.node_agent.exporter.wiring import NodeExport, start_exporter
from services.node_agent.layout.adapters.journal_file import JournalFile
from services.node_agent.layout.adapters.simulated import NoDeviceFiles, SimulatedLayouts, SimulatedSharing
from services.node_agent.layout.calls import LayoutCalls
from services.node_agent.layout.metrics import LayoutMetrics
from services.node_agent.layout.ports import Reach, nowhere
from services.node_agent.layout.users import NodeUsers
from services.node_agent.layout.wiring import LayoutSources, start_layouts
from services.node_agent.metrics import AgentMetrics
from services.node_agent.node import Node
from services.node_agent.nvml.core.device_ids import device_of
from services.node_agent.ports import GpuDriver, Kubelet, PodGroups, ProcessTable, Runtime
from services.node_agent.sampler import Owners, Sampler
from services.node_agent.server import ALLOWED_CALLERS, NodeAgentServer
from services.node_agent.spot.config import SpotConfig
from services.node_agent.spot.metrics import SpotMetrics
from services.node_agent.spot.wiring import start_spot
from services.node_agent.usage.config import UsageConfig
from services.node_agent.usage.metrics import UsageMetrics
from services.node_agent.usage.stream import UsageStreams
from services.node_agent.usage.wiring import FOLDER as USAGE_FOLDER
from services.node_agent.usage.wiring import UsageOptions, start_usage

SERVICE = node_agent_pb2.DESCRIPTOR.services_by_name["NodeAgentService"]

_DELIVERY = {NodeMode.NVIDIA: Delivery.DEVICE_PLUGIN, NodeMode.GPULOOM: Delivery.NRI}
_LATE_LOOKS = 10
DRAIN_S = 1.0
JOURNAL = "layouts.json"
"""In the agent's folder: what the layouts of its GPUs are to be, and changes of them."""


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
    usage_metrics: UsageMetrics
    layout_metrics: LayoutMetrics


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
        usage_metrics=UsageMetrics(app.registry),
        layout_metrics=LayoutMetrics(app.registry),
    )


@dataclass(frozen=True, slots=True)
class AgentOptions:
    grpc: ServingConfig
    timing: Timing
    delivery: DeliveryConfig = field(default_factory=DeliveryConfig)
    spot: SpotConfig = field(default_factory=SpotConfig)
    usage: UsageConfig = field(default_factory=UsageConfig)
    reach: Reach = nowhere
    """Failpoints of changes of layouts."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The node that an agent is on, and through what it sees it.

    `state_dir` is a folder that outlives the agent, None if there is none.
    `runtime` is that of a simulated machine; on a real one, whoever delivers knows who holds devices.
    """

    node_name: str
    mode: NodeMode
    delivery: Delivery
    driver: GpuDriver
    kubelet: Kubelet
    processes: ProcessTable
    groups: PodGroups
    layouts: LayoutSources
    runtime: Runtime | None = None
    state_dir: Path | None = None


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
    parts = Parts(
        node_name=spec.node,
        mode=spec.mode,
        delivery=_DELIVERY[spec.mode],
        driver=driver,
        kubelet=kubelet,
        processes=processes,
        groups=groups,
        layouts=simulated_layouts(machine, options.reach),
        runtime=runtime,
        state_dir=machine.directory,
    )
    return await add_agent_of(around, parts, options)


def simulated_layouts(machine: Machine, reach: Reach = nowhere) -> LayoutSources:
    """The journal lies on the machine's own disk."""
    return LayoutSources(
        driver=SimulatedLayouts(machine),
        sharing=SimulatedSharing(machine),
        store=JournalFile(machine.directory / JOURNAL),
        devices=NoDeviceFiles(),
        boot_id=lambda: str(machine.boots),
        reach=reach,
    )


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
    users = NodeUsers(node, parts.driver, runtime, around.pods, census)
    layouts = await start_layouts(app, node, parts.layouts, users, around.layout_metrics)
    owners = Owners(parts.kubelet, runtime, pods, census, parts.groups)
    sampler = Sampler(node, driver, owners, app.clock, around.metrics)
    app.add_loop(f"sampler {name}", lambda: sampler.run(timing.sample_interval_s, timing.usage_interval_s))
    app.add_liveness(f"sampler {name}", node.stale_reason)
    app.add_readiness(f"first sample of {name}", lambda: _not_looked(node))
    folder, boot_id = _usage_folder(options, parts), parts.layouts.boot_id()
    usage = UsageOptions(options.usage, folder, timing.sample_interval_s, boot_id)
    recorder = await start_usage(app, usage, node, pods.given_of, around.usage_metrics)
    lister = await app.enter(ProcessLister(driver, census))
    calls = LayoutCalls(node, layouts)
    heartbeat_s = timing.heartbeat_interval_s
    streams = UsageStreams(recorder, heartbeat_s, app.clock, around.usage_metrics)
    servicer = NodeAgentServer(node, lister, streams, heartbeat_s, around.metrics, calls)
    return await _serve(around, servicer, node, options)


async def _serve(
    around: Surroundings, servicer: NodeAgentServer, node: Node, options: AgentOptions
) -> RpcServer:
    served = Served(servicer, add_NodeAgentServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)
    name = f"grpc {node.state.node_name}"
    return await serve(around.app, options.grpc, around.rpc, served, name=name, drain_s=DRAIN_S)


def _usage_folder(options: AgentOptions, parts: Parts) -> Path | None:
    if options.usage.folder is not None:
        # Agents of several nodes may be told of the same folder.
        return options.usage.folder / parts.node_name
    return None if parts.state_dir is None else parts.state_dir / USAGE_FOLDER


def _not_looked(node: Node) -> str | None:
    return None if node.looked_at else "the node has not been sampled yet"


def _gpu_claims(machine: Machine) -> GpuClaims:
    """The minor number of a simulated GPU is its index."""
    gpus = machine.hardware.gpus
    instances = {gpu.uuid: gpu.mig_instances for gpu in gpus}
    minors = {gpu.index: gpu.uuid for gpu in gpus}
    return GpuClaims(lambda device_id: device_of(device_id, instances), minors.get)
