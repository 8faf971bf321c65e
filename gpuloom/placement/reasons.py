"""Why a node cannot serve a request: one code and one text per reason.

A text is shown to people, and kube-scheduler groups nodes by equal text: it holds numbers of the request,
never names of nodes or devices. Decides nothing: `fit` says which reason it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind, TopologyPreference
from gpuloom.names import ANNOTATION_VISIBLE_DEVICES, RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU

RUNTIME_CLASS = "nvidia"
MOST_NAMED = 8
"""Models that a text names: it is sent for every node that is refused."""
KEPT = (
    "free GPUs are kept for a nominated pod of at least equal priority: wait until it is placed, "
    "or use a higher priority"
)
"""A node's `closed_reason` for pods that come after that one; no other ends when pods leave."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """`resolvable`: evicting pods from this node could change it."""

    reason: str
    resolvable: bool


class Reason(IntEnum):
    FITS = 0
    CLOSED = 1
    MODE_UNKNOWN = 2
    WRONG_MODE = 3
    NO_DELIVERY = 4
    NEEDS_RUNTIME_CLASS = 5
    TOO_FEW = 6
    UNUSABLE = 7
    TAKEN = 8
    NOT_LINKED = 9
    NEVER_LINKED = 10
    CPU_TAKEN = 11
    CPU_TOO_SMALL = 12
    MEMORY_TAKEN = 13
    MEMORY_TOO_SMALL = 14
    OPEN_RUNTIME_CLASS = 15
    NEEDS_ENVIRONMENT = 16


# The text of these ends with what the node itself says.
DETAILED = frozenset({Reason.CLOSED, Reason.UNUSABLE})

_RESOLVABLE = frozenset({Reason.TAKEN, Reason.NOT_LINKED, Reason.CPU_TAKEN, Reason.MEMORY_TAKEN})
_WRONG_MODE = {
    Authority.NVIDIA: f"node gives out GPUs as {RESOURCE_GPU_MILLI}, the pod asks for nvidia.com/*",
    Authority.GPULOOM: f"node gives out GPUs as {RESOURCE_NVIDIA_GPU}, the pod asks for gpuloom.dev/*",
}
_NOT_LINKED = {
    TopologyPreference.NONE: "no {count} free GPUs",
    TopologyPreference.NVLINK: "no {count} free GPUs that all have NVLink to each other",
    TopologyPreference.NUMA: "no {count} free GPUs on one NUMA node",
    TopologyPreference.PCIE: "no {count} free GPUs under one PCIe switch",
}


def refusal(reason: Reason, request: PodRequest, detail: str = "") -> Refusal:
    """The refusal of this request; `detail` is what the node itself says, for the reasons in `DETAILED`."""
    if detail == KEPT:
        return Refusal(KEPT, resolvable=True)
    return Refusal(_TEXTS[reason](request.gpu) + detail, reason in _RESOLVABLE)


def _too_few(gpu: GpuRequest) -> str:
    if gpu.kind is RequestKind.MIG:
        return f"node has fewer than {gpu.count} {_slices_text(gpu)}"
    memory = _memory_text(gpu, " with ")
    if gpu.kind is RequestKind.SHARE:
        limits = " with an MPS daemon (gpuloom.dev/enforcement: mps)" if gpu.enforced else ""
        how = f"{memory} outside MIG mode{limits} for shares of {gpu.milli} milli"
        return f"node has no GPU{_model_text(gpu)}{how}"
    return f"node has fewer than {gpu.count} GPUs{_model_text(gpu)}{memory} outside MIG mode"


def _taken(gpu: GpuRequest) -> str:
    if gpu.kind is RequestKind.MIG:
        return f"not enough free {_slices_text(gpu)}: {gpu.count} asked"
    if gpu.kind is RequestKind.SHARE:
        return f"no GPU{_model_text(gpu)} with {gpu.milli} milli{_memory_text(gpu, ' and ')} free"
    return f"not enough free GPUs{_model_text(gpu)}{_memory_text(gpu, ' with ')}: {gpu.count} asked"


def _not_linked(gpu: GpuRequest) -> str:
    return _NOT_LINKED[gpu.topology].format(count=gpu.count)


def _slices_text(gpu: GpuRequest) -> str:
    return f"MIG slices {gpu.mig_profile}{_model_text(gpu)}"


def _model_text(gpu: GpuRequest) -> str:
    more = " or others" if len(gpu.models) > MOST_NAMED else ""
    models = f" of model {' or '.join(gpu.models[:MOST_NAMED])}{more}" if gpu.models else ""
    architectures = f" of architecture {' or '.join(gpu.architectures)}" if gpu.architectures else ""
    return models + architectures


def _memory_text(gpu: GpuRequest, joint: str) -> str:
    return f"{joint}{gpu.memory_mib} MiB" if gpu.memory_mib else ""


def _always(text: str) -> Callable[[GpuRequest], str]:
    return lambda _: text


_TEXTS: dict[Reason, Callable[[GpuRequest], str]] = {
    Reason.CLOSED: _always("node closed: "),
    Reason.MODE_UNKNOWN: _always("it is not known who gives out the node's GPUs"),
    Reason.WRONG_MODE: lambda gpu: _WRONG_MODE[gpu.authority],
    Reason.NO_DELIVERY: _always("node cannot hand chosen GPUs to a container: it needs NRI"),
    Reason.NEEDS_RUNTIME_CLASS: _always(
        f"node hands out GPUs by environment: the pod needs runtimeClassName {RUNTIME_CLASS}"
    ),
    Reason.OPEN_RUNTIME_CLASS: _always(
        f"under runtimeClassName {RUNTIME_CLASS} an image could take every GPU of the node: leave it out"
    ),
    Reason.NEEDS_ENVIRONMENT: _always(
        "node hands out GPUs by environment: the pod must set NVIDIA_VISIBLE_DEVICES in every container, "
        f"from the annotation {ANNOTATION_VISIBLE_DEVICES} where it asks for GPUs, to void elsewhere"
    ),
    Reason.TOO_FEW: _too_few,
    Reason.UNUSABLE: _always("too few usable GPUs: "),
    Reason.TAKEN: _taken,
    Reason.NOT_LINKED: _not_linked,
    Reason.NEVER_LINKED: _not_linked,
    Reason.CPU_TAKEN: _always("not enough free CPU"),
    Reason.CPU_TOO_SMALL: _always("not enough free CPU"),
    Reason.MEMORY_TAKEN: _always("not enough free memory"),
    Reason.MEMORY_TOO_SMALL: _always("not enough free memory"),
}
