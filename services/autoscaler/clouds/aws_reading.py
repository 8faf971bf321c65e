"""AWS's answers as values of the port. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from gpuloom.model.policies import CapacityType
from services.autoscaler.core.lifecycle.machines import (
    FailureKind,
    Group,
    Instance,
    InstanceState,
    LaunchFailure,
)

_CODES = {
    "InsufficientInstanceCapacity": FailureKind.CAPACITY,
    "InsufficientHostCapacity": FailureKind.CAPACITY,
    "InsufficientReservedInstanceCapacity": FailureKind.CAPACITY,
    "UnfulfillableCapacity": FailureKind.CAPACITY,
    "SpotMaxPriceTooLow": FailureKind.CAPACITY,
    "MaxSpotInstanceCountExceeded": FailureKind.QUOTA,
    "VcpuLimitExceeded": FailureKind.QUOTA,
    "InstanceLimitExceeded": FailureKind.QUOTA,
    "LimitExceeded": FailureKind.QUOTA,
    "ResourceContention": FailureKind.THROTTLED,
    "ScalingActivityInProgress": FailureKind.THROTTLED,
    "Throttling": FailureKind.THROTTLED,
    "ThrottlingException": FailureKind.THROTTLED,
    "RequestLimitExceeded": FailureKind.THROTTLED,
    "RequestThrottled": FailureKind.THROTTLED,
    "InternalFailure": FailureKind.UNKNOWN,
    "InternalError": FailureKind.UNKNOWN,
    "ServiceUnavailable": FailureKind.UNKNOWN,
}
_NOT_ALLOWED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
# What a scaling activity says in words only.
_WORDS = (
    ("insufficient capacity", FailureKind.CAPACITY),
    ("do not have sufficient", FailureKind.CAPACITY),
    ("no spot capacity", FailureKind.CAPACITY),
    ("could not launch spot instances", FailureKind.CAPACITY),
    ("limit", FailureKind.QUOTA),
    ("quota", FailureKind.QUOTA),
    ("exceeded", FailureKind.QUOTA),
    ("throttl", FailureKind.THROTTLED),
)


def error_kind(error: ClientError) -> FailureKind:
    code = str(error.response.get("Error", {}).get("Code", ""))
    if code in _CODES:
        return _CODES[code]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return FailureKind.UNKNOWN if status >= 500 else FailureKind.CONFIGURATION


def is_not_allowed(error: ClientError) -> bool:
    return error.response.get("Error", {}).get("Code") in _NOT_ALLOWED


def is_missing_instance(error: ClientError) -> bool:
    told = error.response.get("Error", {})
    return told.get("Code") == "ValidationError" and "not found" in str(told.get("Message", "")).lower()


def group_of(group: Mapping[str, Any], pool: str, notes: tuple[str, ...]) -> Group:
    warnings = list(notes)
    if not group.get("NewInstancesProtectedFromScaleIn"):
        warnings.append(
            f"{group['AutoScalingGroupName']} does not protect new instances from scale-in: when zones are "
            f"rebalanced AWS may end nodes that were not drained"
        )
    return Group(
        name=group["AutoScalingGroupName"],
        pool=pool,
        desired=int(group["DesiredCapacity"]),
        max_size=int(group["MaxSize"]),
        min_size=int(group["MinSize"]),
        instance_types=_types(group),
        zones=tuple(sorted(group.get("AvailabilityZones") or ())),
        capacity_type=_group_tier(group),
        notes=tuple(warnings),
    )


def instance_of(
    listed: Mapping[str, Any], details: Mapping[str, Any], group: Mapping[str, Any], pool: str
) -> Instance:
    spot = details.get("InstanceLifecycle") == "spot" or _group_tier(group) is CapacityType.SPOT
    zone = listed["AvailabilityZone"]
    return Instance(
        instance_id=listed["InstanceId"],
        provider_id=f"aws:///{zone}/{listed['InstanceId']}",
        state=_state(listed["LifecycleState"], details),
        instance_type=listed.get("InstanceType") or details.get("InstanceType") or "",
        zone=zone,
        capacity_type=CapacityType.SPOT if spot else CapacityType.ON_DEMAND,
        pool=pool,
        group=group["AutoScalingGroupName"],
        launched_at=details.get("LaunchTime"),
    )


def failures_of(activities: Iterable[Mapping[str, Any]], group: str) -> list[LaunchFailure]:
    return [
        LaunchFailure(group, _kind_of_words(one), str(one.get("StatusMessage") or ""), one.get("StartTime"))
        for one in activities
        if one.get("StatusCode") in {"Failed", "Cancelled"}
        and str(one.get("Description", "")).startswith("Launching")
    ]


def _kind_of_words(activity: Mapping[str, Any]) -> FailureKind:
    message = str(activity.get("StatusMessage") or "").lower()
    for code, kind in _CODES.items():
        if code.lower() in message:
            return kind
    return next((kind for words, kind in _WORDS if words in message), FailureKind.CONFIGURATION)


def _types(group: Mapping[str, Any]) -> tuple[str, ...]:
    """By the group's own list, else by what it has; a launch template's type takes a further permission."""
    template = (group.get("MixedInstancesPolicy") or {}).get("LaunchTemplate") or {}
    listed = [one["InstanceType"] for one in template.get("Overrides") or () if one.get("InstanceType")]
    return tuple(dict.fromkeys(listed or [one["InstanceType"] for one in group["Instances"]]))


def _group_tier(group: Mapping[str, Any]) -> CapacityType | None:
    distribution = (group.get("MixedInstancesPolicy") or {}).get("InstancesDistribution")
    if not distribution:
        return None
    percentage = distribution.get("OnDemandPercentageAboveBaseCapacity", 100)
    if distribution.get("OnDemandBaseCapacity", 0) or percentage not in {0, 100}:
        return None
    return CapacityType.ON_DEMAND if percentage else CapacityType.SPOT


def _state(lifecycle: str, details: Mapping[str, Any]) -> InstanceState:
    if lifecycle.startswith(("Terminat", "Detach")):
        return InstanceState.ENDING
    if (details.get("State") or {}).get("Name") in {"shutting-down", "terminated", "stopping", "stopped"}:
        return InstanceState.ENDING
    return InstanceState.PENDING if lifecycle.startswith("Pending") else InstanceState.RUNNING
