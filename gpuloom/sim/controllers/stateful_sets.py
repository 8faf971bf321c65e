"""A StatefulSet keeps pods with fixed names, made in order and removed in reverse. Pure.

No volumes are claimed, and no ControllerRevisions are kept: a pod that is made anew gets the newest template.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import PODS, STATEFULSETS
from gpuloom.sim.controllers.decision import Action, Create, Decision, delete_pod, write_status
from gpuloom.sim.controllers.pods import (
    available_replicas,
    is_active,
    is_deleting,
    is_ready,
    is_terminal,
    pod_from_template,
    spec_of,
    status_of,
    template_hash,
)

LABEL_REVISION = "controller-revision-hash"
LABEL_POD_NAME = "statefulset.kubernetes.io/pod-name"
LABEL_POD_INDEX = "apps.kubernetes.io/pod-index"


def plan_stateful_set(stateful_set: JsonObject, pods: Sequence[JsonObject], now: datetime) -> Decision:
    """`pods` are those that it controls."""
    if is_deleting(stateful_set):
        return Decision()
    by_ordinal = {_ordinal(pod): pod for pod in pods}
    actions = _steps(stateful_set, by_ordinal)
    status = _status(stateful_set, pods, now)
    return Decision((*actions, *write_status(STATEFULSETS, stateful_set, status)))


def _steps(stateful_set: JsonObject, by_ordinal: Mapping[int, JsonObject]) -> list[Action]:
    spec = spec_of(stateful_set)
    wanted = int(spec.get("replicas", 1))
    in_order = spec.get("podManagementPolicy") != "Parallel"
    actions: list[Action] = []
    for ordinal in range(wanted):
        pod = by_ordinal.get(ordinal)
        if pod is None:
            actions.append(Create(PODS, _new_pod(stateful_set, ordinal)))
        elif is_terminal(pod) and not is_deleting(pod):
            actions.append(delete_pod(pod))
        elif is_active(pod) and is_ready(pod):
            continue
        if in_order:
            return actions
    if actions:
        return actions
    surplus = sorted((ordinal for ordinal in by_ordinal if ordinal >= wanted), reverse=True)
    if surplus:
        going = surplus[:1] if in_order else surplus
        return [delete_pod(by_ordinal[one]) for one in going if not is_deleting(by_ordinal[one])]
    return _update(stateful_set, by_ordinal)


def _update(stateful_set: JsonObject, by_ordinal: Mapping[int, JsonObject]) -> list[Action]:
    """One pod at a time, from the highest; only while all others are ready."""
    strategy = spec_of(stateful_set).get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return []
    partition = int((strategy.get("rollingUpdate") or {}).get("partition") or 0)
    newest = _revision(stateful_set)
    for ordinal in sorted(by_ordinal, reverse=True):
        pod = by_ordinal[ordinal]
        if not (is_active(pod) and is_ready(pod)):
            return []
        if ordinal >= partition and _revision_of(pod) != newest:
            return [delete_pod(pod)]
    return []


def _new_pod(stateful_set: JsonObject, ordinal: int) -> JsonObject:
    name = f"{metadata_of(stateful_set)['name']}-{ordinal}"
    labels = {
        LABEL_REVISION: _revision(stateful_set),
        LABEL_POD_NAME: name,
        LABEL_POD_INDEX: str(ordinal),
    }
    pod = pod_from_template(stateful_set, {"name": name, "labels": labels})
    subdomain = spec_of(stateful_set).get("serviceName")
    pod["spec"] = {**pod["spec"], "hostname": name, **({"subdomain": subdomain} if subdomain else {})}
    return pod


def _status(stateful_set: JsonObject, pods: Sequence[JsonObject], now: datetime) -> JsonObject:
    present = [pod for pod in pods if not is_terminal(pod)]
    live = [pod for pod in present if not is_deleting(pod)]
    newest = _revision(stateful_set)
    updated = sum(_revision_of(pod) == newest for pod in live)
    settled = updated == len(present) == int(spec_of(stateful_set).get("replicas", 1))
    current = newest if settled else status_of(stateful_set).get("currentRevision") or newest
    counts = {
        "readyReplicas": sum(is_ready(pod) for pod in live),
        "currentReplicas": sum(_revision_of(pod) == current for pod in live),
        "updatedReplicas": updated,
    }
    min_ready_s = int(spec_of(stateful_set).get("minReadySeconds") or 0)
    return {
        "replicas": len(present),
        "availableReplicas": available_replicas(live, min_ready_s, now),
        **{name: count for name, count in counts.items() if count},
        "currentRevision": current,
        "updateRevision": newest,
        "collisionCount": 0,
        "observedGeneration": metadata_of(stateful_set).get("generation", 1),
    }


def _revision(stateful_set: JsonObject) -> str:
    template = spec_of(stateful_set).get("template") or {}
    return f"{metadata_of(stateful_set)['name']}-{template_hash(template)}"


def _revision_of(pod: JsonObject) -> str:
    return str((metadata_of(pod).get("labels") or {}).get(LABEL_REVISION, ""))


def _ordinal(pod: JsonObject) -> int:
    text = metadata_of(pod)["name"].rpartition("-")[2]
    return int(text) if text.isdecimal() else -1
