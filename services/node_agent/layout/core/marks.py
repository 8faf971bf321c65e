"""What the node's state shows of changes: which GPUs and instances must not be given out meanwhile. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuloom.model.gpu import Gpu
from gpuloom.model.layout import LayoutRequest, Sharing
from gpuloom.model.mig import MigInstance, MigPlacement

NO_COMPUTE = "it has no compute instance, so no container can use it"


@dataclass(frozen=True, slots=True)
class Mark:
    """`placements` are touched; None: the whole GPU is."""

    text: str
    placements: frozenset[MigPlacement] | None = None


def mark_of(request: LayoutRequest, *, back: bool = False) -> Mark:
    touched = None if request.of_whole_gpu else frozenset(request.destroy) | frozenset(request.create)
    return Mark("a change of its layout is being undone" if back else "its layout is being changed", touched)


def marked(
    gpus: tuple[Gpu, ...], marks: Mapping[str, Mark], sharing: Mapping[str, Sharing]
) -> tuple[Gpu, ...]:
    """The GPUs with exactly these marks, whichever they had, and with how they are shared."""
    return tuple(_gpu(gpu, marks.get(gpu.uuid), sharing.get(gpu.uuid, Sharing())) for gpu in gpus)


def _gpu(gpu: Gpu, mark: Mark | None, sharing: Sharing) -> Gpu:
    changing = mark.text if mark is not None and mark.placements is None else ""
    instances = tuple(_instance(instance, mark) for instance in gpu.mig_instances)
    found = replace(
        gpu, mig_instances=instances, changing=changing, sharing=sharing.mode, least_milli=sharing.least_milli
    )
    # Whoever compares by identity sees that nothing changed.
    return gpu if found == gpu else found


def _instance(instance: MigInstance, mark: Mark | None) -> MigInstance:
    touched = mark is not None and mark.placements is not None and instance.placement in mark.placements
    fault = instance.fault or ("" if instance.uuid else NO_COMPUTE)
    return replace(instance, changing=mark.text if mark is not None and touched else "", fault=fault)
