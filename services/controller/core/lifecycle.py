"""What to do next about one GPUWorkload, from what is observed of it, its Jobs and their pods.

Everything it needs to know is in the cluster: how many attempts there were is in the Jobs and in the status,
when the next one is due follows from when the last one ended. So any controller, also one that has just
started, comes to the same decision. It never sets a pod's node and never deletes what it does not own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpuloom.kube.conditions import Condition
from gpuloom.kube.objects import JsonObject
from gpuloom.model.workload import GpuWorkload, WorkloadPhase
from services.controller.core.manifests import LABEL_ATTEMPT, is_job_of_spec, is_owned, job_name
from services.controller.core.progress import FailureReason, Progress, progress_of
from services.controller.core.retries import retry_delay_s

TERMINAL = frozenset({WorkloadPhase.SUCCEEDED, WorkloadPhase.FAILED})
_ENDINGS = frozenset(
    {
        FailureReason.JOB_FAILED,
        FailureReason.NODE_LOST,
        FailureReason.PREEMPTED,
        FailureReason.DEADLINE_EXCEEDED,
    }
)
PLACED = frozenset({WorkloadPhase.SCHEDULED, WorkloadPhase.RUNNING, WorkloadPhase.SUCCEEDED})


@dataclass(frozen=True, slots=True)
class Observed:
    """`jobs`: all with this workload as their controller. `pods`: theirs."""

    workload: GpuWorkload
    jobs: Sequence[JsonObject]
    pods: Sequence[JsonObject]


@dataclass(frozen=True, slots=True)
class NewStatus:
    phase: WorkloadPhase
    message: str
    retries: int
    node: str | None = None
    job: str | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """`attempt`: make the Job of this attempt now. `outdated`: Jobs of an earlier spec, to be deleted.

    `failure`: the last attempt failed for this reason. `again_after_s`: when time alone changes the decision.
    """

    status: NewStatus
    attempt: int | None = None
    outdated: tuple[str, ...] = ()
    failure: FailureReason | None = None
    again_after_s: float | None = None


def decide(observed: Observed, now: datetime) -> Decision:
    workload = observed.workload
    owned = [job for job in observed.jobs if is_owned(job, workload.meta.uid)]
    current = [job for job in owned if is_job_of_spec(workload, _name(job))]
    outdated = tuple(_name(job) for job in owned if job not in current and not _is_deleting(job))
    attempt = _last_attempt(workload, current)
    job = next((one for one in current if _name(one) == job_name(workload, attempt)), None)
    if any(one not in current for one in owned):
        # The devices of what ran before are its own until it is gone.
        return Decision(_replacing(workload), outdated=outdated)
    if job is not None:
        progress = progress_of(job, _pods_of(job, observed.pods), now)
        return _after(workload, attempt, progress, now)
    if _is_finished(workload):
        # Its Job was cleaned up since; what is over stays over.
        return _finished(workload)
    told = _told_failure(workload, attempt)
    if told is not None:
        # The same while the next attempt is waited for: this one is not made again.
        return _after(workload, attempt, told, now)
    return Decision(_starting(workload, attempt), attempt=attempt)


def refused(reason: str, retries: int, job: str | None) -> NewStatus:
    """Nothing can be made of it until somebody changes it, or what it needs. What was tried stays known."""
    accepted = Condition("Accepted", False, FailureReason.INVALID_SPEC, reason)
    return NewStatus(WorkloadPhase.PENDING, reason, retries, job=job, conditions=(accepted,))


def _after(workload: GpuWorkload, attempt: int, progress: Progress, now: datetime) -> Decision:
    name = job_name(workload, attempt)
    if progress.failure is None:
        return Decision(_status(workload, attempt, progress, name))
    most = workload.spec.retry.max_retries
    if attempt >= most:
        tried = f"attempt {attempt + 1} of {most + 1} failed, the last one: {progress.message}"
        status = _status(workload, attempt, replace(progress, message=tried), name)
        return Decision(status, failure=progress.failure)
    delay_s = retry_delay_s(workload.spec.retry, attempt, workload.meta.uid)
    left_s = delay_s - (now - (progress.ended or now)).total_seconds()
    if left_s <= 0:
        return Decision(_starting(workload, attempt + 1), attempt=attempt + 1, failure=progress.failure)
    waiting = (
        f"attempt {attempt + 1} of {most + 1} failed: {progress.message}; next in {delay_s:.0f} s after that"
    )
    paused = Progress(WorkloadPhase.PENDING, waiting, None, progress.failure)
    return Decision(_status(workload, attempt, paused, name), failure=progress.failure, again_after_s=left_s)


def _last_attempt(workload: GpuWorkload, current: Sequence[JsonObject]) -> int:
    """The newest there was, also if its Job was deleted since, while those of earlier attempts are there."""
    known = workload.status
    told = known.retries or 0 if is_job_of_spec(workload, known.job_name or "") else 0
    return max((told, *map(_attempt, current)))


def _is_finished(workload: GpuWorkload) -> bool:
    status = workload.status
    if status.phase not in TERMINAL or not is_job_of_spec(workload, status.job_name or ""):
        return False
    allowed = workload.spec.retry.max_retries
    return status.phase is WorkloadPhase.SUCCEEDED or (status.retries or 0) >= allowed


def _told_failure(workload: GpuWorkload, attempt: int) -> Progress | None:
    """By the status, how this attempt failed, whose Job is gone by now; None if it did not."""
    known = workload.status
    is_over = known.phase in (WorkloadPhase.PENDING, WorkloadPhase.FAILED)
    if not is_over or known.job_name != job_name(workload, attempt):
        return None
    reason = _told_reason(workload)
    if reason is None:
        return None
    # It was placed until it failed, if it ever was.
    ended = next((one.last_transition for one in known.conditions if one.type == "Scheduled"), None)
    return Progress(WorkloadPhase.FAILED, "it failed, and its Job is gone", None, reason, ended)


def _told_reason(workload: GpuWorkload) -> FailureReason | None:
    reasons = (one.reason for one in workload.status.conditions if one.type == "Finished")
    return next((FailureReason(reason) for reason in reasons if reason in _ENDINGS), None)


def _finished(workload: GpuWorkload) -> Decision:
    known = workload.status
    phase, message = known.phase or WorkloadPhase.FAILED, known.message or ""
    progress = Progress(phase, message, known.assigned_node, _told_reason(workload))
    return Decision(_status(workload, known.retries or 0, progress, known.job_name))


def _starting(workload: GpuWorkload, attempt: int) -> NewStatus:
    progress = Progress(WorkloadPhase.SCHEDULING, "waiting for the Job's pod")
    return _status(workload, attempt, progress, job_name(workload, attempt))


def _replacing(workload: GpuWorkload) -> NewStatus:
    text = "the spec changed; waiting until what ran before is gone"
    return NewStatus(
        WorkloadPhase.PENDING, text, 0, conditions=_conditions(Progress(WorkloadPhase.PENDING, text))
    )


def _status(workload: GpuWorkload, attempt: int, progress: Progress, job: str | None) -> NewStatus:
    return NewStatus(progress.phase, progress.message, attempt, progress.node, job, _conditions(progress))


def _conditions(progress: Progress) -> tuple[Condition, ...]:
    placed = progress.phase in PLACED
    ended = progress.phase in TERMINAL
    return (
        Condition("Accepted", True, "Valid"),
        Condition("Scheduled", placed, progress.phase.value, progress.message),
        Condition("Finished", ended, progress.failure or progress.phase.value, progress.message),
    )


def _pods_of(job: JsonObject, pods: Sequence[JsonObject]) -> list[JsonObject]:
    uid = str((job.get("metadata") or {}).get("uid") or "")
    return [pod for pod in pods if is_owned(pod, uid)]


def _attempt(job: JsonObject) -> int:
    told = ((job.get("metadata") or {}).get("labels") or {}).get(LABEL_ATTEMPT, "")
    return int(told) if told.isascii() and told.isdigit() else 0


def _name(job: JsonObject) -> str:
    return str((job.get("metadata") or {}).get("name") or "")


def _is_deleting(job: JsonObject) -> bool:
    return bool((job.get("metadata") or {}).get("deletionTimestamp"))
