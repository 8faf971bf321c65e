"""What an owner is known to have on a node, and when that closes the node. Pure.

A claim is what the ledger says; here it meets what the node itself shows of its holders.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef
from gpuloom.model.ledger import Claim, EntryState
from gpuloom.model.node import Holder, HolderSource, NodeMode, NodeState

UNRESERVED = "a GPU pod that was deleted by force may still run, and the kubelet may give its GPUs to others"


def with_holders(claim: Claim, holders: Iterable[Holder]) -> Claim:
    """The claim as its node confirms it.

    Advisory or unknown devices are replaced by what the kubelet chose; while it shows only some of them, the
    rest stays a prediction. An exact allocation is widened by anything the pod holds beyond it, because both
    are then in use.
    """
    mine = [holder for holder in holders if holder.pod.uid == claim.pod.uid]
    if not mine:
        return claim
    held = {device: None for holder in mine for device in holder.devices}
    shown, count = tuple(_whole(device) for device in held), _count(mine)
    claim = replace(claim, unlisted=claim.unlisted[max(0, count - (claim.wanted or 0)) :])
    if claim.devices is None:
        complete = not claim.problem and claim.wanted is not None and count >= claim.wanted
        return replace(claim, devices=shown, confirmed=True) if complete else claim
    if claim.advisory:
        missing = max(0, len(claim.devices) - count)
        rest = tuple(allocated for allocated in claim.devices if allocated.device not in held)[:missing]
        return replace(claim, devices=shown + rest, advisory=bool(rest), confirmed=not rest)
    given = {allocated.device for allocated in claim.devices}
    extra = tuple(allocated for allocated in shown if allocated.device not in given)
    return replace(claim, devices=claim.devices + extra, confirmed=True)


def held_claims(holders: Iterable[Holder], owners: frozenset[str] | set[str]) -> tuple[Claim, ...]:
    """Claims for holders that no pod of ours accounts for: a vanished pod, a foreign process."""
    return tuple(
        Claim(
            holder.pod,
            EntryState.HELD,
            tuple(_whole(device) for device in holder.devices),
            confirmed=True,
            mode=holder.source.mode,
            # It was given these devices, and is not in Kubernetes: its kubelet has forgotten it, or will.
            unreserved=bool(holder.pod.uid) and holder.source is not HolderSource.PROCESS,
        )
        for holder in holders
        if not holder.pod.uid or holder.pod.uid not in owners
    )


def closed_reason(claims: Iterable[Claim], state: NodeState) -> str:
    """Why the whole node is closed by its claims; empty if it is not."""
    for claim in claims:
        if claim.problem:
            return f"a GPU pod on the node can't be accounted for: {claim.problem}"
        if claim.devices is None:
            return "the devices of a GPU pod on the node are not known yet"
        if claim.unreserved and state.mode is NodeMode.NVIDIA:
            # Whichever card we leave free, the kubelet may choose the one that is still in use.
            blind = state.presence.unknown_reason
            return f"{UNRESERVED}; it can't be seen whether it does: {blind}" if blind else UNRESERVED
    return ""


def _count(holders: Sequence[Holder]) -> int:
    """How many devices they hold together, as requests count them."""
    given = [holder for holder in holders if holder.source is HolderSource.KUBELET]
    listed = {device for holder in given for device in holder.devices}
    others = {device for holder in holders for device in holder.devices} - listed
    return sum(holder.count for holder in given) + len(others)


def _whole(device: DeviceRef) -> AllocatedDevice:
    """A holder that is only seen, not given, counts as the whole device; 0 MiB stands for all of it."""
    return AllocatedDevice(device, MILLI_PER_GPU, 0)
