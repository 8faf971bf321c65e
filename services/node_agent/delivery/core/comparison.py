"""Whether an allocation gives a pod what its container asks for, neither more nor less. Pure.

The extender writes allocations from requests, so they differ only if somebody else wrote one. Never decides
whether the devices are there or free: `verify` does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import MILLI_PER_GPU, Gpu
from gpuloom.placement.capacity import MEMORY_DRIFT


@dataclass(frozen=True, slots=True)
class Requested:
    """What the one container of a pod that asks for gpuloom.dev/* asks for, by the pod's spec.

    `memory_mib` None: in proportion to `milli`. `mig_profile` None: no MIG instance.
    """

    container: str
    milli: int
    memory_mib: int | None = None
    mig_profile: str | None = None

    @property
    def count(self) -> int:
        """How many devices that is."""
        is_whole = self.mig_profile is None and self.milli >= MILLI_PER_GPU
        return self.milli // MILLI_PER_GPU if is_whole else 1

    @property
    def milli_each(self) -> int:
        return self.milli // self.count


def difference(allocation: Allocation, requested: Requested, gpus: Mapping[str, Gpu]) -> str:
    """How the two differ, for a person; empty if they don't.

    Memory is compared on GPUs that are known; an unknown one is refused anyhow.
    """
    if allocation.container != requested.container:
        asking = requested.container
        return f"the allocation is for container {allocation.container}, but {asking} asks for GPUs"
    if not _is_of_kind(allocation.devices, requested):
        return _text(_given(allocation.devices), _asked(requested), requested.container)
    for allocated in allocation.devices:
        gpu = gpus.get(allocated.device.gpu_uuid)
        asked_mib = None if gpu is None else _differing_memory_mib(allocated, requested, gpu)
        if asked_mib is not None:
            return _text(f"{allocated.memory_mib} MiB", f"{asked_mib} MiB", requested.container)
    return ""


def _is_of_kind(devices: tuple[AllocatedDevice, ...], requested: Requested) -> bool:
    return (
        len(devices) == requested.count
        and requested.count * requested.milli_each == requested.milli
        and all(_profile(device) == requested.mig_profile for device in devices)
        and all(device.milli == requested.milli_each for device in devices)
    )


def _differing_memory_mib(allocated: AllocatedDevice, requested: Requested, gpu: Gpu) -> int | None:
    """What is asked for instead; None if it is that.

    A whole card and a MIG instance have the memory that they have. A share in proportion was cut from the
    total that the card had then, which may have drifted since.
    """
    if allocated.milli >= MILLI_PER_GPU or allocated.device.mig is not None:
        return None
    if requested.memory_mib is not None:
        return None if allocated.memory_mib == requested.memory_mib else requested.memory_mib
    proportion_mib = max(1, gpu.memory_mib * allocated.milli // MILLI_PER_GPU)
    allowed_mib = max(1, proportion_mib // MEMORY_DRIFT)
    return None if abs(allocated.memory_mib - proportion_mib) <= allowed_mib else proportion_mib


def _profile(allocated: AllocatedDevice) -> str | None:
    return None if allocated.device.mig is None else allocated.device.mig.profile


def _text(given: str, asked: str, container: str) -> str:
    return (
        f"the allocation gives {given}, but container {container} asks for {asked}: it is not what the "
        "scheduler extender decided; delete the pod, and see that the admission policies are installed"
    )


def _given(devices: tuple[AllocatedDevice, ...]) -> str:
    return ", ".join(_amount(device.milli, _profile(device)) for device in devices[:4]) + (
        f" and {len(devices) - 4} more" if len(devices) > 4 else ""
    )


def _asked(requested: Requested) -> str:
    return _amount(requested.milli, requested.mig_profile)


def _amount(milli: int, profile: str | None) -> str:
    return f"{milli} milli" if profile is None else f"a MIG instance {profile} of {milli} milli"
