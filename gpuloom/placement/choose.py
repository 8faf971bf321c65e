"""Which devices of a node a pod gets. Fits exactly when `fit` says so; never changes anything."""

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef
from gpuloom.model.mig import MigInstance
from gpuloom.model.request import GpuRequest, PodRequest, RequestKind
from gpuloom.placement.devices import GpuView, NodeView, usable_milli
from gpuloom.placement.fit import Fit, Refusal, fit, instance_milli, serves, share_memory_mib
from gpuloom.placement.potential import Prices, neutral_prices


def choose_devices(
    request: PodRequest, node: NodeView, prices: Prices | None = None
) -> tuple[AllocatedDevice, ...] | Refusal:
    """Whole GPUs by the topology table, a share on the card whose rest is then worth most, MIG slices where
    fewest are free.
    """
    outcome = fit(request, node)
    if isinstance(outcome, Refusal):
        return outcome
    gpu = request.gpu
    if gpu.kind is RequestKind.WHOLE:
        chosen = chosen_cards(gpu, node, outcome)
        return tuple(_whole(view) for i, view in enumerate(node.gpus) if chosen >> i & 1)
    if gpu.kind is RequestKind.SHARE:
        position = chosen_card(gpu, node, outcome, prices or neutral_prices())
        return (_share(gpu, node.gpus[position]),)
    return tuple(_slice(gpu, view, instance) for view, instance in chosen_slices(gpu, node, outcome))


def chosen_cards(gpu: GpuRequest, node: NodeView, outcome: Fit) -> int:
    """The mask of the whole cards to give."""
    return node.links.best(outcome.mask, gpu.count, gpu.topology, gpu.topology_required)


def chosen_card(gpu: GpuRequest, node: NodeView, outcome: Fit, prices: Prices) -> int:
    """The position of the card where the share costs least; of equals the one that is used most already."""

    def order(position: int) -> tuple[int, int, int, int]:
        view = node.gpus[position]
        before, after = view.free_share_milli, share_left_milli(gpu, view)
        rise = int(prices.card_micro[after]) - int(prices.card_micro[before])
        return rise, view.free_milli, view.free_memory_mib, position

    return min(outcome.positions, key=order)


def share_left_milli(gpu: GpuRequest, view: GpuView) -> int:
    """What can still be used of the card once the share is taken."""
    left_mib = view.free_memory_mib - share_memory_mib(gpu, view.gpu)
    return usable_milli(view.free_milli - gpu.milli, left_mib, view.gpu.memory_mib)


def chosen_slices(gpu: GpuRequest, node: NodeView, outcome: Fit) -> list[tuple[GpuView, MigInstance]]:
    """Free instances, from the GPU with the fewest free ones, so that the others can still be cut anew."""
    views = sorted((node.gpus[i] for i in outcome.positions), key=lambda v: (len(v.free_mig), v.gpu.index))
    free = [
        (view, instance)
        for view in views
        for instance in sorted(view.free_mig, key=lambda instance: instance.placement)
        if serves(gpu, view, instance)
    ]
    return free[: gpu.count]


def _whole(view: GpuView) -> AllocatedDevice:
    return AllocatedDevice(DeviceRef(view.gpu.uuid), MILLI_PER_GPU, view.gpu.memory_mib)


def _share(gpu: GpuRequest, view: GpuView) -> AllocatedDevice:
    return AllocatedDevice(DeviceRef(view.gpu.uuid), gpu.milli, share_memory_mib(gpu, view.gpu))


def _slice(gpu: GpuRequest, view: GpuView, instance: MigInstance) -> AllocatedDevice:
    return AllocatedDevice(
        DeviceRef(view.gpu.uuid, instance.placement), instance_milli(gpu, view, instance), instance.memory_mib
    )
