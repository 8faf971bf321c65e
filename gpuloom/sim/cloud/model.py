"""What the simulated cloud offers, what it has launched, and why it refuses. Values only."""

from dataclasses import dataclass
from enum import StrEnum

from gpuloom.errors import ConflictError, GpuloomError, NotReadyError, UnavailableError
from gpuloom.model.node import NodeMode


class CapacityType(StrEnum):
    ON_DEMAND = "on-demand"
    SPOT = "spot"


class InstanceState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting-down"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True, order=True)
class OfferingKey:
    instance_type: str
    zone: str
    capacity_type: CapacityType

    def __str__(self) -> str:
        return f"{self.instance_type}/{self.zone}/{self.capacity_type}"


@dataclass(frozen=True, slots=True)
class Offering:
    """`stock`: how many more can be had now; None: as many as asked for."""

    key: OfferingKey
    provider: str
    gpus: int
    nano_usd_per_hour: int
    stock: int | None = None


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    name: str
    offering: OfferingKey
    min_size: int = 0
    max_size: int = 10
    desired: int = 0
    mode: NodeMode = NodeMode.GPULOOM


@dataclass(frozen=True, slots=True)
class Instance:
    """Times are seconds since 1970. `ends_at_s`: when it shuts down by itself (an interruption)."""

    instance_id: str
    offering: OfferingKey
    mode: NodeMode
    state: InstanceState
    launched_at_s: float
    boots_at_s: float
    group: str = ""
    token: str = ""
    ends_at_s: float | None = None
    gone_at_s: float | None = None

    @property
    def node(self) -> str:
        """Its node is named like it."""
        return self.instance_id

    @property
    def provider_id(self) -> str:
        return f"simulated:///{self.offering.zone}/{self.instance_id}"


class CloudError(GpuloomError):
    """The code is what the cloud's API would say; a caller decides by the type."""

    code = "InternalError"


class NoCapacityError(CloudError, NotReadyError):
    """The cloud has none left of this type, zone and capacity type; another may do."""

    code = "InsufficientInstanceCapacity"


class QuotaError(CloudError, NotReadyError):
    """The account may have no more."""

    code = "InstanceLimitExceeded"


class ThrottledError(CloudError, NotReadyError):
    """Too many calls; nothing was done."""

    code = "RequestLimitExceeded"


class TokenReusedError(CloudError, ConflictError):
    """The idempotency token was used for another request."""

    code = "IdempotentParameterMismatch"


class InternalCloudError(CloudError, UnavailableError):
    """The call failed, or its answer was lost: it may have acted."""

    code = "InternalError"


ERRORS: dict[str, type[CloudError]] = {
    kind.code: kind
    for kind in (NoCapacityError, QuotaError, ThrottledError, TokenReusedError, InternalCloudError)
}
