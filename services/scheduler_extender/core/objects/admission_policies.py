"""Whether the admission policies of the extender's chart are in force, and what is said of it. Pure.

Nodes deliver devices by an annotation. They compare it with the pod's request, but who wrote it only the API
server knows: without the policy, whoever may write pods could take a free GPU past every queue and quota.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuloom.kube.objects import JsonObject
from gpuloom.kube.parse import format_time
from gpuloom.names import CONDITION_ADMISSION_POLICIES

FIRST_VERSION = (1, 30)
"""The first Kubernetes with ValidatingAdmissionPolicy in admissionregistration.k8s.io/v1."""

APPLY = "apply deploy/manifests/admission.yaml"
_MAX_MESSAGE = 1024
_NUMBER = re.compile("[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """`installed` None: not known, for this `reason`. The reason is empty for one that is installed."""

    name: str
    installed: bool | None
    reason: str = ""


def policy_problem(name: str, policy: JsonObject | None, binding: JsonObject | None) -> str:
    """Why the policy of this name is not in force; empty if it is. None: there is no such object."""
    if policy is None:
        return f"there is no such ValidatingAdmissionPolicy: {APPLY}"
    if binding is None:
        return f"there is no such ValidatingAdmissionPolicyBinding: {APPLY}"
    if _spec(policy).get("failurePolicy") == "Ignore":
        return "its failurePolicy is Ignore, so whatever it can't evaluate passes"
    if _spec(binding).get("policyName") != name:
        return "its binding names another policy"
    actions = _spec(binding).get("validationActions")
    if not isinstance(actions, list) or "Deny" not in actions:
        return "its binding does not deny: validationActions must have Deny"
    return ""


def too_old(version: tuple[int, int] | None) -> str:
    """Why this version of Kubernetes can't have the policies; empty if it can, or is not known."""
    if version is None or version >= FIRST_VERSION:
        return ""
    shown, first = (".".join(map(str, number)) for number in (version, FIRST_VERSION))
    return f"Kubernetes {shown} has no admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy, {first} has"


def version_of(answer: JsonObject) -> tuple[int, int] | None:
    """Major and minor of what the API server says of itself. Some providers write the minor as `33+`."""
    found = [_NUMBER.match(str(answer.get(name))) for name in ("major", "minor")]
    major, minor = (None if match is None else int(match[0]) for match in found)
    return None if major is None or minor is None else (major, minor)


def missing_note(statuses: Iterable[PolicyStatus]) -> str:
    """For people who ask about a pod; empty if nothing is known to be missing."""
    told = [f"{one.name} ({one.reason})" for one in statuses if one.installed is False]
    if not told:
        return ""
    return (
        f"Admission policies that are not in force: {', '.join(told)}. Until they are, whoever may write "
        "pods may be able to take GPUs past GPULoom."
    )


def with_condition(
    present: Iterable[JsonObject], statuses: Iterable[PolicyStatus], now: datetime
) -> list[JsonObject] | None:
    """The conditions of a pod with ours in place; None if it is in place."""
    listed = list(present)
    before: Mapping[str, Any] = next(
        (entry for entry in listed if entry.get("type") == CONDITION_ADMISSION_POLICIES), {}
    )
    status, reason, message = _condition(tuple(statuses))
    wanted = {
        "type": CONDITION_ADMISSION_POLICIES,
        "status": status,
        "reason": reason,
        "message": message[:_MAX_MESSAGE],
    }
    if all(before.get(key) == value for key, value in wanted.items()):
        return None
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    ours = wanted | {"lastTransitionTime": since or format_time(now)}
    return [*(entry for entry in listed if entry.get("type") != CONDITION_ADMISSION_POLICIES), ours]


def _condition(statuses: tuple[PolicyStatus, ...]) -> tuple[str, str, str]:
    """Status, reason and message; what is missing is worse than what is not known."""
    missing = [f"{one.name}: {one.reason}" for one in statuses if one.installed is False]
    unknown = [f"{one.name}: {one.reason}" for one in statuses if one.installed is None]
    if missing:
        return "False", "PolicyMissing", "; ".join(missing)
    if unknown:
        return "Unknown", "PolicyNotReadable", "; ".join(unknown)
    return "True", "PoliciesInstalled", "every admission policy is in force"


def _spec(found: JsonObject) -> Mapping[str, Any]:
    spec = found.get("spec")
    return spec if isinstance(spec, dict) else {}
