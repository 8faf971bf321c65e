"""A Deployment has one ReplicaSet per template and moves pods from the old ones to the newest. Pure.

Acts only on ReplicaSets whose status is as new as their spec. No progress deadline is kept.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.parse import format_time
from gpuloom.kube.resources import DEPLOYMENTS, REPLICASETS
from gpuloom.sim.controllers.decision import (
    Action,
    Create,
    Decision,
    delete_object,
    patch_object,
    write_status,
)
from gpuloom.sim.controllers.pods import (
    is_deleting,
    owner_reference,
    spec_of,
    status_of,
    template_hash,
    with_condition,
)

LABEL_HASH = "pod-template-hash"
ANNOTATION_REVISION = "deployment.kubernetes.io/revision"
_KEPT_REVISIONS = 10


@dataclass(frozen=True, slots=True)
class Rollout:
    """`newest` is the ReplicaSet of the present template, None until it is made."""

    wanted: int
    max_surge: int
    max_unavailable: int
    newest: JsonObject | None
    old: tuple[JsonObject, ...]

    @property
    def every(self) -> tuple[JsonObject, ...]:
        return self.old if self.newest is None else (*self.old, self.newest)

    @property
    def most(self) -> int:
        return self.wanted + self.max_surge

    @property
    def least_available(self) -> int:
        return self.wanted - self.max_unavailable


def plan_deployment(deployment: JsonObject, replica_sets: Sequence[JsonObject], now: datetime) -> Decision:
    """`replica_sets` are those that it controls."""
    if is_deleting(deployment):
        return Decision()
    rollout = _rollout(deployment, replica_sets)
    actions: list[Action] = []
    if all(map(_is_observed, rollout.every)):
        actions = _steps(deployment, rollout)
    status = _status(deployment, rollout, now)
    return Decision((*actions, *write_status(DEPLOYMENTS, deployment, status)))


def _steps(deployment: JsonObject, rollout: Rollout) -> list[Action]:
    spec = spec_of(deployment)
    recreates = (spec.get("strategy") or {}).get("type") == "Recreate"
    if spec.get("paused"):
        return []
    if recreates and any(_replicas(one) or _pods(one) for one in rollout.old):
        return [_scale(one, 0) for one in rollout.old if _replicas(one)]
    if rollout.newest is None:
        return [_new_replica_set(deployment, rollout)]
    grown = _grown(rollout, rollout.newest)
    if grown != _replicas(rollout.newest):
        return [_scale(rollout.newest, grown)]
    return _scale_down(rollout, rollout.newest) or _forget(spec, rollout)


def _grown(rollout: Rollout, newest: JsonObject) -> int:
    """How many pods the newest ReplicaSet may have, so that all together are not too many."""
    present = _replicas(newest)
    if present >= rollout.wanted:
        return rollout.wanted
    room = rollout.most - sum(map(_replicas, rollout.every))
    return min(rollout.wanted, present + max(0, room))


def _scale_down(rollout: Rollout, newest: JsonObject) -> list[Action]:
    """Take from the old ones: what is not available costs nothing, the rest only while enough is left."""
    not_yet_available = _replicas(newest) - _available(newest)
    room = sum(map(_replicas, rollout.every)) - rollout.least_available - not_yet_available
    actions: list[Action] = []
    spare = sum(map(_available, rollout.every)) - rollout.least_available
    for one in sorted(rollout.old, key=_revision):
        unhealthy = min(room, _replicas(one) - _available(one))
        healthy = min(room - unhealthy, max(0, spare), _available(one))
        if unhealthy + healthy > 0:
            actions.append(_scale(one, _replicas(one) - unhealthy - healthy))
            room -= unhealthy + healthy
            spare -= healthy
    return actions


def _forget(spec: JsonObject, rollout: Rollout) -> list[Action]:
    kept = int(spec.get("revisionHistoryLimit", _KEPT_REVISIONS))
    empty = [one for one in rollout.old if not _replicas(one) and not _pods(one) and not is_deleting(one)]
    surplus = len(rollout.old) - kept
    return [delete_object(REPLICASETS, one) for one in sorted(empty, key=_revision)[: max(0, surplus)]]


def _rollout(deployment: JsonObject, replica_sets: Sequence[JsonObject]) -> Rollout:
    spec = spec_of(deployment)
    wanted = int(spec.get("replicas", 1))
    limits = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    max_surge = _amount(limits.get("maxSurge", "25%"), wanted, up=True)
    max_unavailable = min(wanted, _amount(limits.get("maxUnavailable", "25%"), wanted, up=False))
    if not max_surge and not max_unavailable:
        max_unavailable = min(wanted, 1)
    name = _replica_set_name(deployment)
    return Rollout(
        wanted=wanted,
        max_surge=max_surge,
        max_unavailable=max_unavailable,
        newest=next((one for one in replica_sets if metadata_of(one)["name"] == name), None),
        old=tuple(one for one in replica_sets if metadata_of(one)["name"] != name),
    )


def _new_replica_set(deployment: JsonObject, rollout: Rollout) -> Create:
    spec, name = spec_of(deployment), _replica_set_name(deployment)
    template = spec.get("template") or {}
    hashed = {LABEL_HASH: template_hash(template)}
    metadata = metadata_of(template)
    labels = {**(metadata.get("labels") or {}), **hashed}
    selector = spec.get("selector") or {}
    revision = max(map(_revision, rollout.old), default=0) + 1
    room = max(0, rollout.most - sum(map(_replicas, rollout.old)))
    obj = {
        "metadata": {
            "name": name,
            "namespace": metadata_of(deployment)["namespace"],
            "labels": labels,
            "annotations": {ANNOTATION_REVISION: str(revision)},
            "ownerReferences": [owner_reference(deployment)],
        },
        "spec": {
            "replicas": min(rollout.wanted, room),
            "minReadySeconds": int(spec.get("minReadySeconds") or 0),
            "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), **hashed}},
            "template": {**template, "metadata": {**metadata, "labels": labels}},
        },
    }
    return Create(REPLICASETS, obj)


def _status(deployment: JsonObject, rollout: Rollout, now: datetime) -> JsonObject:
    old = status_of(deployment)
    pods, available = sum(map(_pods, rollout.every)), sum(map(_available, rollout.every))
    updated = _pods(rollout.newest) if rollout.newest is not None else 0
    counts = {
        "replicas": pods,
        "updatedReplicas": updated,
        "readyReplicas": sum(int(status_of(one).get("readyReplicas") or 0) for one in rollout.every),
        "availableReplicas": available,
        "unavailableReplicas": max(0, sum(map(_replicas, rollout.every)) - available),
    }
    done = updated == pods == available == rollout.wanted
    conditions = old
    for condition in (_availability(available >= rollout.least_available), _progress(done)):
        conditions = {"conditions": with_condition(conditions, condition, format_time(now))}
    return {
        **{name: count for name, count in counts.items() if count},
        **conditions,
        "observedGeneration": metadata_of(deployment).get("generation", 1),
    }


def _availability(is_available: bool) -> JsonObject:
    has, word = ("has", "Available") if is_available else ("does not have", "Unavailable")
    return {
        "type": "Available",
        "status": str(is_available),
        "reason": f"MinimumReplicas{word}",
        "message": f"Deployment {has} minimum availability.",
    }


def _progress(done: bool) -> JsonObject:
    reason = "NewReplicaSetAvailable" if done else "ReplicaSetUpdated"
    message = "The newest ReplicaSet has all its pods." if done else "The newest ReplicaSet is progressing."
    return {"type": "Progressing", "status": "True", "reason": reason, "message": message}


def _scale(replica_set: JsonObject, replicas: int) -> Action:
    return patch_object(REPLICASETS, replica_set, {"spec": {"replicas": replicas}})


def _replica_set_name(deployment: JsonObject) -> str:
    return f"{metadata_of(deployment)['name']}-{template_hash(spec_of(deployment).get('template') or {})}"


def _is_observed(replica_set: JsonObject) -> bool:
    generation = int(metadata_of(replica_set).get("generation", 1))
    return int(status_of(replica_set).get("observedGeneration") or 0) >= generation


def _replicas(replica_set: JsonObject) -> int:
    return int(spec_of(replica_set).get("replicas", 1))


def _pods(replica_set: JsonObject) -> int:
    return int(status_of(replica_set).get("replicas") or 0)


def _available(replica_set: JsonObject) -> int:
    return min(_replicas(replica_set), int(status_of(replica_set).get("availableReplicas") or 0))


def _revision(replica_set: JsonObject) -> int:
    text = (metadata_of(replica_set).get("annotations") or {}).get(ANNOTATION_REVISION, "0")
    return int(text) if text.isdecimal() else 0


def _amount(value: object, total: int, *, up: bool) -> int:
    """A number as it is, a percentage of the total rounded up or down."""
    if isinstance(value, int):
        return value
    share = total * int(str(value).removesuffix("%")) / 100
    return math.ceil(share) if up else math.floor(share)
