"""A node as placement sees it: the device facts, and what the ledger's owners leave of them. Pure.

The one way to make a view: the owner of the ledger makes its own by it, and so does whoever follows the
ledger. Whatever is not known closes the node, or the GPU, with the reason.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from gpuloom.catalog import load_catalog
from gpuloom.model.gpu import GPU_UUID, MILLI_PER_GPU, DeviceRef, Gpu
from gpuloom.model.ledger import HostAccount, NodeLedger
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.model.snapshot import CLAIMED_GPU, MODE_CHANGED, NodeFacts
from gpuloom.placement.devices import GpuView, HostCapacity, NodeView
from gpuloom.placement.occupancy.claims import closed_reason
from gpuloom.placement.occupancy.holds import held_back, holds_in_force, node_hold_reason
from gpuloom.placement.occupancy.modes import mode_conflict, vanished_reason
from gpuloom.placement.occupancy.taken import NOTHING, Taken, taken_by

NO_FACTS = "no device facts from its agent"
STALE = "device facts are stale"
SLICE_GONE = "a pod has a MIG slice that the GPU no longer has"


def node_view(ledger: NodeLedger, facts: NodeFacts | None, before: NodeView | None = None) -> NodeView:
    """What the facts say, however old they are. `before` is a view of the same node made earlier, if any.

    A claim's state must not show here: a bind that is confirmed as it was begun outdates no view.
    """
    if facts is None:
        return closed_view(ledger, NO_FACTS)
    state = facts.state
    if not facts.trusted:
        reason = facts.untrusted_reasons[0]
        named = _mode_reason(ledger, state) if reason in (MODE_CHANGED, CLAIMED_GPU) else ""
        return closed_view(ledger, named or reason)
    gpus = {gpu.uuid: gpu for gpu in state.gpus}
    taken = taken_by(ledger.claims, gpus)
    unknown_device = _unknown_device(taken, gpus)
    holds = holds_in_force(ledger) if ledger.holds else ()
    if holds:
        taken = held_back(taken, holds, gpus, state.mode)
    distrust = {gpu.gpu_uuid: gpu.reason for gpu in facts.closed_gpus}
    return NodeView(
        name=ledger.node_name,
        uid=ledger.node_uid,
        mode=state.mode,
        delivery=state.delivery,
        gpus=_gpu_views(state.gpus, taken, distrust, before),
        topology=state.topology,
        closed_reason=_mode_reason(ledger, state)
        or closed_reason(ledger.claims, state)
        or unknown_device
        or node_hold_reason(holds, state.mode)
        or ledger.closed_reason,
        host=host_capacity(ledger.account),
    )


def closed_view(ledger: NodeLedger, reason: str) -> NodeView:
    """A node of which nothing is given out."""
    unknown = NodeMode.UNKNOWN, Delivery.UNKNOWN
    return NodeView(ledger.node_name, ledger.node_uid, *unknown, (), closed_reason=reason)


def host_capacity(account: HostAccount | None) -> HostCapacity | None:
    if account is None:
        return None
    return HostCapacity(
        account.cpu_total_milli,
        max(0, account.cpu_total_milli - account.cpu_used_milli),
        account.memory_total_bytes,
        max(0, account.memory_total_bytes - account.memory_used_bytes),
    )


def _mode_reason(ledger: NodeLedger, state: NodeState) -> str:
    owners = [(claim.pod, claim.mode) for claim in ledger.claims]
    return mode_conflict(state.mode, owners, state.holders) or vanished_reason(state.mode, ledger.vanished)


def _unknown_device(taken: Mapping[str, Taken], gpus: Mapping[str, Gpu]) -> str:
    """A device without the UUID of a GPU may be any; with one that the node does not show, it is none here.

    Such a GPU fell off the bus or was taken out: nothing of it can be given out, and the others are known.
    """
    nameless = any(GPU_UUID.fullmatch(device) is None for device in taken.keys() - gpus.keys())
    return "a pod on the node has a device that its agent does not show" if nameless else ""


def _gpu_views(
    gpus: Sequence[Gpu], taken: Mapping[str, Taken], distrust: Mapping[str, str], before: NodeView | None
) -> tuple[GpuView, ...]:
    """A bind changes one GPU of a node: views that would be made just as they were are used again."""
    earlier = before.gpus if before is not None and len(before.gpus) == len(gpus) else (None,) * len(gpus)
    views = []
    for gpu, known in zip(gpus, earlier, strict=True):
        used, reason = taken.get(gpu.uuid, NOTHING), distrust.get(gpu.uuid, "")
        stands = known is not None and _stands(known, gpu, used, reason)
        views.append(known if known is not None and stands else _gpu_view(gpu, used, reason))
    return tuple(views)


def _stands(view: GpuView, gpu: Gpu, taken: Taken, distrust: str) -> bool:
    """Whether `_gpu_view` would make this view again. Not asked for GPUs that are cut: those are rare."""
    return (
        view.gpu is gpu
        and not gpu.mig_instances
        and not taken.mig
        and view.free_milli == max(0, MILLI_PER_GPU - taken.milli)
        and view.free_memory_mib == max(0, gpu.memory_mib - taken.memory_mib)
        and view.closed_reason == (distrust or taken.closed_reason)
    )


def _gpu_view(gpu: Gpu, taken: Taken, distrust: str) -> GpuView:
    slices = {instance: DeviceRef(gpu.uuid, instance.placement) for instance in gpu.mig_instances}
    # Whatever was cut instead of that slice may overlap it.
    slice_gone = SLICE_GONE if taken.mig - set(slices.values()) else ""
    return GpuView(
        gpu=gpu,
        free_milli=max(0, MILLI_PER_GPU - taken.milli),
        free_memory_mib=max(0, gpu.memory_mib - taken.memory_mib),
        free_mig=tuple(
            instance
            for instance, device in slices.items()
            if not taken.milli and device not in taken.mig and not (instance.fault or instance.changing)
        ),
        mig_slices=_mig_slices(gpu.model),
        closed_reason=distrust or taken.closed_reason or slice_gone,
    )


@lru_cache(maxsize=256)
def _mig_slices(model_name: str) -> int:
    model = load_catalog().find_gpu(model_name)
    return 0 if model is None else model.mig_slices
