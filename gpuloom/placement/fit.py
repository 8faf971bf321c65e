"""The one fit predicate: can this node serve this request now, and if not, why.

Every part of the product that asks "would it fit?" asks here, so that they cannot disagree.
A refusal's text is shown to people, and kube-scheduler groups nodes by equal text: it holds numbers of the
request, never names of nodes or devices. Never chooses between devices. CPU and memory are `host_refusal`'s,
not `fit`'s: behind kube-scheduler they were checked already, on fresher data.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpuloom.catalog import slice_milli
from gpuloom.model.gpu import MILLI_PER_GPU, Gpu
from gpuloom.model.mig import MigInstance
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind, TopologyPreference
from gpuloom.names import RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU
from gpuloom.placement.devices import GpuView, NodeView

RUNTIME_CLASS = "nvidia"

_MODE_OF_AUTHORITY = {Authority.NVIDIA: NodeMode.NVIDIA, Authority.GPULOOM: NodeMode.GPULOOM}
_WRONG_MODE = {
    Authority.NVIDIA: f"node gives out GPUs as {RESOURCE_GPU_MILLI}, the pod asks for nvidia.com/*",
    Authority.GPULOOM: f"node gives out GPUs as {RESOURCE_NVIDIA_GPU}, the pod asks for gpuloom.dev/*",
}
_NOT_LINKED = {
    TopologyPreference.NVLINK: "no {count} free GPUs that all have NVLink to each other",
    TopologyPreference.NUMA: "no {count} free GPUs on one NUMA node",
    TopologyPreference.PCIE: "no {count} free GPUs under one PCIe switch",
}


@dataclass(frozen=True, slots=True)
class Fit:
    """The node can serve the request. Bit i of `mask`: GPU i could serve it, or take part in that."""

    mask: int

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.mask.bit_length()) if self.mask >> i & 1)


@dataclass(frozen=True, slots=True)
class Refusal:
    """`resolvable`: evicting pods from this node could change it."""

    reason: str
    resolvable: bool


def fit(request: PodRequest, node: NodeView) -> Fit | Refusal:
    refusal = _node_refusal(request, node)
    if refusal is not None:
        return refusal
    return _FIT_OF_KIND[request.gpu.kind](request.gpu, node)


def host_refusal(request: PodRequest, node: NodeView) -> Refusal | None:
    """CPU and memory, for callers that kube-scheduler does not stand in front of. Unknown amounts pass."""
    host = node.host
    if host is None:
        return None
    for needed, free, total, what in (
        (request.cpu_milli, host.cpu_free_milli, host.cpu_total_milli, "CPU"),
        (request.memory_bytes, host.memory_free_bytes, host.memory_total_bytes, "memory"),
    ):
        if needed > free:
            return Refusal(f"not enough free {what}", resolvable=needed <= total)
    return None


def share_memory_mib(request: GpuRequest, gpu: Gpu) -> int:
    """The memory a share of this GPU gets: what the pod says, else in proportion.

    Rounded down, or ten tenths of a card would need more memory than it has.
    """
    if request.memory_mib is not None:
        return request.memory_mib
    return max(1, gpu.memory_mib * request.milli // MILLI_PER_GPU)


def instance_milli(request: GpuRequest, view: GpuView, instance: MigInstance) -> int:
    """What the instance stands for; where the model's slices are not known, what the pod says."""
    return slice_milli(instance.slices, view.mig_slices) if view.mig_slices else request.milli


def serves(request: GpuRequest, view: GpuView, instance: MigInstance) -> bool:
    """Whether the instance is what the pod asks for: the same profile name can be another share elsewhere."""
    if instance.placement.profile != request.mig_profile:
        return False
    return request.authority is Authority.NVIDIA or instance_milli(request, view, instance) == request.milli


def _node_refusal(request: PodRequest, node: NodeView) -> Refusal | None:
    if node.closed_reason:
        return Refusal(f"node closed: {node.closed_reason}", resolvable=False)
    authority = request.gpu.authority
    if node.mode is NodeMode.UNKNOWN:
        return Refusal("it is not known who gives out the node's GPUs", resolvable=False)
    if node.mode is not _MODE_OF_AUTHORITY[authority]:
        return Refusal(_WRONG_MODE[authority], resolvable=False)
    if authority is Authority.GPULOOM and node.delivery is not Delivery.NRI:
        return _delivery_refusal(request, node)
    return None


def _delivery_refusal(request: PodRequest, node: NodeView) -> Refusal | None:
    if node.delivery is not Delivery.ENV:
        return Refusal("node cannot hand chosen GPUs to a container: it needs NRI", resolvable=False)
    if request.runtime_class != RUNTIME_CLASS:
        return Refusal(
            f"node hands out GPUs by environment: the pod needs runtimeClassName {RUNTIME_CLASS}",
            resolvable=False,
        )
    return None


class _Count:
    """How many devices there are of the kind asked for, how many are usable, how many are free."""

    __slots__ = ("existing", "free", "mask", "unusable_reason", "usable", "usable_mask")

    def __init__(self) -> None:
        self.existing = self.usable = self.free = 0
        self.usable_mask = self.mask = 0
        self.unusable_reason = ""

    def add(self, position: int, view: GpuView, existing: int, free: int) -> None:
        if not existing:
            return
        self.existing += existing
        reason = view.unusable_reason
        if reason:
            self.unusable_reason = self.unusable_reason or reason
            return
        self.usable += existing
        self.usable_mask |= 1 << position
        if free:
            self.free += free
            self.mask |= 1 << position

    def refusal(self, needed: int, too_few: str, taken: str) -> Refusal:
        if self.existing < needed:
            return Refusal(too_few, resolvable=False)
        if self.usable < needed:
            return Refusal(f"too few usable GPUs: {self.unusable_reason}", resolvable=False)
        return Refusal(taken, resolvable=True)


def _fit_whole(request: GpuRequest, node: NodeView) -> Fit | Refusal:
    count = _Count()
    for i, view in enumerate(node.gpus):
        if _is_card(request, view.gpu, request.memory_mib or 0):
            count.add(i, view, 1, int(view.untouched))
    if request.topology_required and count.usable >= request.count:
        refusal = _topology_refusal(request, node, count)
        if refusal is not None:
            return refusal
    if count.free >= request.count:
        return Fit(count.mask)
    kind = _model_text(request) + _memory_text(request, " with ")
    return count.refusal(
        request.count,
        too_few=f"node has fewer than {request.count} GPUs{kind} outside MIG mode",
        taken=f"not enough free GPUs{kind}: {request.count} asked",
    )


def _fit_share(request: GpuRequest, node: NodeView) -> Fit | Refusal:
    count = _Count()
    for i, view in enumerate(node.gpus):
        memory_mib = share_memory_mib(request, view.gpu)
        if _is_card(request, view.gpu, memory_mib):
            free = view.free_milli >= request.milli and view.free_memory_mib >= memory_mib
            count.add(i, view, 1, int(free))
    if count.free:
        return Fit(count.mask)
    model = _model_text(request)
    return count.refusal(
        1,
        too_few=f"node has no GPU{model}{_memory_text(request, ' with ')} outside MIG mode",
        taken=f"no GPU{model} with {request.milli} milli{_memory_text(request, ' and ')} free",
    )


def _fit_mig(request: GpuRequest, node: NodeView) -> Fit | Refusal:
    count = _Count()
    for i, view in enumerate(node.gpus):
        if view.gpu.mig_enabled and _is_model(request, view.gpu):
            existing = sum(serves(request, view, instance) for instance in view.gpu.mig_instances)
            count.add(i, view, existing, sum(serves(request, view, instance) for instance in view.free_mig))
    if count.free >= request.count:
        return Fit(count.mask)
    what = f"MIG slices {request.mig_profile}{_model_text(request)}"
    return count.refusal(
        request.count,
        too_few=f"node has fewer than {request.count} {what}",
        taken=f"not enough free {what}: {request.count} asked",
    )


def _topology_refusal(request: GpuRequest, node: NodeView, count: _Count) -> Refusal | None:
    """Evictions help only if the usable cards, all of them free, would have such a set."""
    if count.free >= request.count and _linked(request, node, count.mask):
        return None
    possible = _linked(request, node, count.usable_mask)
    if possible and count.free < request.count:
        return None
    return Refusal(_NOT_LINKED[request.topology].format(count=request.count), resolvable=possible)


def _linked(request: GpuRequest, node: NodeView, mask: int) -> bool:
    return bool(node.links.best(mask, request.count, request.topology, required=True))


def _is_card(request: GpuRequest, gpu: Gpu, memory_mib: int) -> bool:
    """A GPU in MIG mode is never given out whole or as a share."""
    return not gpu.mig_enabled and gpu.memory_mib >= memory_mib and _is_model(request, gpu)


def _is_model(request: GpuRequest, gpu: Gpu) -> bool:
    return (not request.models or gpu.model in request.models) and (
        not request.architectures or gpu.architecture in request.architectures
    )


def _model_text(request: GpuRequest) -> str:
    models = f" of model {' or '.join(request.models)}" if request.models else ""
    architectures = f" of architecture {' or '.join(request.architectures)}" if request.architectures else ""
    return models + architectures


def _memory_text(request: GpuRequest, joint: str) -> str:
    return f"{joint}{request.memory_mib} MiB" if request.memory_mib else ""


_FIT_OF_KIND: dict[RequestKind, Callable[[GpuRequest, NodeView], Fit | Refusal]] = {
    RequestKind.WHOLE: _fit_whole,
    RequestKind.SHARE: _fit_share,
    RequestKind.MIG: _fit_mig,
}
