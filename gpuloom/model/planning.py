"""What the extender says of what it plans ahead."""

from dataclasses import dataclass, field
from datetime import datetime

MOST_RESERVED_S = 3650 * 86_400


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


def times_problem(start: datetime | None, end: datetime | None, ttl_s: int, now: datetime) -> str:
    """Why a reservation of these times would never count; empty if it would."""
    if start is not None and end is not None and end <= start:
        return "a reservation must end after it begins"
    if end is not None and end <= now:
        return "the end of the reservation has passed already"
    if end is None and start is not None and ttl_s <= (now - start).total_seconds():
        return "the reservation would be over already: its beginning and the time that it lasts have passed"
    if ttl_s > MOST_RESERVED_S:
        return f"a reservation lasts at most {MOST_RESERVED_S // 86_400} days"
    return ""
