"""A node's wiring and processes: proto <-> model."""

from gpuloom.codec.device import (
    bounded,
    device_from_proto,
    device_to_proto,
    known_number,
    pod_from_proto,
    pod_to_proto,
    required,
    shortened,
    topology_from_proto,
    topology_to_proto,
)
from gpuloom.errors import InvalidRequestError
from gpuloom.model.process import GpuProcess
from gpuloom.model.topology import MAX_GPUS_PER_NODE, Topology
from gpuloom.model.wiring import GpuWiring, NvLink, NvLinkRemote
from gpuloom.v1 import node_agent_pb2 as pb

MAX_LINKS_PER_GPU = 64
MAX_PROCESSES_PER_NODE = 20_000

_REMOTE = {pb.NV_LINK_REMOTE_GPU: NvLinkRemote.GPU, pb.NV_LINK_REMOTE_SWITCH: NvLinkRemote.SWITCH}
_REMOTE_TO_PROTO = {model: proto for proto, model in _REMOTE.items()}


def topology_answer_to_proto(
    topology: Topology | None, gpus: tuple[GpuWiring, ...]
) -> pb.GetTopologyResponse:
    return pb.GetTopologyResponse(
        topology=None if topology is None else topology_to_proto(topology),
        gpus=[_wiring_to_proto(gpu) for gpu in gpus],
    )


def topology_answer_from_proto(
    message: pb.GetTopologyResponse,
) -> tuple[Topology | None, tuple[GpuWiring, ...]]:
    if len(message.gpus) > MAX_GPUS_PER_NODE:
        raise InvalidRequestError(f"a node has at most {MAX_GPUS_PER_NODE} GPUs")
    topology = topology_from_proto(message.topology) if message.HasField("topology") else None
    return topology, tuple(_wiring_from_proto(gpu) for gpu in message.gpus)


def processes_answer_to_proto(
    processes: tuple[GpuProcess, ...], unanswered: dict[str, str]
) -> pb.ListProcessesResponse:
    return pb.ListProcessesResponse(
        processes=[_process_to_proto(process) for process in processes],
        unanswered=[pb.UnansweredGpu(gpu_uuid=uuid, reason=why) for uuid, why in sorted(unanswered.items())],
    )


def processes_answer_from_proto(
    message: pb.ListProcessesResponse,
) -> tuple[tuple[GpuProcess, ...], dict[str, str]]:
    if len(message.processes) > MAX_PROCESSES_PER_NODE or len(message.unanswered) > MAX_GPUS_PER_NODE:
        raise InvalidRequestError("an agent lists more processes than a node can run")
    unanswered = {required(gpu.gpu_uuid, "GPU UUID"): shortened(gpu.reason) for gpu in message.unanswered}
    return tuple(_process_from_proto(process) for process in message.processes), unanswered


def _wiring_to_proto(wiring: GpuWiring) -> pb.GpuWiring:
    links = [
        pb.NvLink(
            number=link.number,
            remote=_REMOTE_TO_PROTO.get(link.remote, pb.NV_LINK_REMOTE_UNSPECIFIED),
            remote_pci_bus_id=link.remote_pci_bus_id,
        )
        for link in wiring.links
    ]
    return pb.GpuWiring(
        gpu_uuid=wiring.gpu_uuid,
        index=wiring.index,
        pci_bus_id=wiring.pci_bus_id,
        numa_node=wiring.numa_node,
        links=links,
    )


def _wiring_from_proto(message: pb.GpuWiring) -> GpuWiring:
    if len(message.links) > MAX_LINKS_PER_GPU:
        raise InvalidRequestError(f"a GPU has at most {MAX_LINKS_PER_GPU} links")
    return GpuWiring(
        gpu_uuid=required(message.gpu_uuid, "GPU UUID"),
        index=message.index,
        pci_bus_id=bounded(message.pci_bus_id, "PCI bus id"),
        numa_node=message.numa_node if message.HasField("numa_node") else None,
        links=tuple(_link_from_proto(link) for link in message.links),
    )


def _link_from_proto(message: pb.NvLink) -> NvLink:
    remote = _REMOTE.get(message.remote, NvLinkRemote.UNKNOWN)
    return NvLink(message.number, remote, bounded(message.remote_pci_bus_id, "PCI bus id"))


def _process_to_proto(process: GpuProcess) -> pb.GpuProcess:
    return pb.GpuProcess(
        pid=process.pid,
        name=process.name,
        device=device_to_proto(process.device),
        memory_mib=process.memory_mib,
        sm_ratio=process.sm_ratio,
        pod=None if process.pod is None else pod_to_proto(process.pod),
        container=process.container,
    )


def _process_from_proto(message: pb.GpuProcess) -> GpuProcess:
    return GpuProcess(
        pid=message.pid,
        name=shortened(message.name),
        device=device_from_proto(message.device),
        memory_mib=message.memory_mib if message.HasField("memory_mib") else None,
        sm_ratio=known_number(message.sm_ratio) if message.HasField("sm_ratio") else None,
        pod=pod_from_proto(message.pod) if message.HasField("pod") else None,
        container=bounded(message.container, "container name"),
    )
