"""How a GPU is cut and shared, and changes of that."""

from dataclasses import dataclass, field
from enum import StrEnum

from gpuloom.model.gpu import SharingMode
from gpuloom.model.mig import MigPlacement, MigProfile


@dataclass(frozen=True, slots=True)
class Sharing:
    """How pods share a GPU that is not cut.

    Of MPS: what a client gets unless its container says less; 0 is all. Of time slicing: the driver's class
    of slice, 1 short, 2 medium, 3 long; 0 is the driver's default. `least_milli`: no share is smaller.
    """

    mode: SharingMode = SharingMode.NONE
    thread_percentage: int = 0
    memory_mib: int = 0
    time_slice: int = 0
    least_milli: int = 0


NOT_SHARED = Sharing()


@dataclass(frozen=True, slots=True)
class LaidInstance:
    """`uuid` is empty without a compute instance: nobody can use it then. `used_by`: empty if nobody."""

    placement: MigPlacement
    uuid: str = ""
    used_by: str = ""


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """A GPU as its driver shows it now. `problem`: why nothing else is known; empty if it is."""

    gpu_uuid: str
    mig_capable: bool = False
    mig_enabled: bool = False
    memory_slices: int = 0
    profiles: tuple[MigProfile, ...] = ()
    instances: tuple[LaidInstance, ...] = ()
    sharing: Sharing = NOT_SHARED
    problem: str = ""

    @property
    def placements(self) -> tuple[MigPlacement, ...]:
        return tuple(instance.placement for instance in self.instances)

    @property
    def usable(self) -> frozenset[MigPlacement]:
        """Of the instances those that containers can be given."""
        return frozenset(instance.placement for instance in self.instances if instance.uuid)


@dataclass(frozen=True, slots=True)
class LayoutRequest:
    """A change of one GPU; what is None or empty stays as it is. What is destroyed goes first."""

    id: str
    gpu_uuid: str
    mig_enabled: bool | None = None
    destroy: tuple[MigPlacement, ...] = ()
    create: tuple[MigPlacement, ...] = ()
    sharing: Sharing | None = None

    @property
    def of_whole_gpu(self) -> bool:
        """Whether more than some instances is touched."""
        return self.mig_enabled is not None or self.sharing is not None


class ChangeState(StrEnum):
    UNKNOWN = "unknown"
    APPLYING = "applying"
    ROLLING_BACK = "rolling-back"
    DONE = "done"
    ROLLED_BACK = "rolled-back"
    STUCK = "stuck"

    @property
    def ended(self) -> bool:
        return self in (ChangeState.DONE, ChangeState.ROLLED_BACK, ChangeState.STUCK)


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """A change that its node has journalled. `reason`: why it is not simply done."""

    request: LayoutRequest
    state: ChangeState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeLayouts:
    """All GPUs of a node by index, and its changes: those under way, then the newest that ended."""

    gpus: tuple[GpuLayout, ...] = ()
    changes: tuple[LayoutChange, ...] = field(default_factory=tuple)
