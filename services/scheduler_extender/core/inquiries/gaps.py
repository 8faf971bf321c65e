"""What a node that refuses lacks, found by asking the same fit for less. Pure; never looks at devices."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind
from gpuloom.names import ANNOTATION_TOPOLOGY_REQUIRED, RESOURCE_GPU_MEMORY_MIB
from gpuloom.placement.devices import HostCapacity, NodeView
from gpuloom.placement.fit import Refusal, fit
from services.scheduler_extender.core.inquiries.wording import asked, cpus, devices_noun, memory


class GapKind(IntEnum):
    """In the order in which people give such things up."""

    TOPOLOGY = 1
    HOST = 2
    GPU_MEMORY = 3
    AMOUNT = 4


@dataclass(frozen=True, slots=True)
class Gap:
    """`missing` is the part of what is asked for that is not there, 0 to 1.

    `relaxed` is what this node would serve instead, None if that is nothing, and `change` says how to ask
    for it.
    """

    node_name: str
    kind: GapKind
    missing: float
    has: str
    change: str = ""
    relaxed: PodRequest | None = None


def gap_of(request: PodRequest, view: NodeView) -> Gap | None:
    """None for a node that would serve no smaller request of this kind either, or that lacks nothing."""
    if _serves(request, view):
        return _host_gap(request, view)
    gpu = request.gpu
    if gpu.topology_required:
        relaxed = _with(request, replace(gpu, topology_required=False))
        if _serves(relaxed, view):
            has = f"{gpu.count} GPUs free, but not with the topology asked for"
            return Gap(
                view.name, GapKind.TOPOLOGY, 0.0, has, f"without {ANNOTATION_TOPOLOGY_REQUIRED}", relaxed
            )
    if gpu.kind is RequestKind.SHARE:
        return _share_gap(request, view)
    if gpu.count == 1:
        return _card_gap(request, view)
    return _count_gap(request, view)


def _count_gap(request: PodRequest, view: NodeView) -> Gap | None:
    gpu = request.gpu

    def fewer(count: int) -> PodRequest:
        return _with(request, replace(gpu, count=count))

    count = _largest(lambda number: _serves(fewer(number), view), gpu.count)
    if not count:
        return None
    has = f"{count} of {gpu.count} {devices_noun(gpu)} free"
    if gpu.topology_required:
        has += " with the topology asked for"
    return _amount_gap(view, request, fewer(count), count / gpu.count, has)


def _card_gap(request: PodRequest, view: NodeView) -> Gap | None:
    """A card that is not free as a whole may still have a share to give."""
    gpu = request.gpu
    if gpu.kind is not RequestKind.WHOLE or gpu.authority is not Authority.GPULOOM:
        return None
    plain = replace(gpu, kind=RequestKind.SHARE, memory_mib=None, topology_required=False)
    milli = _largest_share(request, plain, view)
    if not milli:
        return None
    has = f"{milli} of {MILLI_PER_GPU} milli of one GPU free"
    return _amount_gap(view, request, _with(request, replace(plain, milli=milli)), milli / MILLI_PER_GPU, has)


def _share_gap(request: PodRequest, view: NodeView) -> Gap | None:
    gpu = request.gpu
    if gpu.memory_mib is not None:
        most_mib = _largest(
            lambda amount: _serves(_with(request, replace(gpu, memory_mib=amount)), view), gpu.memory_mib
        )
        if most_mib:
            has = f"{most_mib} of {gpu.memory_mib} MiB free beside {gpu.milli} milli of one GPU"
            change = f"{RESOURCE_GPU_MEMORY_MIB}: {most_mib} instead of {gpu.memory_mib}"
            relaxed = _with(request, replace(gpu, memory_mib=most_mib))
            missing = 1 - most_mib / gpu.memory_mib
            return Gap(view.name, GapKind.GPU_MEMORY, missing, has, change, relaxed)
    milli = _largest_share(request, gpu, view)
    if not milli:
        return None
    has = f"{milli} of {gpu.milli} milli of one GPU free"
    return _amount_gap(view, request, _with(request, replace(gpu, milli=milli)), milli / gpu.milli, has)


def _host_gap(request: PodRequest, view: NodeView) -> Gap | None:
    host = view.host
    if host is None or (
        request.cpu_milli <= host.cpu_free_milli and request.memory_bytes <= host.memory_free_bytes
    ):
        return None
    lacking, changes, missing = [], [], 0.0
    if request.cpu_milli > host.cpu_free_milli:
        lacking.append(f"{cpus(host.cpu_free_milli)} of {cpus(request.cpu_milli)} CPUs")
        changes.append(f"{cpus(host.cpu_free_milli)} CPUs instead of {cpus(request.cpu_milli)}")
        missing = 1 - host.cpu_free_milli / request.cpu_milli
    if request.memory_bytes > host.memory_free_bytes:
        free, wanted = memory(host.memory_free_bytes), memory(request.memory_bytes)
        lacking.append(f"{free} of {wanted} memory")
        changes.append(f"{free} memory instead of {wanted}")
        missing = max(missing, 1 - host.memory_free_bytes / request.memory_bytes)
    has = f"the GPUs free, but {' and '.join(lacking)}"
    return Gap(view.name, GapKind.HOST, missing, has, " and ".join(changes), _within(request, host))


def _within(request: PodRequest, host: HostCapacity) -> PodRequest | None:
    cpu_milli = min(request.cpu_milli, host.cpu_free_milli)
    memory_bytes = min(request.memory_bytes, host.memory_free_bytes)
    if (request.cpu_milli and not cpu_milli) or (request.memory_bytes and not memory_bytes):
        return None
    return replace(request, cpu_milli=cpu_milli, memory_bytes=memory_bytes)


def _amount_gap(view: NodeView, request: PodRequest, relaxed: PodRequest, part: float, has: str) -> Gap:
    change = f"{asked(relaxed.gpu)} instead of {asked(request.gpu)}"
    return Gap(view.name, GapKind.AMOUNT, 1 - part, has, change, relaxed)


def _largest_share(request: PodRequest, gpu: GpuRequest, view: NodeView) -> int:
    return _largest(lambda milli: _serves(_with(request, replace(gpu, milli=milli)), view), gpu.milli)


def _largest(serves: Callable[[int], bool], below: int) -> int:
    """The largest number from 1 up to, not including, `below` that is served; 0 if none is.

    Whoever is served a number is served any smaller one: part of a linked set is linked.
    """
    low, high = 0, below - 1
    while low < high:
        middle = (low + high + 1) // 2
        if serves(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _serves(request: PodRequest, view: NodeView) -> bool:
    return not isinstance(fit(request, view), Refusal)


def _with(request: PodRequest, gpu: GpuRequest) -> PodRequest:
    return replace(request, gpu=gpu)
