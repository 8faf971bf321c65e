"""What owners take of a node's GPUs. Pure.

On a `gpuloom` node devices are exact: every share is subtracted where it is. On an `nvidia` node the kubelet
chooses: what it is known to have chosen is exact, and a pod whose choice is not known yet counts with its
number of devices, first on those predicted for it, else on any that are left.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu, GpuHealth
from gpuloom.model.ledger import Claim
from gpuloom.model.mig import MigPlacement
from gpuloom.model.request import PodRequest
from gpuloom.placement.capacity import counted_memory_mib, is_beyond
from gpuloom.placement.devices import GpuView, HostCapacity, NodeView


@dataclass(frozen=True, slots=True)
class Taken:
    """What is taken of one GPU. `closed_reason` is why nothing more of it may be given, if so."""

    milli: int = 0
    memory_mib: int = 0
    mig: frozenset[DeviceRef] = frozenset()
    closed_reason: str = ""


CONTESTED = "a GPU is held by another owner than the one it was given to"

NOTHING = Taken()


def taken_by(claims: Iterable[Claim], gpus: Mapping[str, Gpu]) -> dict[str, Taken]:
    """What the claims take of each GPU, by UUID."""
    claims = tuple(claims)
    taken: dict[str, Taken] = {}
    for claim in claims:
        if not claim.advisory:
            for allocated in claim.devices or ():
                _take(taken, allocated, gpus)
    for claim in claims:
        if claim.advisory:
            for allocated in predicted_devices(claim, taken, gpus):
                _take(taken, allocated, gpus)
    for claim in claims:
        for kind in claim.unlisted:
            # Which one it is nobody tells, and on such a node the number is what counts.
            some = _best_free(_of_kind(kind, gpus), taken, gpus)
            if some is not None:
                _take(taken, some, gpus)
    return taken


def with_taken(view: NodeView, request: PodRequest, devices: Sequence[AllocatedDevice]) -> NodeView:
    """The node after a pod got these devices: what the ledger would show of it."""
    given: defaultdict[str, list[AllocatedDevice]] = defaultdict(list)
    for item in devices:
        given[item.device.gpu_uuid].append(item)
    # Cards that stay as they are stay the same objects: a fleet then writes only those that changed.
    gpus = tuple(
        _card_after(card, given[card.gpu.uuid]) if card.gpu.uuid in given else card for card in view.gpus
    )
    return replace(view, gpus=gpus, host=None if view.host is None else _host_after(view.host, request))


def predicted_devices(
    claim: Claim, taken: Mapping[str, Taken], gpus: Mapping[str, Gpu]
) -> list[AllocatedDevice]:
    """The predicted devices, each replaced by a free one of its kind if it can't be that.

    Somebody else is known to have it, or the node no longer shows it. An unhealthy one is predicted last: the
    claim must count against those that could be given out.
    """
    chosen: list[AllocatedDevice] = []
    used: set[DeviceRef] = set()
    for allocated in claim.devices or ():
        pick = allocated
        # What was predicted nearly always still stands.
        if allocated.device in used or not _is_good(allocated.device, taken, gpus):
            candidates = (allocated, *_alternatives(allocated.device.mig, gpus))
            unused = [item for item in candidates if item.device not in used]
            pick = _best_free(unused, taken, gpus) or allocated
        used.add(pick.device)
        chosen.append(pick)
    return chosen


def _best_free(
    candidates: Iterable[AllocatedDevice], taken: Mapping[str, Taken], gpus: Mapping[str, Gpu]
) -> AllocatedDevice | None:
    free = (item for item in candidates if _is_free(item.device, taken))
    return min(free, key=lambda item: not _is_healthy(item.device, gpus), default=None)


def _of_kind(kind: str, gpus: Mapping[str, Gpu]) -> Iterator[AllocatedDevice]:
    """Every device of this MIG profile; every whole GPU if it is empty."""
    return _alternatives(MigPlacement(0, kind) if kind else None, gpus)


def _alternatives(mig: MigPlacement | None, gpus: Mapping[str, Gpu]) -> Iterator[AllocatedDevice]:
    """Every device of the same kind, wherever it starts."""
    for gpu in sorted(gpus.values(), key=lambda gpu: gpu.index):
        if mig is None:
            if not gpu.mig_enabled:
                yield AllocatedDevice(DeviceRef(gpu.uuid), MILLI_PER_GPU, gpu.memory_mib)
            continue
        for instance in gpu.mig_instances:
            if instance.placement.profile == mig.profile:
                yield AllocatedDevice(DeviceRef(gpu.uuid, instance.placement), MILLI_PER_GPU, 0)


def _is_healthy(device: DeviceRef, gpus: Mapping[str, Gpu]) -> bool:
    gpu = gpus.get(device.gpu_uuid)
    return gpu is not None and gpu.health is GpuHealth.HEALTHY


def _is_good(device: DeviceRef, taken: Mapping[str, Taken], gpus: Mapping[str, Gpu]) -> bool:
    return _is_free(device, taken) and _is_healthy(device, gpus)


def _is_free(device: DeviceRef, taken: Mapping[str, Taken]) -> bool:
    of_gpu = taken.get(device.gpu_uuid)
    if of_gpu is None:
        return True
    if device.mig is None:
        return not (of_gpu.milli or of_gpu.memory_mib or of_gpu.mig or of_gpu.closed_reason)
    return device not in of_gpu.mig and not of_gpu.milli and not of_gpu.closed_reason


def _take(taken: dict[str, Taken], allocated: AllocatedDevice, gpus: Mapping[str, Gpu]) -> None:
    uuid = allocated.device.gpu_uuid
    before = taken.get(uuid, NOTHING)
    if allocated.device.mig is not None:
        contested = allocated.device in before.mig or before.milli > 0
        mig, reason = before.mig | {allocated.device}, CONTESTED if contested else before.closed_reason
        taken[uuid] = Taken(before.milli, before.memory_mib, mig, reason)
        return
    milli = before.milli + allocated.milli
    gpu = gpus.get(uuid)
    if gpu is None:
        memory_mib, over = before.memory_mib + allocated.memory_mib, milli > MILLI_PER_GPU
    else:
        memory_mib = before.memory_mib + counted_memory_mib(allocated, gpu)
        over = is_beyond(gpu, milli, memory_mib)
    contested = over or bool(before.mig)
    taken[uuid] = Taken(milli, memory_mib, before.mig, CONTESTED if contested else before.closed_reason)


def _card_after(card: GpuView, devices: Sequence[AllocatedDevice]) -> GpuView:
    slices = {item.device.mig for item in devices if item.device.mig is not None}
    cards = [item for item in devices if item.device.mig is None]
    return replace(
        card,
        free_milli=max(0, card.free_milli - sum(item.milli for item in cards)),
        free_memory_mib=max(0, card.free_memory_mib - sum(item.memory_mib for item in cards)),
        free_mig=tuple(instance for instance in card.free_mig if instance.placement not in slices),
    )


def _host_after(host: HostCapacity, request: PodRequest) -> HostCapacity:
    return replace(
        host,
        cpu_free_milli=max(0, host.cpu_free_milli - request.cpu_milli),
        memory_free_bytes=max(0, host.memory_free_bytes - request.memory_bytes),
    )
