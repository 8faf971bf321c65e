"""What a cloud shows and what is asked of it, the same values for every cloud. Decides nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuloom.model.policies import CapacityType, CloudProvider

GROUPED = frozenset({CloudProvider.AWS, CloudProvider.GCP, CloudProvider.AZURE})
"""Clouds whose machines are known by their groups alone."""


class InstanceState(StrEnum):
    """ENDING: it was told to end and takes no more work. An instance that is gone is not shown at all."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"


class FailureKind(StrEnum):
    """Why a cloud refused. Only CAPACITY says anything about the offering itself.

    CAPACITY: none left there; another type or zone may do. QUOTA: the account or the group may have no more.
    CONFIGURATION: somebody must mend it. THROTTLED: too many calls; nothing was done. UNKNOWN: it may have
    acted.
    """

    CAPACITY = "capacity"
    QUOTA = "quota"
    CONFIGURATION = "configuration"
    THROTTLED = "throttled"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Instance:
    """One machine as the cloud lists it.

    `token` is what the request that made it carried, empty where the cloud keeps none. `group` is the cloud's
    name of the group it belongs to, empty outside any.
    """

    instance_id: str
    provider_id: str
    state: InstanceState
    instance_type: str
    zone: str
    capacity_type: CapacityType
    pool: str = ""
    group: str = ""
    token: str = ""
    launched_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A group of machines that stands for one pool. `instance_types`: what it may bring, empty if not said.

    `desired` is the size that the cloud works towards; `notes` tell people what is missing or in the way.
    """

    name: str
    pool: str
    desired: int
    max_size: int
    min_size: int = 0
    instance_types: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    capacity_type: CapacityType | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """A cloud tells of a launch that failed. `instance_id` is empty unless it names the machine."""

    group: str
    kind: FailureKind
    message: str
    at: datetime | None = None
    instance_id: str = ""


@dataclass(frozen=True, slots=True)
class CloudView:
    """All of ours that one cloud has, read at one time.

    `unread`: pools whose group can't be read, and why: what they have is not known, which is not nothing.
    """

    provider: CloudProvider
    instances: tuple[Instance, ...] = ()
    groups: tuple[Group, ...] = ()
    failures: tuple[LaunchFailure, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)

    def group_of_pool(self, pool: str) -> Group | None:
        return next((group for group in self.groups if group.pool == pool), None)

    def why_unknown(self, pool: str) -> str:
        """Why nobody can tell which machines the pool has; empty if it is known."""
        if pool in self.unread:
            return self.unread[pool]
        if self.provider in GROUPED and self.group_of_pool(pool) is None:
            return f"no group of the cloud is configured for pool {pool}"
        return ""


@dataclass(frozen=True, slots=True)
class Order:
    """One machine to be had, in two forms of the same wish, so that a repeated order buys nothing twice.

    A cloud that takes tokens is given `token`. A group is set to `size`, which counts every machine that it
    has and every claim that waits for one: an absolute number, derived from records that outlive a crash.
    """

    token: str
    pool: str
    instance_type: str
    capacity_type: CapacityType
    zone: str | None = None
    group: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class PricedOffering:
    """What a cloud itself says that it rents out, and for how much; `available` False: none left now."""

    instance_type: str
    zone: str
    capacity_type: CapacityType
    nano_usd_per_hour: int
    available: bool = True
