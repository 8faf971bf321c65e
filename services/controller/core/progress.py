"""How far an attempt is, by what its Job and its pods show."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuloom.kube.objects import JsonObject
from gpuloom.kube.parse import parse_time
from gpuloom.model.workload import WorkloadPhase


class FailureReason(StrEnum):
    """A closed set, for metrics."""

    JOB_FAILED = "JobFailed"
    NODE_LOST = "NodeLost"
    PREEMPTED = "Preempted"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    RETRIES_EXHAUSTED = "RetriesExhausted"
    INVALID_SPEC = "InvalidSpec"


@dataclass(frozen=True, slots=True)
class Progress:
    """`failure` is set if the attempt is over and failed, `ended` if it is over."""

    phase: WorkloadPhase
    message: str
    node: str | None = None
    failure: FailureReason | None = None
    ended: datetime | None = None


_STARTED = frozenset({"Running", "Succeeded", "Failed"})
_LOST = frozenset({"NodeLost", "DeletionByPodGC", "DeletionByTaintManager"})
_PREEMPTED = frozenset({"PreemptionByScheduler", "EvictionByEvictionAPI", "Preempting"})


def progress_of(job: JsonObject, pods: Sequence[JsonObject], now: datetime) -> Progress:
    """`pods` are those of this Job."""
    node = _node_of(pods)
    complete, failed = _condition(job, "Complete"), _condition(job, "Failed")
    if complete is not None:
        return Progress(WorkloadPhase.SUCCEEDED, _succeeded_text(node), node, None, _moment(complete, now))
    if failed is not None:
        reason = _failure_reason(failed, pods)
        text = failed.get("message") or failed.get("reason") or "the Job failed"
        detail = _pod_failure(pods)
        message = f"{text}{f': {detail}' if detail else ''}"
        return Progress(WorkloadPhase.FAILED, message, node, reason, _moment(failed, now))
    if (job.get("spec") or {}).get("suspend"):
        return Progress(WorkloadPhase.PENDING, "the Job is suspended; a queue or a person holds it back")
    # One that has ended ran: its Job counts it a moment later.
    if any(_phase(pod) in _STARTED for pod in pods):
        return Progress(WorkloadPhase.RUNNING, f"running on {node}" if node else "running", node)
    if node is not None:
        return Progress(WorkloadPhase.SCHEDULED, f"scheduled on {node}; {_start_text(pods)}", node)
    return Progress(WorkloadPhase.SCHEDULING, _waiting_text(pods))


def _node_of(pods: Sequence[JsonObject]) -> str | None:
    """Where its first pod really is; of several, by name."""
    bound = sorted(
        (str((pod.get("metadata") or {}).get("name", "")), str((pod.get("spec") or {}).get("nodeName") or ""))
        for pod in pods
    )
    return next((node for _, node in bound if node), None)


def _succeeded_text(node: str | None) -> str:
    return f"finished on {node}" if node else "finished"


def _start_text(pods: Sequence[JsonObject]) -> str:
    """Why a bound pod does not run yet, as its kubelet says."""
    for pod in pods:
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            waiting = (status.get("state") or {}).get("waiting") or {}
            if waiting.get("reason"):
                return f"{waiting['reason']}: {waiting.get('message') or 'no message'}"
    return "its containers are starting"


def _waiting_text(pods: Sequence[JsonObject]) -> str:
    for pod in pods:
        unscheduled = _pod_condition(pod, "PodScheduled")
        if unscheduled.get("status") == "False" and unscheduled.get("message"):
            return f"waiting for GPUs: {unscheduled['message']}"
    return "waiting for the scheduler" if pods else "waiting for the Job's pod"


def _failure_reason(failed: JsonObject, pods: Sequence[JsonObject]) -> FailureReason:
    if failed.get("reason") == "DeadlineExceeded":
        return FailureReason.DEADLINE_EXCEEDED
    reasons = {str((pod.get("status") or {}).get("reason") or "") for pod in pods}
    reasons |= {str(_pod_condition(pod, "DisruptionTarget").get("reason") or "") for pod in pods}
    if reasons & _LOST:
        return FailureReason.NODE_LOST
    if reasons & _PREEMPTED:
        return FailureReason.PREEMPTED
    return FailureReason.JOB_FAILED


def _pod_failure(pods: Sequence[JsonObject]) -> str:
    for pod in pods:
        status = pod.get("status") or {}
        if status.get("message"):
            return str(status["message"])
        for container in status.get("containerStatuses") or ():
            ended = (container.get("state") or {}).get("terminated") or {}
            if ended.get("exitCode"):
                return f"container {container.get('name')} exited with {ended['exitCode']}"
    return ""


def _phase(pod: JsonObject) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def _condition(job: JsonObject, kind: str) -> JsonObject | None:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind and condition.get("status") == "True":
            return condition  # type: ignore[no-any-return]
    return None


def _pod_condition(pod: JsonObject, kind: str) -> JsonObject:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind:
            return condition  # type: ignore[no-any-return]
    return {}


def _moment(condition: JsonObject, now: datetime) -> datetime:
    """When it ended, never in the future: the controller manager's clock may run ahead of ours."""
    try:
        return min(now, parse_time(str(condition.get("lastTransitionTime") or "")))
    except ValueError:
        return now
