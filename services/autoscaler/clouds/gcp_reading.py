"""Google Cloud's answers as values of the port. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions

from gpuloom.model.policies import CapacityType
from services.autoscaler.core.lifecycle.machines import (
    FailureKind,
    Group,
    Instance,
    InstanceState,
    LaunchFailure,
)

_CODES = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": FailureKind.CAPACITY,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": FailureKind.CAPACITY,
    "RESOURCE_POOL_EXHAUSTED": FailureKind.CAPACITY,
    "STOCKOUT": FailureKind.CAPACITY,
    "QUOTA_EXCEEDED": FailureKind.QUOTA,
    "LIMIT_EXCEEDED": FailureKind.QUOTA,
    "RATE_LIMIT_EXCEEDED": FailureKind.THROTTLED,
}
_ENDING_ACTIONS = frozenset({"DELETING", "ABANDONING"})
_RUNNING = "RUNNING"
_NO_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Template:
    """What an instance template says of its machines; empty and None: not known."""

    machine_type: str = ""
    capacity_type: CapacityType | None = None


def last_part(url: str) -> str:
    return url.rsplit("/", 1)[-1]


def region_of(url: str) -> str:
    """Of a regional resource; empty for a global one."""
    _, found, rest = url.partition("/regions/")
    return rest.split("/", 1)[0] if found else ""


def error_kind(error: exceptions.GoogleAPICallError) -> FailureKind:
    reasons = {str(one.get("reason", "")) for one in error.errors if isinstance(one, dict)}
    if isinstance(error, exceptions.TooManyRequests) or "rateLimitExceeded" in reasons:
        return FailureKind.THROTTLED
    if "quotaExceeded" in reasons:
        return FailureKind.QUOTA
    if isinstance(error, exceptions.ServerError):
        return FailureKind.UNKNOWN
    return _kind_of(error.message or "", FailureKind.CONFIGURATION)


def operation_failure(operation: Any) -> tuple[FailureKind, str] | None:
    errors = list(operation.error.errors) if operation.error else []
    if not errors:
        return None
    code, message = str(errors[0].code), str(errors[0].message)
    return _kind_of(code, FailureKind.CONFIGURATION), f"{code}: {message}"


def template_of(template: Any) -> Template:
    scheduling = template.properties.scheduling
    spot = scheduling.provisioning_model == "SPOT" or bool(scheduling.preemptible)
    tier = CapacityType.SPOT if spot else CapacityType.ON_DEMAND
    return Template(last_part(template.properties.machine_type), tier)


def group_of(group: Any, pool: str, zone: str, template: Template) -> Group:
    notes = []
    if group.status.autoscaler:
        notes.append(
            f"the autoscaler of instance group {group.name} is on and would undo what is done here: "
            f"turn it off with gcloud compute instance-groups managed stop-autoscaling"
        )
    if not template.machine_type:
        notes.append(
            f"the template of instance group {group.name} is not to be found: name instanceTypes and "
            f"capacityType in the pool"
        )
    return Group(
        name=group.name,
        pool=pool,
        desired=int(group.target_size),
        max_size=_NO_LIMIT,
        instance_types=(template.machine_type,) if template.machine_type else (),
        zones=(zone,),
        capacity_type=template.capacity_type,
        notes=tuple(notes),
    )


def instance_of(managed: Any, group: Group, project: str, template: Template) -> Instance:
    name, zone = last_part(managed.instance), group.zones[0]
    return Instance(
        instance_id=name,
        provider_id=f"gce://{project}/{zone}/{name}",
        state=_state(managed),
        instance_type=template.machine_type,
        zone=zone,
        capacity_type=template.capacity_type or CapacityType.ON_DEMAND,
        pool=group.pool,
        group=group.name,
    )


def failures_of(managed: Iterable[Any], group: str) -> list[LaunchFailure]:
    return [
        LaunchFailure(
            group,
            _kind_of(str(error.code), FailureKind.CONFIGURATION),
            f"{error.code}: {error.message}",
            instance_id=last_part(one.instance),
        )
        for one in managed
        if one.instance_status != _RUNNING
        for error in list(one.last_attempt.errors.errors)[:1]
    ]


def _kind_of(text: str, otherwise: FailureKind) -> FailureKind:
    told = text.upper().replace(" ", "_")
    return next((kind for code, kind in _CODES.items() if code in told), otherwise)


def _state(managed: Any) -> InstanceState:
    if managed.current_action in _ENDING_ACTIONS:
        return InstanceState.ENDING
    if managed.instance_status in {"STOPPING", "TERMINATED", "STOPPED", "SUSPENDING", "SUSPENDED"}:
        return InstanceState.ENDING
    return InstanceState.RUNNING if managed.instance_status == _RUNNING else InstanceState.PENDING
