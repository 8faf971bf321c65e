"""A ReplicaSet keeps so many active pods of its template. Pure.

Ended pods don't count and are left as they are. Orphans that match the selector are not adopted.
"""

from collections.abc import Sequence
from datetime import datetime

from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import PODS, REPLICASETS
from gpuloom.sim.controllers.decision import Action, Create, Decision, delete_pod, write_status
from gpuloom.sim.controllers.pods import (
    available_in_s,
    available_replicas,
    is_active,
    is_deleting,
    is_ready,
    least_wanted_first,
    pod_from_template,
    spec_of,
)

MOST_CREATED_AT_ONCE = 500


def plan_replica_set(replica_set: JsonObject, pods: Sequence[JsonObject], now: datetime) -> Decision:
    """`pods` are those that it controls."""
    active = [pod for pod in pods if is_active(pod)]
    if is_deleting(replica_set):
        return Decision()
    spec = spec_of(replica_set)
    wanted = int(spec.get("replicas", 1))
    missing = wanted - len(active)
    actions: list[Action] = [_new_pod(replica_set)] * min(missing, MOST_CREATED_AT_ONCE)
    if missing < 0:
        actions = [delete_pod(pod) for pod in least_wanted_first(active)[:-missing]]
    min_ready_s = int(spec.get("minReadySeconds") or 0)
    status = _status(replica_set, active, min_ready_s, now)
    waits = [available_in_s(pod, min_ready_s, now) for pod in active if is_ready(pod)]
    return Decision(
        (*actions, *write_status(REPLICASETS, replica_set, status)),
        min((wait for wait in waits if wait > 0), default=None),
    )


def _new_pod(replica_set: JsonObject) -> Create:
    name = metadata_of(replica_set)["name"]
    return Create(PODS, pod_from_template(replica_set, {"generateName": f"{name}-"}))


def _status(
    replica_set: JsonObject, active: Sequence[JsonObject], min_ready_s: int, now: datetime
) -> JsonObject:
    counts = {
        "fullyLabeledReplicas": len(active),
        "readyReplicas": sum(is_ready(pod) for pod in active),
        "availableReplicas": available_replicas(active, min_ready_s, now),
    }
    return {
        "replicas": len(active),
        **{name: count for name, count in counts.items() if count},
        "observedGeneration": metadata_of(replica_set).get("generation", 1),
    }
