"""Which devices of resource claims (DRA) are GPUs of this node, and which GPUs. Pure.

A claim's device is a GPU if a driver of GPUs gave it, or if one of its CDI names says so: another driver's
GPU is held just the same. Whatever else DRA gives out (network interfaces, IMEX channels) is nobody's GPU.
A GPU that can't be told is not lost: it is named as its driver names it, which is no GPU that the node has.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from gpuloom.codec.device import MAX_NAME_LENGTH
from gpuloom.model.gpu import DeviceRef

GPU_DRIVERS = ("gpu.nvidia.com", "gpu.gpuloom.dev")

_UUID = re.compile(r"(gpu|mig)-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)
_GPU_CLASS = re.compile(r"[^/=]+/gpu=.+")
# NVIDIA's driver names a GPU by its minor number, and an instance of it after it: gpu-1-mig-1g10gb-19-0.
_BY_MINOR = re.compile(r"gpu-(\d{1,5})(?:-mig-.+)?")


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """One device of a claim, as the kubelet lists it."""

    driver: str
    pool: str
    name: str
    cdi_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuClaims:
    """How claimed devices become GPUs: by id (a UUID), or by minor number; None if there is no such GPU."""

    device_of_id: Callable[[str], DeviceRef] = DeviceRef
    uuid_of_minor: Callable[[int], str | None] = lambda _: None
    drivers: frozenset[str] = frozenset(GPU_DRIVERS)

    def gpu_of(self, claimed: ClaimedDevice) -> DeviceRef | None:
        """None if it is no GPU. For an instance without a UUID its GPU: more than it has, never less."""
        uuid = _uuid_in(*claimed.cdi_names, claimed.name)
        if uuid:
            return self.device_of_id(uuid)
        if claimed.driver not in self.drivers and not any(map(_GPU_CLASS.fullmatch, claimed.cdi_names)):
            return None
        numbered = _BY_MINOR.fullmatch(claimed.name)
        known = self.uuid_of_minor(int(numbered[1])) if numbered is not None else None
        return DeviceRef(known or _full_name(claimed))


def _uuid_in(*names: str) -> str:
    """Names in Kubernetes are in small letters; the driver writes GPU-… and MIG-…"""
    for name in names:
        found = _UUID.search(name)
        if found is not None:
            return f"{found[1].upper()}-{found[2].lower()}"
    return ""


def _full_name(claimed: ClaimedDevice) -> str:
    full = f"{claimed.driver}/{claimed.pool}/{claimed.name}"
    return full if len(full) <= MAX_NAME_LENGTH else f"{claimed.driver}/{claimed.name}"
