"""Pods as controllers see them: made from a template, counted, and ranked for removal. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson

from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.kube.parse import parse_time

_TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
# As Kubernetes' own: no vowels, so that no hash reads as a word.
_HASH_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_HASH_LENGTH = 10


def owner_reference(owner: JsonObject) -> JsonObject:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata_of(owner)["name"],
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controller_of(obj: JsonObject) -> JsonObject | None:
    """The owner reference of the controller that manages the object."""
    owners = metadata_of(obj).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def is_controlled_by(obj: JsonObject, owner: JsonObject) -> bool:
    reference = controller_of(obj)
    return reference is not None and reference.get("uid") == uid_of(owner)


def pod_from_template(owner: JsonObject, metadata: JsonObject) -> JsonObject:
    """`metadata` adds to the template's labels and annotations, and gives the rest as it is."""
    template = spec_of(owner).get("template") or {}
    given = metadata_of(template)
    merged = {
        field: {**(given.get(field) or {}), **(metadata.get(field) or {})}
        for field in ("labels", "annotations")
    }
    return {
        "metadata": {
            **{field: values for field, values in merged.items() if values},
            **{key: value for key, value in metadata.items() if key not in merged},
            "namespace": metadata_of(owner)["namespace"],
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": template.get("spec") or {},
    }


def template_hash(template: Mapping[str, Any]) -> str:
    """Equal templates, equal hashes."""
    number = int.from_bytes(hashlib.sha256(orjson.dumps(template, option=orjson.OPT_SORT_KEYS)).digest()[:8])
    letters = []
    for _ in range(_HASH_LENGTH):
        number, letter = divmod(number, len(_HASH_ALPHABET))
        letters.append(_HASH_ALPHABET[letter])
    return "".join(letters)


def spec_of(obj: JsonObject) -> JsonObject:
    spec = obj.get("spec")
    return spec if isinstance(spec, dict) else {}


def status_of(obj: JsonObject) -> JsonObject:
    status = obj.get("status")
    return status if isinstance(status, dict) else {}


def phase_of(pod: JsonObject) -> str:
    return str(status_of(pod).get("phase") or "Pending")


def is_terminal(pod: JsonObject) -> bool:
    return phase_of(pod) in _TERMINAL_PHASES


def is_deleting(obj: JsonObject) -> bool:
    return bool(metadata_of(obj).get("deletionTimestamp"))


def is_active(pod: JsonObject) -> bool:
    return not is_terminal(pod) and not is_deleting(pod)


def is_ready(pod: JsonObject) -> bool:
    return condition_status(status_of(pod), "Ready") == "True"


def condition_status(status: JsonObject, kind: str) -> str:
    return str(_condition(status, kind).get("status", ""))


def with_condition(status: JsonObject, condition: JsonObject, now_text: str) -> list[JsonObject]:
    """The conditions with this one set; its transition time moves only if its status did."""
    others = [one for one in status.get("conditions") or () if one.get("type") != condition["type"]]
    old = _condition(status, condition["type"])
    if old and old.get("status") == condition["status"]:
        kept = {"lastTransitionTime": old.get("lastTransitionTime", now_text)}
        return [*others, {**old, **condition, **kept}]
    return [*others, {**condition, "lastTransitionTime": now_text}]


def least_wanted_first(pods: Sequence[JsonObject]) -> list[JsonObject]:
    """The order in which surplus pods go: those that do the least, then the newest."""
    return sorted(
        sorted(pods, key=lambda pod: (_created(pod), metadata_of(pod)["name"]), reverse=True),
        key=lambda pod: (bool(spec_of(pod).get("nodeName")), phase_of(pod) == "Running", is_ready(pod)),
    )


def available_replicas(pods: Sequence[JsonObject], min_ready_s: int, now: datetime) -> int:
    return sum(is_available(pod, min_ready_s, now) for pod in pods)


def is_available(pod: JsonObject, min_ready_s: int, now: datetime) -> bool:
    return is_ready(pod) and available_in_s(pod, min_ready_s, now) <= 0


def available_in_s(pod: JsonObject, min_ready_s: int, now: datetime) -> float:
    """How long a ready pod must stay ready until it counts as available."""
    since = moment(_condition(status_of(pod), "Ready").get("lastTransitionTime"))
    if not min_ready_s or since is None:
        return float(min_ready_s) if since is None else 0.0
    return min_ready_s - (now - since).total_seconds()


def moment(text: Any) -> datetime | None:
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None


def _condition(status: JsonObject, kind: str) -> JsonObject:
    """Empty if there is none of that type."""
    found: list[JsonObject] = [one for one in status.get("conditions") or () if one.get("type") == kind]
    return found[0] if found else {}


def _created(pod: JsonObject) -> str:
    return str(metadata_of(pod).get("creationTimestamp") or "")
