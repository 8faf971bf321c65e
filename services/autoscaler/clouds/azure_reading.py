"""Azure's answers as values of the port. Pure."""

from collections.abc import Iterable
from typing import Any

from azure.core.exceptions import HttpResponseError

from gpuloom.model.policies import CapacityType
from services.autoscaler.core.lifecycle.machines import (
    FailureKind,
    Group,
    Instance,
    InstanceState,
    LaunchFailure,
)

_CODES = {
    "AllocationFailed": FailureKind.CAPACITY,
    "ZonalAllocationFailed": FailureKind.CAPACITY,
    "OverconstrainedAllocationRequest": FailureKind.CAPACITY,
    "OverconstrainedZonalAllocationRequest": FailureKind.CAPACITY,
    "SkuNotAvailable": FailureKind.CAPACITY,
    "QuotaExceeded": FailureKind.QUOTA,
    "OperationNotAllowed": FailureKind.QUOTA,
    "TooManyRequests": FailureKind.THROTTLED,
}
_MOST_PER_SET = 1000


def error_kind(error: HttpResponseError) -> FailureKind:
    code = str(getattr(error.error, "code", "") or "")
    status = error.status_code or 0
    if code in _CODES:
        return _CODES[code]
    if status == 429:
        return FailureKind.THROTTLED
    return FailureKind.UNKNOWN if status >= 500 else FailureKind.CONFIGURATION


def group_of(scale_set: Any, pool: str) -> Group:
    profile = scale_set.virtual_machine_profile
    spot = profile is not None and profile.priority in {"Spot", "Low"}
    return Group(
        name=scale_set.name,
        pool=pool,
        desired=int(scale_set.sku.capacity or 0),
        max_size=_MOST_PER_SET,
        instance_types=(scale_set.sku.name,) if scale_set.sku.name else (),
        zones=tuple(f"{scale_set.location}-{zone}" for zone in scale_set.zones or ()),
        capacity_type=CapacityType.SPOT if spot else CapacityType.ON_DEMAND,
    )


def instance_of(machine: Any, group: Group) -> Instance:
    zone = (machine.zones or [""])[0]
    location = (machine.location or "").lower()
    return Instance(
        instance_id=f"{group.name}/{machine.instance_id}",
        provider_id=f"azure://{machine.id}",
        state=_state(machine),
        instance_type=machine.sku.name if machine.sku else "".join(group.instance_types[:1]),
        zone=f"{location}-{zone}" if zone else location,
        capacity_type=group.capacity_type or CapacityType.ON_DEMAND,
        pool=group.pool,
        group=group.name,
        launched_at=machine.time_created,
    )


def failures_of(machines: Iterable[Any], group: str) -> list[LaunchFailure]:
    return [
        LaunchFailure(group, _kind_of_machine(one), _told(one), instance_id=f"{group}/{one.instance_id}")
        for one in machines
        if one.provisioning_state == "Failed"
    ]


def is_ending(machine: Any) -> bool:
    return machine.provisioning_state in {"Deleting", "Deallocating"}


def _kind_of_machine(machine: Any) -> FailureKind:
    told = _told(machine)
    return next((kind for code, kind in _CODES.items() if code in told), FailureKind.CAPACITY)


def _told(machine: Any) -> str:
    """Azure tells why only with a further call; without it a machine has merely failed."""
    view = machine.instance_view
    statuses = (view.statuses or []) if view is not None else []
    return "; ".join(str(one.message or one.code) for one in statuses) or "the machine could not be allocated"


def _state(machine: Any) -> InstanceState:
    if is_ending(machine):
        return InstanceState.ENDING
    return InstanceState.RUNNING if machine.provisioning_state == "Succeeded" else InstanceState.PENDING
