"""GPUHold, GPUNodeClaim and GPUReservation: capacity that is held, asked for, or kept free."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuloom.model.mig import MigPlacement
from gpuloom.model.objects import Condition, LabelSelector, ObjectMeta
from gpuloom.model.policies import CapacityType


@dataclass(frozen=True, slots=True)
class HoldTarget:
    """A place of a MIG instance, else a GPU or a share of it, else the whole node.

    `node_uid` None: any node of that name.
    """

    node_name: str
    node_uid: str | None = None
    gpu_uuid: str | None = None
    mig: MigPlacement | None = None
    milli: int = 1000
    """Of the GPU; a share of it where it is less."""
    memory_mib: int | None = None
    """None: all of it, or in proportion to `milli`."""


@dataclass(frozen=True, slots=True)
class HoldOwner:
    kind: str
    name: str
    namespace: str | None = None
    uid: str | None = None


@dataclass(frozen=True, slots=True)
class GpuHoldSpec:
    target: HoldTarget
    owner: HoldOwner
    reason: str
    expires: datetime | None = None
    """None: when it is deleted."""
    taken_by: str | None = None
    """The service that took it; None: somebody else wrote it."""


@dataclass(frozen=True, slots=True)
class GpuHoldStatus:
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuHold:
    meta: ObjectMeta
    spec: GpuHoldSpec
    status: GpuHoldStatus = field(default_factory=GpuHoldStatus)


class ClaimState(StrEnum):
    REQUESTED = "Requested"
    LAUNCHED = "Launched"
    REGISTERED = "Registered"
    GPU_READY = "GPUReady"
    DRAINING = "Draining"
    GONE = "Gone"


@dataclass(frozen=True, slots=True)
class ClaimOffering:
    instance_type: str
    capacity_type: CapacityType
    zone: str | None = None
    """None: the cloud chooses."""


@dataclass(frozen=True, slots=True)
class GpuNodeClaimSpec:
    """`token` goes with the request to the cloud, so that a repeated one rents no second machine."""

    policy_name: str
    pool_name: str
    offering: ClaimOffering
    gpu_model: str
    gpu_count: int
    token: str


@dataclass(frozen=True, slots=True)
class GpuNodeClaimStatus:
    """A time that is None has not come yet."""

    state: ClaimState | None = None
    node_name: str | None = None
    instance_id: str | None = None
    price_nano_usd_per_hour: int | None = None
    requested: datetime | None = None
    launched: datetime | None = None
    registered: datetime | None = None
    gpu_ready: datetime | None = None
    draining: datetime | None = None
    gone: datetime | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuNodeClaim:
    meta: ObjectMeta
    spec: GpuNodeClaimSpec
    status: GpuNodeClaimStatus = field(default_factory=GpuNodeClaimStatus)


class ReservationState(StrEnum):
    PENDING = "Pending"
    ACTIVE = "Active"
    EXPIRED = "Expired"


@dataclass(frozen=True, slots=True)
class ReservedRequest:
    """What each reserved place has; `gpu_count` counts MIG instances where `mig_profile` is set."""

    gpu_count: int = 1
    gpu_memory_mib: int | None = None
    gpu_model: str | None = None
    architecture: str | None = None
    mig_profile: str | None = None


@dataclass(frozen=True, slots=True)
class GpuReservationSpec:
    """It ends at `until`, or `ttl_s` after it has begun: one of them is set. `start` None: at once."""

    request: ReservedRequest = field(default_factory=ReservedRequest)
    count: int = 1
    start: datetime | None = None
    until: datetime | None = None
    ttl_s: int | None = None
    selector: LabelSelector = field(default_factory=LabelSelector)


@dataclass(frozen=True, slots=True)
class GpuReservationStatus:
    state: ReservationState | None = None
    reserved: int | None = None
    nodes: tuple[str, ...] = ()
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class GpuReservation:
    meta: ObjectMeta
    spec: GpuReservationSpec
    status: GpuReservationStatus = field(default_factory=GpuReservationStatus)
