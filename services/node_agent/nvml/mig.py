"""The MIG instances of one GPU, with their places.

GPU instances are listed, not MIG devices: one without a compute instance has no device, but takes its place.
"""

from collections.abc import Mapping
from ctypes import byref, c_uint
from dataclasses import dataclass, field

from gpuloom.catalog import GpuModel
from gpuloom.model.mig import MigInstance, MigPlacement
from services.node_agent.nvml.binding import (
    Handle,
    NvmlError,
    code_of,
    failure_of,
    is_gone,
    nvml,
    optional,
    text,
)
from services.node_agent.nvml.core.failure import INVALID_ARGUMENT, NOT_FOUND, Failure
from services.node_agent.nvml.usage import Memory, read_memory

_NAME_PREFIX = "MIG "
# Profiles with media engines, by their number in NVML.
_MEDIA_PROFILES = frozenset({7, 8})


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile as the driver numbers it; `name` is empty where the driver does not tell names."""

    id: int
    name: str
    compute_slices: int
    memory_mib: int
    media: bool
    max_count: int = 0


Profiles = Mapping[int, Profile]


@dataclass(frozen=True, slots=True)
class MigLayout:
    """How a GPU is cut. `ids` has the driver's number of each instance.

    `handles` has the MIG devices by that number, where the device is the instance.
    """

    enabled: bool = False
    instances: tuple[MigInstance, ...] = ()
    ids: tuple[int, ...] = ()
    handles: Mapping[int, Handle] = field(default_factory=dict, compare=False)
    failure: Failure | None = None

    def instance(self, number: int | None) -> MigInstance | None:
        """That which the driver numbers so, if it is known."""
        return next((i for i, own in zip(self.instances, self.ids, strict=True) if own == number), None)


def is_cut(handle: Handle) -> bool:
    mode = optional(nvml.nvmlDeviceGetMigMode, handle)
    return mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE


def read_layout(handle: Handle, profiles: Profiles, model: GpuModel | None) -> MigLayout:
    """Of a GPU that is cut. Costly: dozens of calls."""
    try:
        devices = _devices(handle)
        found = [
            (_instance(info, profile, devices, model), int(info.id))
            for profile in profiles.values()
            for _, info in read_instances(handle, profile.id)
        ]
    except NvmlError as error:
        if is_gone(error):
            raise
        # Listing needs privileges. Guessing places from what else is visible is worse than saying so.
        return MigLayout(enabled=True, failure=failure_of(error))
    found.sort(key=lambda pair: pair[0].placement)
    return MigLayout(
        enabled=True,
        instances=tuple(instance for instance, _ in found),
        ids=tuple(number for _, number in found),
        handles=devices,
    )


def read_memories(layout: MigLayout) -> dict[int, Memory] | None:
    """By the driver's number of the instance. None if the GPU is not cut like that any more."""
    found = {}
    for number, handle in layout.handles.items():
        try:
            found[number] = read_memory(handle)
        except NvmlError as error:
            if is_gone(error):
                raise
            if code_of(error) in (NOT_FOUND, INVALID_ARGUMENT):
                return None
    return found


def read_profiles(handle: Handle) -> Profiles:
    """What this GPU can be cut into, by the id that instances carry."""
    found = {}
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = optional(nvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number, 2)
        name = "" if info is None else text(info.name).removeprefix(_NAME_PREFIX)
        if info is None:
            info = optional(nvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number, 1)
        if info is not None:
            media = number in _MEDIA_PROFILES
            found[int(info.id)] = Profile(
                id=int(info.id),
                name=name,
                compute_slices=int(info.sliceCount),
                memory_mib=int(info.memorySizeMB),
                media=media,
                max_count=int(info.instanceCount),
            )
    return found


def profile_name(profile: Profile, slices: int, model: GpuModel | None) -> str:
    """The driver's name; on drivers without one, that of the catalogue's profile of the same cut."""
    if profile.name:
        return profile.name
    for candidate in () if model is None else model.mig_profiles:
        same = (candidate.compute_slices, candidate.memory_slices) == (profile.compute_slices, slices)
        if same and candidate.name.endswith("+me") == profile.media:
            return candidate.name
    return f"profile-{profile.id}"


def _instance(
    info: Handle, profile: Profile, devices: Mapping[int, Handle], model: GpuModel | None
) -> MigInstance:
    slices, device = int(info.placement.size), devices.get(int(info.id))
    placement = MigPlacement(int(info.placement.start), profile_name(profile, slices, model))
    uuid = None if device is None else optional(nvml.nvmlDeviceGetUUID, device)
    return MigInstance(placement, slices, profile.memory_mib, "" if uuid is None else text(uuid))


def read_instances(handle: Handle, profile_id: int) -> list[tuple[Handle, Handle]]:
    """Each with what the driver says of it."""
    count = c_uint()
    nvml.nvmlDeviceGetGpuInstances(handle, profile_id, None, byref(count))
    if count.value == 0:
        return []
    # Room for one that is made between the two calls.
    buffer = (nvml.c_nvmlGpuInstance_t * (count.value + 8))()
    nvml.nvmlDeviceGetGpuInstances(handle, profile_id, buffer, byref(count))
    found = [(buffer[place], _info(buffer[place])) for place in range(min(count.value, len(buffer)))]
    return [(instance, info) for instance, info in found if info is not None]


def _info(instance: Handle) -> Handle | None:
    try:
        return nvml.nvmlGpuInstanceGetInfo(instance)
    except NvmlError as error:
        # Destroyed since it was listed.
        if failure_of(error).code == NOT_FOUND:
            return None
        raise


def _devices(handle: Handle) -> dict[int, Handle]:
    """By GPU instance, where it has exactly one compute instance: only there the device is the instance."""
    found: dict[int, list[Handle]] = {}
    for index in range(int(optional(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)):
        device = optional(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        number = None if device is None else optional(nvml.nvmlDeviceGetGpuInstanceId, device)
        if number is not None:
            found.setdefault(int(number), []).append(device)
    return {number: devices[0] for number, devices in found.items() if len(devices) == 1}
