"""What holds keep back of a node, beside what its owners have. Pure.

A whole GPU that is held is closed, whoever has a part of it. A share counts like one that was given. The
place of a MIG instance keeps back every instance that overlaps it, or the whole card while it is not cut. A
hold for a pod counts until that pod is observed on the node, with whatever it was given there.

Where the kubelet chooses devices nobody can keep one of them from being chosen. What is held there for a pod
or a gang counts by number, as pods do whose devices are only predicted; any other hold closes the node.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuloom.catalog import load_catalog
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu
from gpuloom.model.ledger import POD_OWNER, RESERVATION_OWNER, Claim, EntryState, Hold, NodeLedger
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import NodeMode, PodRef
from gpuloom.placement.occupancy.taken import NOTHING, Taken, predicted_devices

_NOBODY = PodRef("", "", "")


def holds_in_force(ledger: NodeLedger) -> tuple[Hold, ...]:
    """Of the node's holds those that keep something back now."""
    arrived = [claim.pod for claim in ledger.claims if claim.state is EntryState.OBSERVED]
    return tuple(
        hold
        for hold in ledger.holds
        if hold.is_about(ledger.node_name, ledger.node_uid)
        and not any(hold.is_for_pod(pod.uid, str(pod)) for pod in arrived)
    )


def held_reason(hold: Hold) -> str:
    """Why something is not given out; the same words for the same cause."""
    return f"a hold can't be read: {hold.problem}" if hold.problem else f"held: {hold.reason}"


def node_hold_reason(holds: Iterable[Hold], mode: NodeMode) -> str:
    """Why the whole node is closed by holds; empty if it is not."""
    for hold in holds:
        if hold.device is None:
            return held_reason(hold)
        if mode is NodeMode.NVIDIA and not hold.lets_pods_through:
            return f"a GPU of the node is held, and its kubelet could give it out: {hold.reason}"
    return ""


def held_back(
    taken: Mapping[str, Taken], holds: Iterable[Hold], gpus: Mapping[str, Gpu], mode: NodeMode
) -> dict[str, Taken]:
    """What is taken of each GPU, by UUID, with what holds keep back of it."""
    kept = dict(taken)
    by_number, held = mode is NodeMode.NVIDIA, list(holds)
    promised = {each.device.device for each in held if each.device and each.owner.kind == POD_OWNER}
    for hold in held:
        # What a pod was promised of a reservation is held twice, and counts as the one device that it is.
        is_promised = hold.owner.kind == RESERVATION_OWNER and hold.device and hold.device.device in promised
        if hold.device is not None and not (by_number and is_promised):
            device = _counted(hold.device, kept, gpus) if by_number else hold.device
            _keep_back(kept, device, held_reason(hold), gpus)
    return kept


def overlapping(gpu: Gpu, place: MigPlacement) -> tuple[DeviceRef, ...] | None:
    """The instances of a GPU that are in the way of this place; None if its size is not known."""
    size = place_size(gpu.model, place.profile)
    if size is None:
        same = [instance for instance in gpu.mig_instances if instance.placement == place]
        return tuple(DeviceRef(gpu.uuid, instance.placement) for instance in same) or None
    return tuple(
        DeviceRef(gpu.uuid, instance.placement)
        for instance in gpu.mig_instances
        if instance.placement.start < place.start + size and place.start < instance.end
    )


def place_size(model_name: str, profile: str) -> int | None:
    """How many memory slices an instance of this profile covers."""
    model = load_catalog().find_gpu(model_name)
    profiles = () if model is None else model.mig_profiles
    return next((each.memory_slices for each in profiles if each.name == profile), None)


def _keep_back(kept: dict[str, Taken], device: AllocatedDevice, reason: str, gpus: Mapping[str, Gpu]) -> None:
    gpu = gpus.get(device.device.gpu_uuid)
    if gpu is None:
        return
    before = kept.get(gpu.uuid, NOTHING)
    if device.device.mig is not None:
        in_the_way = overlapping(gpu, device.device.mig) if gpu.mig_enabled else None
        if in_the_way is not None:
            kept[gpu.uuid] = replace(before, mig=before.mig | set(in_the_way))
            return
    elif device.milli < MILLI_PER_GPU:
        share_mib = device.memory_mib or -(-gpu.memory_mib * device.milli // MILLI_PER_GPU)
        milli, memory_mib = before.milli + device.milli, before.memory_mib + share_mib
        kept[gpu.uuid] = replace(before, milli=milli, memory_mib=memory_mib)
        return
    kept[gpu.uuid] = replace(before, closed_reason=before.closed_reason or reason)


def _counted(held: AllocatedDevice, kept: Mapping[str, Taken], gpus: Mapping[str, Gpu]) -> AllocatedDevice:
    """A device that nobody has, if there is one: on such a node the number is what counts."""
    whole = replace(held, milli=MILLI_PER_GPU)
    claim = Claim(_NOBODY, EntryState.IN_FLIGHT, (whole,), advisory=True)
    (device,) = predicted_devices(claim, kept, gpus)
    return device


def conflicting(holds: Sequence[Hold], wanted: Hold) -> Hold | None:
    """Of these holds on one node one that this one is in the way of; None if there is none."""
    for hold in holds:
        if hold.name != wanted.name and _conflict(hold, wanted):
            return hold
    return None


def _conflict(one: Hold, other: Hold) -> bool:
    first, second = one.device, other.device
    if first is None or second is None:
        return True
    if first.device.gpu_uuid != second.device.gpu_uuid:
        return False
    mine, theirs = first.device.mig, second.device.mig
    if mine is not None and theirs is not None:
        return _places_overlap(mine, theirs)
    # Two shares may stand side by side; whether there is room for both is asked of the card.
    return not (mine is None and theirs is None and max(first.milli, second.milli) < MILLI_PER_GPU)


def _places_overlap(one: MigPlacement, other: MigPlacement) -> bool:
    """By the size that a profile has on most models; where that is not known, they do."""
    sizes = [_profile_size(place.profile) for place in (one, other)]
    if None in sizes:
        return True
    first, second = (size or 0 for size in sizes)
    return one.start < other.start + second and other.start < one.start + first


def _profile_size(profile: str) -> int | None:
    """The largest that it has on any model of the catalogue."""
    sizes = [
        each.memory_slices for gpu in load_catalog().gpus for each in gpu.mig_profiles if each.name == profile
    ]
    return max(sizes, default=None)
