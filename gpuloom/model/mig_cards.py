"""GPUs that can be cut, as the MIG controller shows them, and what it would take to cut them otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuloom.model.gpu import SharingMode
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import PodRef
from gpuloom.model.sharing import MigStage


@dataclass(frozen=True, slots=True)
class MigSlice:
    """`owner` is namespace/name, empty if nobody has it."""

    placement: MigPlacement
    slices: int
    stage: MigStage
    owner: str = ""


@dataclass(frozen=True, slots=True)
class GpuTenant:
    """A pod that has a GPU or a share of it, and whether that is hard, limited or accounted."""

    owner: str
    milli: int
    keeping: str


@dataclass(frozen=True, slots=True)
class MigCard:
    """`note`: what is being changed, or why nothing can be; empty if neither."""

    node_name: str
    gpu_uuid: str
    index: int
    model: str
    stage: MigStage
    memory_slices: int
    slices: tuple[MigSlice, ...] = ()
    note: str = ""
    sharing: SharingMode = SharingMode.NONE
    tenants: tuple[GpuTenant, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that waits for a slice, and what is done about it."""

    pod: PodRef
    profile: str
    note: str


@dataclass(frozen=True, slots=True)
class MigCards:
    cards: tuple[MigCard, ...] = ()
    waiting: tuple[WaitingPod, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A pod (namespace/name) that has to leave its slice. `price_usd` None: not known."""

    owner: str
    placement: MigPlacement
    price_usd: float | None = None


@dataclass(frozen=True, slots=True)
class PlannedCard:
    node_name: str
    gpu_uuid: str
    moves: tuple[PlannedMove, ...] = ()
    destroy: tuple[MigPlacement, ...] = ()
    create: tuple[MigPlacement, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedFit:
    """`there` are free already; `missing` do not fit, whatever moves.

    `stranded` would move and have no place anywhere now. `fingerprint` names the plan.
    """

    steps: tuple[PlannedCard, ...] = ()
    there: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    stranded: tuple[str, ...] = ()
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class BegunChange:
    """A change of one GPU that is held and written down."""

    id: str
    node_name: str
    gpu_uuid: str
