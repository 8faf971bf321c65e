"""A node that is not there yet, as it will be: instance type, labels, taints, daemons. Pure.

What it gives is what placement works on for nodes that exist: a view with the GPUs that are expected, and the
node for kube-scheduler's own filters. So "would it fit on a machine that we could rent?" is asked of the same
functions. Amounts that a cloud keeps for itself are estimates on the safe side; a caller that knows better
says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuloom.catalog import load_catalog
from gpuloom.catalog.entries import InstanceType
from gpuloom.model.gpu import MILLI_PER_GPU, Gpu, GpuHealth
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.snapshot import Taint
from gpuloom.names import LABEL_MODE, RESOURCE_GPU_MEMORY_MIB, RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU
from gpuloom.placement.constraints.filters import selects_node, tolerates_node
from gpuloom.placement.constraints.objects import (
    CPU,
    MEMORY,
    PODS,
    NodeUse,
    SchedulableNode,
    SchedulablePod,
)
from gpuloom.placement.devices import GpuView, HostCapacity, NodeView

MAX_PODS = 110
"""A kubelet's own default."""

_GIB = 1024**3
_MIB = 1024**2
_VM_MEMORY_PART = 40
"""A guest sees less memory than is sold: firmware and hypervisor keep up to three parts in so many."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """What pods can't use of a machine: kept by the cloud, the system, the kubelet."""

    cpu_milli: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """`labels` are those that the machine will have beyond what follows from its type and name.

    `reserved` None: estimated.
    """

    instance: InstanceType
    mode: NodeMode = NodeMode.GPULOOM
    delivery: Delivery = Delivery.NRI
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    reserved: Reserved | None = None
    max_pods: int = MAX_PODS


@dataclass(frozen=True, slots=True)
class ExpectedNode:
    """For `fit` and `fleet` the view, for kube-scheduler's filters the node and its daemons' use."""

    view: NodeView
    node: SchedulableNode
    use: NodeUse


def expected_node(template: NodeTemplate, name: str, daemons: Sequence[SchedulablePod] = ()) -> ExpectedNode:
    """The machine once it has joined under this name, with those of the daemons that will run on it."""
    node = _node(template, name)
    use = daemon_use(node, daemons)
    cpu_milli, memory_bytes = node.allocatable[CPU], node.allocatable[MEMORY]
    view = NodeView(
        name=name,
        uid=f"expected-{name}",
        mode=template.mode,
        delivery=template.delivery if template.mode is NodeMode.GPULOOM else Delivery.DEVICE_PLUGIN,
        gpus=tuple(_gpu_view(gpu) for gpu in _gpus(template.instance, name)),
        topology=template.instance.shape.topology,
        host=HostCapacity(
            cpu_milli,
            max(0, cpu_milli - use.requested.get(CPU, 0)),
            memory_bytes,
            max(0, memory_bytes - use.requested.get(MEMORY, 0)),
        ),
    )
    return ExpectedNode(view, node, use)


def daemon_use(node: SchedulableNode, daemons: Sequence[SchedulablePod]) -> NodeUse:
    """What these pods of DaemonSets use of a node: each runs there if it selects and tolerates it."""
    requested: dict[str, int] = {}
    running = [pod for pod in daemons if selects_node(pod, node) and tolerates_node(pod, node)]
    for pod in running:
        for resource, amount in pod.requests.items():
            requested[resource] = requested.get(resource, 0) + amount
    return NodeUse(requested, len(running))


def estimated_reserve(instance: InstanceType, max_pods: int = MAX_PODS) -> Reserved:
    """As managed clusters reserve it: of CPU less with every core, of memory a part and some for each pod."""
    cores = instance.vcpus
    cpu_milli = 60 + 10 * (min(cores, 2) - 1) + 5 * max(0, min(cores, 4) - 2)
    cpu_milli += (5 * max(0, cores - 4) + 1) // 2
    guest = 3 * instance.memory_gib * _GIB // _VM_MEMORY_PART
    return Reserved(cpu_milli, guest + (11 * max_pods + 255 + 100) * _MIB)


def _node(template: NodeTemplate, name: str) -> SchedulableNode:
    instance = template.instance
    reserved = template.reserved or estimated_reserve(instance, template.max_pods)
    allocatable = {
        CPU: max(0, 1000 * instance.vcpus - reserved.cpu_milli),
        MEMORY: max(0, instance.memory_gib * _GIB - reserved.memory_bytes),
        PODS: template.max_pods,
    }
    if template.mode is NodeMode.GPULOOM:
        allocatable[RESOURCE_GPU_MILLI] = MILLI_PER_GPU * instance.gpu_count
        allocatable[RESOURCE_GPU_MEMORY_MIB] = instance.gpu.memory_mib * instance.gpu_count
    elif template.mode is NodeMode.NVIDIA:
        allocatable[RESOURCE_NVIDIA_GPU] = instance.gpu_count
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": instance.name,
        LABEL_MODE: template.mode.value,
        **template.labels,
    }
    return SchedulableNode(name, labels, template.taints, unschedulable=False, allocatable=allocatable)


def _gpus(instance: InstanceType, name: str) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            uuid=f"GPU-expected-{name}-{index}"[:104],
            index=index,
            model=instance.gpu.name,
            architecture=instance.gpu.architecture,
            memory_mib=instance.gpu.memory_mib,
            health=GpuHealth.HEALTHY,
            numa_node=instance.shape.numa[index],
        )
        for index in range(instance.gpu_count)
    )


def _gpu_view(gpu: Gpu) -> GpuView:
    model = load_catalog().find_gpu(gpu.model)
    slices = 0 if model is None else model.mig_slices
    return GpuView(gpu, MILLI_PER_GPU, gpu.memory_mib, mig_slices=slices)
