"""Cuts one GPU: what it can be cut into, how it is, instances made and destroyed. Everything blocks.

Never believes a return code alone: whoever calls reads again. It never decides whether somebody uses what it
destroys; the driver refuses that, too.
"""

from collections.abc import Iterator, Mapping
from ctypes import byref, c_uint
from dataclasses import dataclass

from gpuloom.catalog import GpuModel
from gpuloom.model.layout import GpuLayout, LaidInstance
from gpuloom.model.mig import MigPlacement, MigProfile
from services.node_agent.nvml.binding import Handle, NvmlError, code_of, failure_of, nvml, optional, text
from services.node_agent.nvml.core.failure import NOT_FOUND
from services.node_agent.nvml.mig import (
    Profile,
    Profiles,
    is_cut,
    profile_name,
    read_instances,
    read_layout,
    read_profiles,
)

NOT_SUPPORTED = 3
IN_USE = 19
_SHARED_ENGINES = 0


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU to cut, if it can be; `model` is the catalogue's."""

    uuid: str
    handle: Handle
    capable: bool
    model: GpuModel | None


class CutError(Exception):
    """The driver did not do it; the text is for a person."""


@dataclass(frozen=True, slots=True)
class ModeOutcome:
    """What setting the mode came to: the driver may say success and mean later."""

    active: bool
    reset_required: bool
    text: str = ""


@dataclass(frozen=True, slots=True)
class DeviceNumbers:
    """`minor` is the GPU's; `instances` has GPU and compute instance of each MIG device by its UUID."""

    minor: int
    instances: Mapping[str, tuple[int, int]]


def layout_now(card: Card) -> GpuLayout:
    """Raise NvmlError if the GPU does not answer, CutError if its instances may not be listed."""
    if not card.capable:
        return GpuLayout(card.uuid)
    enabled = is_cut(card.handle)
    profiles = read_profiles(card.handle) if enabled else {}
    # A driver lists places only in MIG mode; until then it is what the catalogue knows of the model.
    geometry = tuple(_geometry(card, profiles)) or (() if card.model is None else card.model.mig_profiles)
    slices = max((max(p.starts) + p.memory_slices for p in geometry if p.starts), default=0)
    found = read_layout(card.handle, profiles, card.model) if enabled else None
    if found is not None and found.failure is not None:
        raise CutError(found.failure.text)
    instances = () if found is None else found.instances
    return GpuLayout(
        gpu_uuid=card.uuid,
        mig_capable=True,
        mig_enabled=enabled,
        memory_slices=slices,
        profiles=geometry,
        instances=tuple(LaidInstance(one.placement, one.uuid) for one in instances),
    )


def set_mode(card: Card, enabled: bool) -> ModeOutcome:
    """Raise NvmlError if the driver refuses outright."""
    wanted = nvml.NVML_DEVICE_MIG_ENABLE if enabled else nvml.NVML_DEVICE_MIG_DISABLE
    status = int(nvml.nvmlDeviceSetMigMode(card.handle, wanted))
    if is_cut(card.handle) == enabled:
        return ModeOutcome(active=True, reset_required=False)
    current, pending = nvml.nvmlDeviceGetMigMode(card.handle)
    why = "another client uses the GPU" if status == IN_USE else f"activation status {status}"
    return ModeOutcome(active=False, reset_required=status != IN_USE and pending != current, text=why)


def create(card: Card, placement: MigPlacement) -> None:
    """The GPU instance, unless it is there, and the compute instance that fills it.

    Raise CutError or NvmlError.
    """
    profiles = read_profiles(card.handle)
    found = _find(card, profiles, placement)
    if found is None:
        profile, size = _profile(card, profiles, placement)
        where = nvml.c_nvmlGpuInstancePlacement_t(placement.start, size)
        instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(card.handle, profile.id, byref(where))
    else:
        instance = found
    if not any(True for _ in _computes(instance)):
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, _filling_profile(instance))


def destroy(card: Card, placement: MigPlacement) -> None:
    """Compute instances first: a GPU instance that has one is in use. Raise NvmlError."""
    instance = _find(card, read_profiles(card.handle), placement)
    if instance is None:
        return
    for compute in list(_computes(instance)):
        nvml.nvmlComputeInstanceDestroy(compute)
    nvml.nvmlGpuInstanceDestroy(instance)


def device_numbers(card: Card) -> DeviceNumbers:
    """By which numbers the GPU and its MIG devices go in the driver's folders. Raise NvmlError."""
    minor = int(nvml.nvmlDeviceGetMinorNumber(card.handle))
    found = {}
    for index in range(int(optional(nvml.nvmlDeviceGetMaxMigDeviceCount, card.handle) or 0)):
        device = optional(nvml.nvmlDeviceGetMigDeviceHandleByIndex, card.handle, index)
        if device is None:
            continue
        numbers = (
            int(nvml.nvmlDeviceGetGpuInstanceId(device)),
            int(nvml.nvmlDeviceGetComputeInstanceId(device)),
        )
        found[text(nvml.nvmlDeviceGetUUID(device))] = numbers
    return DeviceNumbers(minor, found)


def set_compute_mode(card: Card, exclusive: bool) -> None:
    """`exclusive`: one process at a time, which is then the MPS server. Raise NvmlError."""
    mode = nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else nvml.NVML_COMPUTEMODE_DEFAULT
    nvml.nvmlDeviceSetComputeMode(card.handle, mode)


def described(error: Exception) -> str:
    return failure_of(error).text if isinstance(error, NvmlError) else str(error)


def _geometry(card: Card, profiles: Profiles) -> Iterator[MigProfile]:
    for profile in profiles.values():
        places = _possible(card.handle, profile)
        if not places:
            continue
        size = places[0][1]
        yield MigProfile(
            name=profile_name(profile, size, card.model),
            compute_slices=profile.compute_slices,
            memory_slices=size,
            memory_mib=profile.memory_mib,
            starts=tuple(sorted(start for start, _ in places)),
            max_count=profile.max_count,
        )


def _possible(handle: Handle, profile: Profile) -> list[tuple[int, int]]:
    """(start, size) of every place where an instance of it can be."""
    count = c_uint()
    try:
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile.id, None, byref(count))
        if count.value == 0:
            return []
        buffer = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile.id, buffer, byref(count))
    except NvmlError as error:
        if code_of(error) == NOT_SUPPORTED:
            return []
        raise
    return [(int(place.start), int(place.size)) for place in buffer[: count.value]]


def _profile(card: Card, profiles: Profiles, placement: MigPlacement) -> tuple[Profile, int]:
    for profile in profiles.values():
        for start, size in _possible(card.handle, profile):
            if profile_name(profile, size, card.model) == placement.profile and start == placement.start:
                return profile, size
    raise CutError(f"the driver has no place for {placement.profile} at {placement.start}")


def _find(card: Card, profiles: Profiles, placement: MigPlacement) -> Handle | None:
    for profile in profiles.values():
        for instance, info in read_instances(card.handle, profile.id):
            name = profile_name(profile, int(info.placement.size), card.model)
            if (name, int(info.placement.start)) == (placement.profile, placement.start):
                return instance
    return None


def _compute_profiles(instance: Handle) -> Iterator[Handle]:
    call = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        for version in (2, 1):
            info = optional(call, instance, number, _SHARED_ENGINES, version)
            if info is not None:
                yield info
                break


def _computes(instance: Handle) -> Iterator[Handle]:
    for info in _compute_profiles(instance):
        count = c_uint()
        try:
            nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, None, byref(count))
            buffer = (nvml.c_nvmlComputeInstance_t * (count.value + 8))()
            nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, buffer, byref(count))
        except NvmlError as error:
            if code_of(error) in (NOT_SUPPORTED, NOT_FOUND):
                continue
            raise
        yield from buffer[: count.value]


def _filling_profile(instance: Handle) -> int:
    """The compute profile with the most slices: it fills the GPU instance."""
    found = [(int(info.sliceCount), int(info.id)) for info in _compute_profiles(instance)]
    if not found:
        raise CutError("the driver offers no compute instance for it")
    return max(found)[1]
