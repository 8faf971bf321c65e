"""The one fit predicate: can this node serve this request now, and if not, why.

Every part of the product that asks "would it fit?" asks here, or asks `fleet`, which says the same of all
nodes at once; so they cannot disagree. Never chooses between devices. CPU and memory are `host_refusal`'s,
not `fit`'s: behind kube-scheduler they were checked already, on fresher data.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpuloom.catalog import slice_milli
from gpuloom.model.gpu import MILLI_PER_GPU, Gpu, SharingMode
from gpuloom.model.mig import MigInstance
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind
from gpuloom.placement.devices import GpuView, NodeView
from gpuloom.placement.reasons import RUNTIME_CLASS, Reason, Refusal, refusal

__all__ = [
    "MODE_OF_AUTHORITY",
    "Fit",
    "Refusal",
    "Unfit",
    "fit",
    "fit_or_reason",
    "host_refusal",
    "instance_milli",
    "is_model",
    "serves",
    "share_memory_mib",
]

MODE_OF_AUTHORITY = {Authority.NVIDIA: NodeMode.NVIDIA, Authority.GPULOOM: NodeMode.GPULOOM}


@dataclass(frozen=True, slots=True)
class Fit:
    """The node can serve the request. Bit i of `mask`: GPU i could serve it, or take part in that."""

    mask: int

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.mask.bit_length()) if self.mask >> i & 1)


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why the node can't serve the request; `detail` is what the node itself says of it."""

    reason: Reason
    detail: str = ""


def fit(request: PodRequest, node: NodeView) -> Fit | Refusal:
    found = fit_or_reason(request, node)
    return found if isinstance(found, Fit) else refusal(found.reason, request, found.detail)


def fit_or_reason(request: PodRequest, node: NodeView) -> Fit | Unfit:
    """`fit` for those who make no text of a refusal."""
    found = _node_refusal(request, node)
    if found is not None:
        return found
    return _FIT_OF_KIND[request.gpu.kind](request, node)


def host_refusal(request: PodRequest, node: NodeView) -> Refusal | None:
    """CPU and memory, for callers that kube-scheduler does not stand in front of. Unknown amounts pass."""
    host = node.host
    if host is None:
        return None
    if request.cpu_milli > host.cpu_free_milli:
        ever = request.cpu_milli <= host.cpu_total_milli
        return refusal(Reason.CPU_TAKEN if ever else Reason.CPU_TOO_SMALL, request)
    if request.memory_bytes > host.memory_free_bytes:
        ever = request.memory_bytes <= host.memory_total_bytes
        return refusal(Reason.MEMORY_TAKEN if ever else Reason.MEMORY_TOO_SMALL, request)
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


def is_model(request: GpuRequest, model: str, architecture: str) -> bool:
    return (not request.models or model in request.models) and (
        not request.architectures or architecture in request.architectures
    )


def _node_refusal(request: PodRequest, node: NodeView) -> Unfit | None:
    if node.closed_reason:
        return Unfit(Reason.CLOSED, node.closed_reason)
    authority = request.gpu.authority
    if node.mode is NodeMode.UNKNOWN:
        return Unfit(Reason.MODE_UNKNOWN)
    if node.mode is not MODE_OF_AUTHORITY[authority]:
        return Unfit(Reason.WRONG_MODE)
    if authority is Authority.GPULOOM:
        return _delivery_refusal(request, node)
    return None


def _delivery_refusal(request: PodRequest, node: NodeView) -> Unfit | None:
    """Whether the node could deliver the chosen devices to this pod, and no others."""
    if node.delivery is Delivery.NRI:
        opens = request.runtime_class == RUNTIME_CLASS
        return Unfit(Reason.OPEN_RUNTIME_CLASS) if opens else None
    if node.delivery is not Delivery.ENV:
        return Unfit(Reason.NO_DELIVERY)
    if request.runtime_class != RUNTIME_CLASS:
        return Unfit(Reason.NEEDS_RUNTIME_CLASS)
    return None if request.sees_only_its_allocation else Unfit(Reason.NEEDS_ENVIRONMENT)


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

    def outcome(self, request: PodRequest) -> Fit | Unfit:
        needed = request.gpu.count
        if self.free >= needed:
            return Fit(self.mask)
        if self.existing < needed:
            return Unfit(Reason.TOO_FEW)
        if self.usable < needed:
            return Unfit(Reason.UNUSABLE, self.unusable_reason)
        return Unfit(Reason.TAKEN)


def _fit_whole(request: PodRequest, node: NodeView) -> Fit | Unfit:
    gpu, count = request.gpu, _Count()
    for i, view in enumerate(node.gpus):
        if _is_card(gpu, view.gpu, gpu.memory_mib or 0):
            count.add(i, view, 1, int(view.untouched))
    if gpu.topology_required and count.usable >= gpu.count:
        found = _topology_refusal(request, node, count)
        if found is not None:
            return found
    return count.outcome(request)


def _fit_share(request: PodRequest, node: NodeView) -> Fit | Unfit:
    gpu, count = request.gpu, _Count()
    for i, view in enumerate(node.gpus):
        memory_mib = share_memory_mib(gpu, view.gpu)
        if _is_card(gpu, view.gpu, memory_mib):
            free = view.free_milli >= gpu.milli and view.free_memory_mib >= memory_mib
            count.add(i, view, 1, int(free))
    return count.outcome(request)


def _fit_mig(request: PodRequest, node: NodeView) -> Fit | Unfit:
    gpu, count = request.gpu, _Count()
    for i, view in enumerate(node.gpus):
        if view.gpu.mig_enabled and is_model(gpu, view.gpu.model, view.gpu.architecture):
            existing = sum(serves(gpu, view, instance) for instance in view.gpu.mig_instances)
            count.add(i, view, existing, sum(serves(gpu, view, instance) for instance in view.free_mig))
    return count.outcome(request)


def _topology_refusal(request: PodRequest, node: NodeView, count: _Count) -> Unfit | None:
    """Evictions help only if the usable cards, all of them free, would have such a set."""
    gpu = request.gpu
    if count.free >= gpu.count and _linked(gpu, node, count.mask):
        return None
    possible = _linked(gpu, node, count.usable_mask)
    if possible and count.free < gpu.count:
        return None
    return Unfit(Reason.NOT_LINKED if possible else Reason.NEVER_LINKED)


def _linked(gpu: GpuRequest, node: NodeView, mask: int) -> bool:
    return gpu.count == 0 or bool(node.links.best(mask, gpu.count, gpu.topology, required=True))


def _is_card(request: GpuRequest, gpu: Gpu, memory_mib: int) -> bool:
    """A GPU in MIG mode is never given out whole or as a share."""
    return (
        not gpu.mig_enabled
        and gpu.memory_mib >= memory_mib
        and is_model(request, gpu.model, gpu.architecture)
        and (not request.enforced or gpu.sharing is SharingMode.MPS)
        and (request.kind is not RequestKind.SHARE or request.milli >= gpu.least_milli)
    )


_FIT_OF_KIND: dict[RequestKind, Callable[[PodRequest, NodeView], Fit | Unfit]] = {
    RequestKind.WHOLE: _fit_whole,
    RequestKind.SHARE: _fit_share,
    RequestKind.MIG: _fit_mig,
}
