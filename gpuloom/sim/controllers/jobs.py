"""A Job runs pods until enough of them have succeeded, or too many have failed. Pure.

Ended pods are counted as the real controller does: a finalizer keeps an ended pod until its UID stands in
the status as uncounted; then the finalizer is lifted; then it is counted. So a deletion loses no count.
Pod failure policies, success policies and limits per index are not known here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.parse import format_time
from gpuloom.kube.resources import JOBS
from gpuloom.sim.controllers.decision import (
    Action,
    Decision,
    Patch,
    delete_object,
    delete_pod,
    write_status,
)
from gpuloom.sim.controllers.job_counts import Counts, count_pods
from gpuloom.sim.controllers.job_pods import TRACKING_FINALIZER, missing_pods, released_pod
from gpuloom.sim.controllers.pods import (
    condition_status,
    is_deleting,
    least_wanted_first,
    moment,
    phase_of,
    spec_of,
    status_of,
    with_condition,
)

FIRST_BACKOFF_S = 10.0
BACKOFF_CAP_S = 600.0
_BACKOFF_LIMIT = 6


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a Job ends: first the interim condition, and the final one when nothing of it runs any more."""

    interim: str
    final: str
    reason: str
    message: str


_COMPLETE = Verdict(
    "SuccessCriteriaMet", "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
)
_TOO_MANY_FAILURES = Verdict(
    "FailureTarget", "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
)
_TOO_LATE = Verdict(
    "FailureTarget", "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
)


def plan_job(job: JsonObject, pods: Sequence[JsonObject], now: datetime) -> Decision:
    """`pods` are those that it controls."""
    if is_deleting(job):
        return Decision(release_pods(pods))
    if is_finished(job):
        return _after_the_end(job, pods, now)
    counts = count_pods(job, pods)
    lifted = tuple(released_pod(pod) for pod in counts.to_release)
    verdict = _verdict(job, pods, counts, now)
    if verdict is not None:
        return _finish(job, counts, verdict, now, lifted)
    actions, wake_after_s = _manage(job, pods, counts, now)
    status = _running_status(job, counts, now)
    deadline_s = _deadline_in_s(job, now)
    waits = [wait for wait in (wake_after_s, deadline_s) if wait is not None]
    return Decision((*lifted, *actions, *write_status(JOBS, job, status)), min(waits) if waits else None)


def release_pods(pods: Sequence[JsonObject]) -> tuple[Patch, ...]:
    """Nobody counts these any more: without their Job the finalizer would keep them for ever."""
    return tuple(
        released_pod(pod) for pod in pods if TRACKING_FINALIZER in (metadata_of(pod).get("finalizers") or ())
    )


def is_finished(job: JsonObject) -> bool:
    return any(condition_status(status_of(job), kind) == "True" for kind in ("Complete", "Failed"))


def _after_the_end(job: JsonObject, pods: Sequence[JsonObject], now: datetime) -> Decision:
    released = release_pods(pods)
    ttl_s = spec_of(job).get("ttlSecondsAfterFinished")
    ended = moment(_final_condition(job).get("lastTransitionTime"))
    if ttl_s is None or ended is None:
        return Decision(released)
    left_s = ttl_s - (now - ended).total_seconds()
    if left_s > 0:
        return Decision(released, left_s)
    return Decision((*released, delete_object(JOBS, job)))


def _verdict(job: JsonObject, pods: Sequence[JsonObject], counts: Counts, now: datetime) -> Verdict | None:
    status, spec = status_of(job), spec_of(job)
    for verdict in (_TOO_MANY_FAILURES, _TOO_LATE):
        # Decided before: pods that end while the Job is being ended change nothing.
        if any(
            one.get("type") == verdict.interim and one.get("reason") == verdict.reason
            for one in status.get("conditions") or ()
        ):
            return verdict
    if condition_status(status, _COMPLETE.interim) == "True" or _is_complete(spec, counts):
        return _COMPLETE
    restarts = _restarts(counts.active) if _restarts_in_place(job) else 0
    if counts.failed + restarts > int(spec.get("backoffLimit", _BACKOFF_LIMIT)):
        return _TOO_MANY_FAILURES
    deadline_s = _deadline_in_s(job, now)
    return _TOO_LATE if deadline_s is not None and deadline_s <= 0 else None


def _is_complete(spec: JsonObject, counts: Counts) -> bool:
    completions = spec.get("completions")
    if completions is None:
        return counts.succeeded > 0 and not counts.active
    return counts.succeeded >= int(completions)


def _finish(
    job: JsonObject, counts: Counts, verdict: Verdict, now: datetime, lifted: tuple[Action, ...]
) -> Decision:
    now_text = format_time(now)
    running = [*counts.active, *counts.terminating]
    status = counts.status(status_of(job))
    condition = {
        "status": "True",
        "reason": verdict.reason,
        "message": verdict.message,
        "lastProbeTime": now_text,
    }
    if condition_status(status, verdict.interim) != "True":
        status["conditions"] = with_condition(status, {"type": verdict.interim, **condition}, now_text)
    if not running and not counts.is_uncounted:
        status["conditions"] = with_condition(status, {"type": verdict.final, **condition}, now_text)
        if verdict is _COMPLETE:
            status["completionTime"] = now_text
    deletions = tuple(delete_pod(pod) for pod in counts.active)
    return Decision((*lifted, *deletions, *write_status(JOBS, job, status)))


def _manage(
    job: JsonObject, pods: Sequence[JsonObject], counts: Counts, now: datetime
) -> tuple[list[Action], float | None]:
    """Too many pods: remove some. Too few: make some, unless the last failure is too fresh."""
    spec = spec_of(job)
    active = len(counts.active)
    wanted = _wanted_active(spec, counts)
    if active > wanted:
        return [delete_pod(pod) for pod in least_wanted_first(counts.active)[: active - wanted]], None
    replaced_late = spec.get("podReplacementPolicy") == "Failed"
    missing = wanted - active - (len(counts.terminating) if replaced_late else 0)
    if missing <= 0:
        return [], None
    wait_s = _backoff_s(pods, now)
    if wait_s > 0:
        return [], wait_s
    return list(missing_pods(job, counts, missing)), None


def _wanted_active(spec: JsonObject, counts: Counts) -> int:
    if spec.get("suspend"):
        return 0
    parallelism = int(spec.get("parallelism", 1))
    completions = spec.get("completions")
    if completions is None:
        # A queue of work: once one pod says that it is empty, no new ones start.
        return min(parallelism, len(counts.active)) if counts.succeeded else parallelism
    return min(parallelism, int(completions) - counts.succeeded)


def _backoff_s(pods: Sequence[JsonObject], now: datetime) -> float:
    """How long to wait before the next pod: it doubles with each failure since the last success."""
    ends = {
        phase: [_ended(pod, now) for pod in pods if phase_of(pod) == phase]
        for phase in ("Succeeded", "Failed")
    }
    since = max(ends["Succeeded"], default=None)
    failures = [end for end in ends["Failed"] if since is None or end > since]
    if not failures:
        return 0.0
    delay_s = min(BACKOFF_CAP_S, FIRST_BACKOFF_S * 2.0 ** min(len(failures) - 1, 16))
    return (max(failures) + timedelta(seconds=delay_s) - now).total_seconds()


def _ended(pod: JsonObject, now: datetime) -> datetime:
    """When its last container ended, or, if nobody says, when it was made."""
    states = (one.get("state") or {} for one in status_of(pod).get("containerStatuses") or ())
    ends = [moment((state.get("terminated") or {}).get("finishedAt")) for state in states]
    known = [end for end in ends if end is not None]
    return max(known) if known else moment(metadata_of(pod).get("creationTimestamp")) or now


def _running_status(job: JsonObject, counts: Counts, now: datetime) -> JsonObject:
    old, now_text = status_of(job), format_time(now)
    status = counts.status(old)
    suspended = bool(spec_of(job).get("suspend"))
    if suspended:
        status.pop("startTime", None)
    else:
        status.setdefault("startTime", now_text)
    if suspended or condition_status(old, "Suspended"):
        word = "suspended" if suspended else "resumed"
        condition = {
            "type": "Suspended",
            "status": str(suspended),
            "reason": f"Job{word.capitalize()}",
            "message": f"Job {word}",
        }
        if condition_status(old, "Suspended") != str(suspended):
            condition["lastProbeTime"] = now_text
        status["conditions"] = with_condition(old, condition, now_text)
    return status


def _deadline_in_s(job: JsonObject, now: datetime) -> float | None:
    limit_s, start = spec_of(job).get("activeDeadlineSeconds"), moment(status_of(job).get("startTime"))
    if limit_s is None or start is None or spec_of(job).get("suspend"):
        return None
    return float(limit_s) - (now - start).total_seconds()


def _final_condition(job: JsonObject) -> JsonObject:
    conditions = status_of(job).get("conditions") or ()
    return next((one for one in conditions if one.get("type") in ("Complete", "Failed")), {})


def _restarts_in_place(job: JsonObject) -> bool:
    template = spec_of(job).get("template") or {}
    return spec_of(template).get("restartPolicy") == "OnFailure"


def _restarts(pods: Sequence[JsonObject]) -> int:
    return sum(
        int(one.get("restartCount") or 0)
        for pod in pods
        for one in status_of(pod).get("containerStatuses") or ()
    )
