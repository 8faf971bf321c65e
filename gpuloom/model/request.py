"""What a pod asks for."""

from dataclasses import dataclass
from enum import StrEnum

from gpuloom.model.gpu import MILLI_PER_GPU


class RequestKind(StrEnum):
    """WHOLE: fully free cards. SHARE: a part of one card. MIG: instances of one profile."""

    WHOLE = "whole"
    SHARE = "share"
    MIG = "mig"


class Authority(StrEnum):
    """Who must give the devices: the resource name the pod uses decides it."""

    NVIDIA = "nvidia"
    GPULOOM = "gpuloom"


class TopologyPreference(StrEnum):
    NONE = "none"
    NVLINK = "nvlink"
    NUMA = "numa"
    PCIE = "pcie"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPU part of a request.

    `count` is cards (WHOLE), 1 (SHARE) or instances (MIG). `milli` and `memory_mib` are per device;
    `memory_mib` None means in proportion to `milli`.
    """

    kind: RequestKind
    authority: Authority
    count: int = 1
    milli: int = MILLI_PER_GPU
    memory_mib: int | None = None
    mig_profile: str | None = None
    architectures: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    topology: TopologyPreference = TopologyPreference.NONE
    topology_required: bool = False
    enforced: bool = False
    """Of a share: only where the driver keeps it to its limits."""


@dataclass(frozen=True, slots=True)
class PluggedDevices:
    """What a pod asks of NVIDIA's device plugin, of one kind: a MIG profile, or empty for whole GPUs.

    `lasting` is what its main containers and sidecars ask for. `most` is more if an init container asks for
    more than that: the kubelet keeps those for the pod until it ends, but lists only the lasting ones.
    """

    kind: str
    lasting: int
    most: int


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What one pod asks for: devices for one container (the first that asks), and CPU and memory.

    `sees_only_its_allocation`: under a runtime that gives GPUs by environment its containers see no others.
    """

    gpu: GpuRequest
    container: str
    cpu_milli: int = 0
    memory_bytes: int = 0
    runtime_class: str | None = None
    sees_only_its_allocation: bool = False
