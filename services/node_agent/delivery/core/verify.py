"""Whether a container may have the devices that its pod's allocation names. Pure.

Decides from the pod's annotation, this node's GPUs and what other containers already have. Anything doubtful
is a refusal with its reason, which fails the container's creation. Never decides which devices a pod gets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuloom.codec.allocation import believable, decode_allocation
from gpuloom.errors import InvalidRequestError, NotAllowedError
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import MILLI_PER_GPU, Gpu, GpuHealth
from gpuloom.model.mig import MigInstance
from gpuloom.model.node import Holder, HolderSource, PodRef
from gpuloom.placement.capacity import counted_memory_mib, is_beyond
from services.node_agent.delivery.core.comparison import Requested, difference

_PLACE_ANEW = "delete the pod, so that it is placed anew"
_HEALTH_TEXTS = {
    GpuHealth.UNHEALTHY: f"is unhealthy: {{}}. It is not given to containers that start; {_PLACE_ANEW}",
    GpuHealth.LOST: f"is lost: {{}}. If it does not come back, {_PLACE_ANEW}",
}
_NO_REASON = "the driver says no more"


@dataclass(frozen=True, slots=True)
class Asking:
    """A container that is about to be created. `allocation` is its pod's annotation, if it has one.

    `requested` is what the pod's spec asks for; None where nobody tells of specs.
    """

    pod: PodRef
    container: str
    allocation: str | None
    requested: Requested | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """A container that runs with devices."""

    pod: PodRef
    container: str
    devices: tuple[AllocatedDevice, ...]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the agent knows about its node right now; an empty UID is not known.

    `given_by_others` is what containers have that we did not give: of NVIDIA's device plugin, from before the
    node changed its mode, or of a DRA driver.
    """

    node_uid: str
    gpus: tuple[Gpu, ...]
    given_by_others: tuple[Delivered, ...] = ()


def verify(asking: Asking, facts: NodeFacts, held: Iterable[Delivered]) -> Allocation | None:
    """The allocation to deliver, or None if this container gets no device. Raise NotAllowedError."""
    if asking.allocation is None:
        return None
    allocation = _believed(asking, asking.allocation, facts)
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}
    _refuse_difference(allocation, asking.requested, gpus)
    if allocation.container != asking.container:
        return None
    others = [entry for entry in held if not _is_same_owner(entry, asking)] + list(facts.given_by_others)
    for device in allocation.devices:
        _refuse_device(device, gpus)
        _refuse_beyond_capacity(device, gpus[device.device.gpu_uuid], others)
    return allocation


def given_by_others(holders: Iterable[Holder]) -> tuple[Delivered, ...]:
    """Of the node's holders those that got their devices through the kubelet, which are not ours to share."""
    return tuple(
        Delivered(
            holder.pod,
            holder.container,
            tuple(AllocatedDevice(device, MILLI_PER_GPU, 0) for device in holder.devices),
        )
        for holder in holders
        if holder.source in (HolderSource.KUBELET, HolderSource.CLAIM)
    )


def device_names(allocation: Allocation, gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """The UUIDs by which the verified devices go now. Raise NotAllowedError if one has none."""
    known = {gpu.uuid: gpu for gpu in gpus}
    return tuple(_name(allocated, known) for allocated in allocation.devices)


def _believed(asking: Asking, text: str, facts: NodeFacts) -> Allocation:
    if not facts.node_uid:
        raise NotAllowedError("the UID of this node is not known yet, so no allocation can be checked")
    try:
        allocation = decode_allocation(text)
    except InvalidRequestError as error:
        raise NotAllowedError(f"the allocation can't be read: {error}") from None
    doubt = believable(allocation, asking.pod.uid, facts.node_uid)
    if doubt:
        raise NotAllowedError(doubt)
    if allocation.advisory:
        raise NotAllowedError("the allocation is advisory, and this node gives out its devices itself")
    return allocation


def _refuse_difference(allocation: Allocation, requested: Requested | None, gpus: Mapping[str, Gpu]) -> None:
    """For every container of the pod: the one that asks would else start without its devices."""
    found = "" if requested is None else difference(allocation, requested, gpus)
    if found:
        raise NotAllowedError(found)


def _is_same_owner(entry: Delivered, asking: Asking) -> bool:
    """A container that restarts replaces itself; its earlier try may not be gone yet."""
    return (entry.pod.uid, entry.container) == (asking.pod.uid, asking.container)


def _refuse_device(allocated: AllocatedDevice, gpus: Mapping[str, Gpu]) -> None:
    uuid, placement = allocated.device.gpu_uuid, allocated.device.mig
    gpu = gpus.get(uuid)
    if not gpus:
        raise NotAllowedError("the GPUs of this node are not known yet")
    if gpu is None:
        raise NotAllowedError(f"this node has no GPU {uuid}")
    # Unknown is not among them: a driver that hangs for a moment must not keep what was placed from starting.
    told = _HEALTH_TEXTS.get(gpu.health, "")
    if told:
        raise NotAllowedError(f"GPU {uuid} {told.format(gpu.health_reason or _NO_REASON)}")
    if gpu.changing:
        raise NotAllowedError(f"GPU {uuid} can't be given now: {gpu.changing}")
    if placement is None and gpu.mig_enabled:
        raise NotAllowedError(f"GPU {uuid} is cut into MIG instances and can't be given as a whole")
    if placement is None:
        return
    instance = _instance(allocated, gpu)
    if instance is None:
        raise NotAllowedError(f"GPU {uuid} has no MIG instance {placement.profile} at {placement.start}")
    if instance.changing:
        raise NotAllowedError(f"MIG instance {_shown(allocated)} can't be given now: {instance.changing}")
    if instance.fault:
        told = _HEALTH_TEXTS[GpuHealth.UNHEALTHY].format(instance.fault)
        raise NotAllowedError(f"MIG instance {_shown(allocated)} {told}")


def _refuse_beyond_capacity(allocated: AllocatedDevice, gpu: Gpu, others: list[Delivered]) -> None:
    """A MIG instance has one owner; a GPU that is not cut has as many as its shares and memory allow.

    What was given while the card's total was a little larger is within that: see `capacity`.
    """
    taken = [
        (entry.pod, device)
        for entry in others
        for device in entry.devices
        if device.device.gpu_uuid == gpu.uuid
    ]
    for pod, device in taken:
        if (device.device.mig is None) != (allocated.device.mig is None):
            whole = "as a whole" if device.device.mig is None else "in MIG instances"
            raise NotAllowedError(f"GPU {gpu.uuid} is in use {whole} by pod {pod}")
        if allocated.device.mig is not None and device.device.mig == allocated.device.mig:
            raise NotAllowedError(f"MIG instance {_shown(allocated)} is held by pod {pod}")
    if allocated.device.mig is not None:
        return
    beside = f" beside pods {', '.join(sorted({str(pod) for pod, _ in taken}))}" if taken else ""
    devices = [allocated, *(device for _, device in taken)]
    milli = sum(device.milli for device in devices)
    memory_mib = sum(counted_memory_mib(device, gpu) for device in devices)
    if milli > MILLI_PER_GPU:
        raise NotAllowedError(f"GPU {gpu.uuid} has {MILLI_PER_GPU} milli, not {milli}{beside}")
    if is_beyond(gpu, milli, memory_mib):
        raise NotAllowedError(f"GPU {gpu.uuid} has {gpu.memory_mib} MiB, not {memory_mib}{beside}")


def _name(allocated: AllocatedDevice, gpus: Mapping[str, Gpu]) -> str:
    if allocated.device.mig is None:
        return allocated.device.gpu_uuid
    instance = _instance(allocated, gpus[allocated.device.gpu_uuid])
    if instance is None or not instance.uuid:
        raise NotAllowedError(f"the driver does not say the UUID of MIG instance {_shown(allocated)}")
    return instance.uuid


def _instance(allocated: AllocatedDevice, gpu: Gpu) -> MigInstance | None:
    return next((found for found in gpu.mig_instances if found.placement == allocated.device.mig), None)


def _shown(allocated: AllocatedDevice) -> str:
    mig = allocated.device.mig
    place = f"{mig.profile} at {mig.start} of " if mig is not None else ""
    return f"{place}GPU {allocated.device.gpu_uuid}"
