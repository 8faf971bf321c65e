"""What a kubelet does next with one pod. Pure: what Kubernetes shows, what the machine hosts, and the time.

Level-triggered: the answer depends on the present alone, so a kubelet that was killed at any point goes on
where the machine's files say it stands.
"""

from dataclasses import dataclass
from enum import StrEnum

from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.sim.machines.machine import HostedPod

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


class Action(StrEnum):
    WAIT = "wait"
    ADMIT = "admit"
    REPORT_RUNNING = "report-running"
    STOP_SOON = "stop-soon"
    EXIT = "exit"
    REPORT_END = "report-end"
    REPORT_LOST = "report-lost"
    CONFIRM_DELETE = "confirm-delete"
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class Step:
    """`until_s` bounds a WAIT; None waits for the next change. `killed` marks an EXIT that was forced."""

    action: Action
    until_s: float | None = None
    killed: bool = False


@dataclass(frozen=True, slots=True)
class PodView:
    """The pod as Kubernetes has it."""

    phase: str
    deleting: bool

    @property
    def ended(self) -> bool:
        return self.phase in TERMINAL_PHASES


def view_of(pod: JsonObject, reported_phase: str) -> PodView:
    """`reported_phase` is what this kubelet wrote successfully; it is newer than any cache until it shows."""
    phase = str((pod.get("status") or {}).get("phase") or "Pending")
    return PodView(reported_phase or phase, bool(metadata_of(pod).get("deletionTimestamp")))


def next_step(pod: PodView | None, hosted: HostedPod | None, now_s: float) -> Step:
    """`pod` is None once it vanished from Kubernetes; `hosted` is None while the machine does not know it."""
    if hosted is None:
        return _unhosted(pod)
    if hosted.exited:
        return _exited(pod)
    if pod is None or pod.deleting or pod.ended:
        return _stopping(pod, hosted, now_s)
    return _running(pod, hosted, now_s)


def _running(pod: PodView, hosted: HostedPod, now_s: float) -> Step:
    if now_s < hosted.starts_at_s:
        return Step(Action.WAIT, hosted.starts_at_s)
    if pod.phase != "Running":
        return Step(Action.REPORT_RUNNING)
    if hosted.ends_at_s is not None and now_s >= hosted.ends_at_s:
        return Step(Action.EXIT)
    return Step(Action.WAIT, hosted.ends_at_s)


def _unhosted(pod: PodView | None) -> Step:
    if pod is None:
        return Step(Action.FORGET)
    if pod.deleting:
        return Step(Action.CONFIRM_DELETE)
    if pod.ended:
        return Step(Action.WAIT)
    # A pod that ran here but has no record must not run twice: its machine was wiped under it.
    return Step(Action.REPORT_LOST if pod.phase == "Running" else Action.ADMIT)


def _exited(pod: PodView | None) -> Step:
    if pod is None or pod.ended:
        return Step(Action.FORGET)
    return Step(Action.REPORT_END)


def _stopping(pod: PodView | None, hosted: HostedPod, now_s: float) -> Step:
    """A container outlives the order to stop it, and a pod that was force-deleted, by up to its grace."""
    if hosted.stops_at_s is None or (pod is None and hosted.forgotten_at_s is None):
        return Step(Action.STOP_SOON)
    if now_s < hosted.stops_at_s:
        return Step(Action.WAIT, hosted.stops_at_s)
    return Step(Action.EXIT, killed=True)
