"""Which pods of a Job run, have succeeded or have failed, and how far each is counted. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.sim.controllers.job_pods import completion_index, is_indexed, is_tracked
from gpuloom.sim.controllers.pods import is_deleting, is_ready, is_terminal, phase_of, spec_of, status_of


@dataclass(frozen=True, slots=True)
class Counts:
    """`succeeded` and `failed` include the uncounted; `to_release` has pods whose end is on record."""

    active: tuple[JsonObject, ...]
    terminating: tuple[JsonObject, ...]
    to_release: tuple[JsonObject, ...]
    counted: Mapping[str, int]
    uncounted: Mapping[str, tuple[str, ...]]
    completed: frozenset[int] | None
    """The completion indexes that succeeded; None for a Job that is not indexed."""

    @property
    def succeeded(self) -> int:
        if self.completed is not None:
            return len(self.completed)
        return self.counted["succeeded"] + len(self.uncounted["succeeded"])

    @property
    def failed(self) -> int:
        return self.counted["failed"] + len(self.uncounted["failed"])

    @property
    def is_uncounted(self) -> bool:
        return any(self.uncounted.values())

    def status(self, old: JsonObject) -> JsonObject:
        """The status with these counts; conditions and times as before."""
        counted = dict(self.counted)
        if self.completed is not None:
            counted["succeeded"] = len(self.completed)
        numbers = {"active": len(self.active), **counted}
        kept = {key: value for key, value in old.items() if key not in (*numbers, "completedIndexes")}
        status = {
            **kept,
            **{name: number for name, number in numbers.items() if number},
            "ready": sum(is_ready(pod) for pod in self.active),
            "terminating": len(self.terminating),
            "uncountedTerminatedPods": {name: list(uids) for name, uids in self.uncounted.items() if uids},
        }
        if self.completed:
            status["completedIndexes"] = format_indexes(self.completed)
        return status


def count_pods(job: JsonObject, pods: Sequence[JsonObject]) -> Counts:
    status = status_of(job)
    recorded = status.get("uncountedTerminatedPods") or {}
    tracked = {uid_of(pod): pod for pod in pods if is_tracked(pod)}
    replaced_late = spec_of(job).get("podReplacementPolicy") == "Failed"
    uncounted: dict[str, tuple[str, ...]] = {}
    counted: dict[str, int] = {}
    to_release: list[JsonObject] = []
    for name, ended in (("succeeded", _has_succeeded), ("failed", _has_failed)):
        listed = [str(uid) for uid in recorded.get(name) or ()]
        waiting = [uid for uid in listed if uid in tracked]
        to_release.extend(tracked[uid] for uid in waiting)
        fresh = [uid for uid, pod in tracked.items() if uid not in listed and ended(pod, replaced_late)]
        uncounted[name] = (*waiting, *fresh)
        counted[name] = int(status.get(name) or 0) + len(listed) - len(waiting)
    ended_uids = {uid for uids in uncounted.values() for uid in uids}
    live = [pod for uid, pod in tracked.items() if uid not in ended_uids]
    return Counts(
        active=tuple(pod for pod in live if not is_deleting(pod)),
        terminating=tuple(pod for pod in tracked.values() if is_deleting(pod) and not is_terminal(pod)),
        to_release=tuple(to_release),
        counted=counted,
        uncounted=uncounted,
        completed=_completed(job, pods) if is_indexed(job) else None,
    )


def format_indexes(indexes: Iterable[int]) -> str:
    """Kubernetes' shorthand: 0,2-4."""
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and index == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], index]
        else:
            ranges.append([index])
    return ",".join("-".join(map(str, one)) for one in ranges)


def parse_indexes(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _completed(job: JsonObject, pods: Sequence[JsonObject]) -> frozenset[int]:
    before = parse_indexes(str(status_of(job).get("completedIndexes") or ""))
    most = int(spec_of(job).get("completions") or 0)
    now = {completion_index(pod) for pod in pods if _has_succeeded(pod, False)}
    return frozenset(index for index in (*before, *now) if index is not None and index < most)


def _has_succeeded(pod: JsonObject, replaced_late: bool) -> bool:
    return phase_of(pod) == "Succeeded"


def _has_failed(pod: JsonObject, replaced_late: bool) -> bool:
    """A pod that is being deleted counts as failed at once, unless it is only replaced when it has ended."""
    if phase_of(pod) == "Failed" or replaced_late:
        return phase_of(pod) == "Failed"
    return is_deleting(pod) and phase_of(pod) != "Succeeded"
