"""Conditions in a status, and finalizers, as the conventions of Kubernetes' API have them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuloom.kube.objects import JsonObject, metadata_of, resource_version_of

MAX_MESSAGE = 1024
MAX_REASON = 128


@dataclass(frozen=True, slots=True)
class Condition:
    """`status` None: Unknown. `reason` is one CamelCase word for programs, `message` is for people."""

    type: str
    status: bool | None
    reason: str
    message: str = ""


def with_conditions(
    before: Sequence[JsonObject], conditions: Sequence[Condition], generation: int, now: datetime
) -> list[JsonObject]:
    """The list with these set, in the order of their types; those of other types stay as they are.

    `lastTransitionTime` changes only with the status, so that nothing is written when nothing is new.
    """
    by_type = {str(known.get("type")): known for known in before if isinstance(known, dict)}
    for condition in conditions:
        by_type[condition.type] = _entry(by_type.get(condition.type, {}), condition, generation, now)
    return [by_type[name] for name in sorted(by_type)]


def status_patch(obj: JsonObject, status: JsonObject) -> JsonObject | None:
    """A merge patch that makes the object's status say this; None if it does.

    A field that is None is taken away. Which generation it is about, conditions say: a field that the
    schema does not have would be dropped by the server, and written again and again.
    """
    present = obj.get("status") or {}
    changed = {name: value for name, value in status.items() if present.get(name) != value}
    return {"status": changed} if changed else None


def with_finalizer(obj: JsonObject, finalizer: str) -> JsonObject | None:
    """A merge patch that adds it; None if it is there, or too late because the object is being deleted."""
    present = metadata_of(obj).get("finalizers") or []
    if finalizer in present or metadata_of(obj).get("deletionTimestamp"):
        return None
    return _finalizers_patch(obj, [*present, finalizer])


def without_finalizer(obj: JsonObject, finalizer: str) -> JsonObject | None:
    """A merge patch that takes it away; None if it is not there."""
    present = metadata_of(obj).get("finalizers") or []
    if finalizer not in present:
        return None
    return _finalizers_patch(obj, [name for name in present if name != finalizer])


def is_deleting(obj: JsonObject) -> bool:
    return bool(metadata_of(obj).get("deletionTimestamp"))


def _finalizers_patch(obj: JsonObject, finalizers: list[str]) -> JsonObject:
    """Bound to the version it was made from: a merge patch replaces the list, which others write, too."""
    return {"metadata": {"finalizers": finalizers, "resourceVersion": resource_version_of(obj)}}


def _entry(before: JsonObject, condition: Condition, generation: int, now: datetime) -> JsonObject:
    status = {True: "True", False: "False", None: "Unknown"}[condition.status]
    unchanged = before.get("status") == status and before.get("lastTransitionTime")
    return {
        "type": condition.type,
        "status": status,
        "reason": condition.reason[:MAX_REASON],
        "message": condition.message[:MAX_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if unchanged else _time_text(now),
    }


def _time_text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
