"""What Azure's scheduled events say, as notices. Pure.

Events of other machines of the same scale set are in the answer too, so only those that name this machine
count. Reboot, Redeploy and Freeze leave the machine to us: they are no notices.
"""

from datetime import UTC, datetime
from typing import Any

from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from services.node_agent.spot.core.answers.document import ascii_text, json_object, malformed, rfc_1123_time
from services.node_agent.spot.core.clouds import Cloud

_LONGEST_NAME = 253
# Preempt takes a spot machine away; Terminate deletes one of a scale set that notifies of it.
_ENDING_EVENTS = ("preempt", "terminate")
_NOW = datetime.min.replace(tzinfo=UTC)


def machine_name_from(body: bytes) -> str:
    """`instance/compute/name`."""
    return ascii_text(body, _LONGEST_NAME)


def notice_from(body: bytes, machine_name: str) -> SpotNotice | None:
    """`scheduledevents`: of several ends of this machine the first."""
    events = json_object(body).get("Events")
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise malformed("the scheduled events are not a list of events")
    ends = [end for event in events if (end := _end_of(event, machine_name)) is not None]
    return min(ends, key=lambda end: (end.time or _NOW, end.action), default=None)


def _end_of(event: dict[str, Any], machine_name: str) -> SpotNotice | None:
    kind, resources = event.get("EventType"), event.get("Resources")
    if not isinstance(kind, str) or kind.lower() not in _ENDING_EVENTS or not isinstance(resources, list):
        return None
    if not any(_is_named(resource, machine_name) for resource in resources):
        return None
    # An event that has started has an empty NotBefore.
    return SpotNotice(
        SpotNoticeKind.INTERRUPTION, rfc_1123_time(event.get("NotBefore")), Cloud.AZURE, kind.lower()
    )


def _is_named(resource: object, machine_name: str) -> bool:
    """Names differ in letter case from place to place; in availability sets they may begin with `_`."""
    if not isinstance(resource, str):
        return False
    return resource.removeprefix("_").casefold() == machine_name.removeprefix("_").casefold()
