"""Requests and amounts in words, as people write them in a pod. Decides nothing."""

from gpuloom.catalog import mig_resource
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind, TopologyPreference
from gpuloom.names import (
    ANNOTATION_MIG_PROFILE,
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
)

_BYTES_PER_MIB = 2**20
_MIB_PER_GIB = 2**10
_MILLI_PER_CPU = 1000


def described(request: PodRequest) -> str:
    """All that the pod asks for, in one line."""
    gpu = request.gpu
    parts = [asked(gpu)]
    if gpu.memory_mib is not None:
        parts.append(f"{RESOURCE_GPU_MEMORY_MIB}: {gpu.memory_mib}")
    if gpu.models:
        parts.append(f"model {' or '.join(gpu.models)}")
    if gpu.architectures:
        parts.append(f"architecture {' or '.join(gpu.architectures)}")
    if gpu.topology is not TopologyPreference.NONE:
        parts.append(f"topology {gpu.topology} {'required' if gpu.topology_required else 'preferred'}")
    if request.cpu_milli:
        parts.append(f"{cpus(request.cpu_milli)} CPUs")
    if request.memory_bytes:
        parts.append(f"{memory(request.memory_bytes)} memory")
    return ", ".join(parts)


def asked(gpu: GpuRequest) -> str:
    """The resource and its amount as the pod's limits have it."""
    if gpu.kind is RequestKind.MIG and gpu.authority is Authority.NVIDIA:
        return f"{mig_resource(gpu.mig_profile or '')}: {gpu.count}"
    if gpu.kind is RequestKind.MIG:
        return f"{RESOURCE_GPU_MILLI}: {gpu.milli} with {ANNOTATION_MIG_PROFILE}: {gpu.mig_profile}"
    if gpu.authority is Authority.NVIDIA:
        return f"{RESOURCE_NVIDIA_GPU}: {gpu.count}"
    return (
        f"{RESOURCE_GPU_MILLI}: {gpu.count * MILLI_PER_GPU if gpu.kind is RequestKind.WHOLE else gpu.milli}"
    )


def devices_noun(gpu: GpuRequest) -> str:
    return f"MIG slices {gpu.mig_profile}" if gpu.kind is RequestKind.MIG else "GPUs"


def cpus(milli: int) -> str:
    return f"{milli / _MILLI_PER_CPU:g}"


def memory(amount_bytes: int) -> str:
    mib = amount_bytes // _BYTES_PER_MIB
    return f"{mib / _MIB_PER_GIB:.4g} GiB" if mib >= _MIB_PER_GIB else f"{mib} MiB"
