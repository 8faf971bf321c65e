"""What the extender says of what it plans ahead."""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class GangReport:
    """How far a gang is. `size` 0: nobody says. `reason`: why its pods may not be bound now, if so."""

    name: str
    phase: str
    size: int
    waiting: int
    bound: int
    reserved: int
    priority: int
    reason: str = ""
    nodes: tuple[str, ...] = ()
    deadline: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReservationReport:
    """A GPUReservation. `start` None: at once. `state` empty: nobody has looked at it yet."""

    namespace: str
    name: str
    gpu_count: int = 1
    count: int = 1
    gpu_memory_mib: int = 0
    gpu_model: str = ""
    architecture: str = ""
    mig_profile: str = ""
    start: datetime | None = None
    end: datetime | None = None
    match_labels: dict[str, str] = field(default_factory=dict)
    state: str = ""
    reserved: int = 0
    nodes: tuple[str, ...] = ()
