"""One pod as decisions want it: what it asks for, how long it waits, what it is worth. Reads only."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from gpuloom.codec.custom.objects import selector
from gpuloom.codec.custom.reading import Fields
from gpuloom.codec.pod import pod_ref, pod_request
from gpuloom.codec.scheduling import schedulable_pod
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, key_of, metadata_of
from gpuloom.kube.parse import parse_time
from gpuloom.model.request import PodRequest
from gpuloom.names import ANNOTATION_GANG_SIZE, LABEL_GANG
from gpuloom.placement.constraints.objects import SchedulablePod
from services.autoscaler.core.buying.pending import URGENT_PRIORITY, PendingPod, Worth
from services.autoscaler.core.lifecycle import drain
from services.autoscaler.core.lifecycle.drain import Tenant, eviction_priority

LABEL_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
_MOST_DIGITS = 9

Workload = tuple[str, str, str]
"""Namespace, kind and name."""


def pending_pod(
    pod: JsonObject, request: PodRequest, schedulable: SchedulablePod, now: datetime
) -> PendingPod:
    metadata = metadata_of(pod)
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return PendingPod(
        ref=pod_ref(pod),
        request=request,
        pod=schedulable,
        since=waits_since(pod) or now,
        worth=worth_of(schedulable, labels, annotations),
        gang=gang_of(pod),
        gang_size=_gang_size(annotations.get(ANNOTATION_GANG_SIZE) or labels.get(ANNOTATION_GANG_SIZE)),
    )


def gang_of(pod: JsonObject) -> str:
    """Its name within the namespace; each group of a LeaderWorkerSet is a gang of its own."""
    metadata = metadata_of(pod)
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    name = str(labels.get(LABEL_GANG) or annotations.get(LABEL_GANG) or "")
    group = labels.get(LABEL_GROUP)
    return f"{name}/{group}" if name and group else name


def _gang_size(text: object) -> int:
    """What is no number of pods says nothing; the extender tells the pod's owner."""
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS:
        return 0
    return int(text)


def worth_of(pod: SchedulablePod, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Worth:
    """High priority, and training that could not go on where it was, are better not interrupted."""
    if pod.priority >= URGENT_PRIORITY:
        return Worth.CRITICAL
    kind = labels.get(drain.LABEL_WORKLOAD_TYPE) or annotations.get(drain.LABEL_WORKLOAD_TYPE)
    if kind == "critical" or (kind == "training" and drain.ANNOTATION_CHECKPOINT_TIME not in annotations):
        return Worth.CRITICAL
    return Worth.FLEXIBLE


def waits_since(pod: JsonObject) -> datetime | None:
    """Since the scheduler first said that it fits nowhere; before it did, since it was made."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            found = time_of(condition.get("lastTransitionTime"))
            if found is not None:
                return found
    return time_of(metadata_of(pod).get("creationTimestamp"))


def tenant_of(pod: JsonObject) -> Tenant:
    metadata, spec = metadata_of(pod), pod.get("spec") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    grace = spec.get("terminationGracePeriodSeconds")
    return Tenant(
        ref=pod_ref(pod),
        priority=eviction_priority(annotations, labels),
        grace_s=30.0 if grace is None else float(grace),
        leaving=bool(metadata.get("deletionTimestamp")),
        daemon=is_daemon(pod) or "kubernetes.io/config.mirror" in annotations,
        bare=not controller_of(pod),
        uses_gpu=request_of(pod) is not None,
    )


def daemons(pods: Iterable[list[JsonObject]]) -> tuple[SchedulablePod, ...]:
    """One pod of each DaemonSet, without the node it was made for."""
    found: dict[str, SchedulablePod] = {}
    for listed in pods:
        for pod in listed:
            owner = controller_of(pod)
            if owner and owner.get("kind") == "DaemonSet" and owner["uid"] not in found:
                schedulable = schedulable_of(pod)
                if schedulable is not None:
                    found[owner["uid"]] = replace(schedulable, required_terms=None)
    return tuple(found[uid] for uid in sorted(found))


def controller_of(pod: JsonObject) -> dict[str, Any]:
    owners = metadata_of(pod).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def workload_of(pod: JsonObject) -> Workload:
    """Of a pod of a ReplicaSet its Deployment, whose name the ReplicaSet's own begins with."""
    owner, namespace = controller_of(pod), key_of(pod)[0]
    kind, name = str(owner.get("kind") or ""), str(owner.get("name") or "")
    if kind == "ReplicaSet":
        return namespace, "Deployment", name.rpartition("-")[0]
    return namespace, kind, name


def is_daemon(pod: JsonObject) -> bool:
    return bool(controller_of(pod).get("kind") == "DaemonSet")


def covers(budget: JsonObject, labels: Mapping[str, str]) -> bool:
    """Whether the budget is about such a pod. One without a selector is about none."""
    given = (budget.get("spec") or {}).get("selector")
    if given is None:
        return False
    try:
        return selector(Fields(given, "spec.selector")).matches(labels)
    except InvalidRequestError:
        return True


def allows(budget: JsonObject) -> bool:
    return int((budget.get("status") or {}).get("disruptionsAllowed") or 0) > 0


def request_of(pod: JsonObject) -> PodRequest | None:
    """A pod whose request has no meaning is not ours to place; the extender tells its owner."""
    try:
        return pod_request(pod)
    except InvalidRequestError:
        return None


def schedulable_of(pod: JsonObject) -> SchedulablePod | None:
    try:
        return schedulable_pod(pod)
    except InvalidRequestError:
        return None


def time_of(text: object) -> datetime | None:
    try:
        return parse_time(str(text)) if text else None
    except ValueError:
        return None


def gpus_of(request: PodRequest) -> float:
    return request.gpu.count * request.gpu.milli / 1000
