"""One machine in the hands of its kubelet: admits, stops and forgets pods, and records each step on disk.

Every change is in containers.json before it is in the journal, and in both before Kubernetes hears of it. A
kubelet killed in between finds the truth in containers.json and writes the journal lines that are missing.
It never talks to Kubernetes itself.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpuloom.kube.objects import JsonObject, key_of, metadata_of, uid_of
from gpuloom.kube.parse import format_micro_time
from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import Clock
from gpuloom.sim.duration import parse_duration_s
from gpuloom.sim.kubelet.devices import MachineView, Refusal, admit
from gpuloom.sim.machines.journal import EntryKind, Journal, JournalEntry, missing_entries
from gpuloom.sim.machines.layouts import layout_lock
from gpuloom.sim.machines.load import LoadProfile
from gpuloom.sim.machines.machine import HostedPod, Machine

ANNOTATION_DURATION = "sim.gpuloom.dev/duration"
ANNOTATION_OUTCOME = "sim.gpuloom.dev/outcome"
ANNOTATION_LOAD = "sim.gpuloom.dev/load"
ANNOTATION_MEMORY = "sim.gpuloom.dev/memory"
"""The share of its memory that a pod uses."""
ANNOTATION_SIGTERM = "sim.gpuloom.dev/sigterm"
"""`ignored`: its containers run until their grace is over."""

START_LATENCY_S = (0.2, 1.5)
STOP_LATENCY_S = (0.1, 1.0)
DEFAULT_GRACE_S = 30.0

# A real kubelet counts the devices of a pod that vanished as free at once, though its containers run on. So
# does this one, after a moment: until then it may be given pods by somebody who could not have heard of it.
FREES_FORGOTTEN_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What is left to chance, and its seed."""

    seed: int = 0
    max_publish_delay_s: float = 10.0


class Host:
    def __init__(self, machine: Machine, behaviour: Behaviour, clock: Clock) -> None:
        """Take over the machine as the files say it is. One process at a time may do so."""
        self.machine = machine
        self._behaviour = behaviour
        self._clock = clock
        self._hosted = {hosted.pod.uid: hosted for hosted in machine.hosted()}
        self._journal = Journal(machine.journal_path)
        held = {hosted.pod: hosted.devices for hosted in self._hosted.values() if _holds(hosted)}
        for entry in missing_entries(self._journal.entries_at_open, held, self._time()):
            self._journal.append(entry)

    def close(self) -> None:
        self._journal.close()

    @property
    def node(self) -> str:
        return self.machine.spec.node

    @property
    def hosted(self) -> Mapping[str, HostedPod]:
        """By pod UID."""
        return self._hosted

    def published(self) -> tuple[HostedPod, ...]:
        """The pods that PodResources shows: late, as a real kubelet may, and none that vanished."""
        now_s = self.now_s()
        return tuple(
            pod
            for pod in self._hosted.values()
            if not pod.exited and pod.forgotten_at_s is None and now_s >= pod.publishes_at_s
        )

    def admit(self, pod: JsonObject) -> None:
        """Take the pod in with its devices, or record why not; it is hosted either way."""
        with layout_lock(self.machine.directory):
            self._admit(pod)

    def _admit(self, pod: JsonObject) -> None:
        ref = _pod_ref(pod)
        view = MachineView(self.machine.hardware, self.machine.faults(), tuple(self._counted()))
        outcome = admit(pod, view, self._rng(ref, "devices"))
        if isinstance(outcome, Refusal):
            self._refuse(ref, outcome)
            return
        annotations = metadata_of(pod).get("annotations") or {}
        now_s = self.now_s()
        starts_at_s = now_s + self._rng(ref, "start").uniform(*START_LATENCY_S)
        duration_s = _duration_s(annotations)
        hosted = HostedPod(
            pod=ref,
            containers=outcome,
            load=self._load(ref, annotations),
            starts_at_s=starts_at_s,
            publishes_at_s=now_s + self._rng(ref, "publish").uniform(0, self._behaviour.max_publish_delay_s),
            ends_at_s=None if duration_s is None else starts_at_s + duration_s,
            outcome="Failed" if annotations.get(ANNOTATION_OUTCOME) == "failed" else "Succeeded",
            grace_s=_grace_s(pod),
            ignores_sigterm=annotations.get(ANNOTATION_SIGTERM) == "ignored",
        )
        self._store(hosted)
        if _holds(hosted):
            self._journal.append(JournalEntry(0, self._time(), EntryKind.START, ref, hosted.devices))

    def stop_soon(self, uid: str, *, vanished: bool) -> None:
        """Its containers are told to stop. If it vanished it is forgotten, and they have all their grace."""
        hosted, now_s = self._hosted[uid], self.now_s()
        latest_s = (0.0, hosted.grace_s) if vanished else STOP_LATENCY_S
        latency_s = self._rng(hosted.pod, "stop").uniform(*latest_s)
        stops_at_s = now_s + (hosted.grace_s if hosted.ignores_sigterm else latency_s)
        self._store(
            replace(
                hosted,
                stops_at_s=stops_at_s if hosted.stops_at_s is None else hosted.stops_at_s,
                forgotten_at_s=now_s if vanished else None,
            )
        )

    def exit(self, uid: str, *, killed: bool) -> None:
        """The containers are gone and their devices free."""
        hosted = self._hosted[uid]
        held = _holds(hosted)
        gone = replace(hosted, exited=True)
        self._store(replace(gone, outcome="Failed", reason="Terminated") if killed else gone)
        if held:
            self._journal.append(JournalEntry(0, self._time(), EntryKind.END, hosted.pod, hosted.devices))

    def forget(self, uid: str) -> None:
        if self._hosted.pop(uid, None) is not None:
            self.machine.write_hosted(self._hosted.values())

    def now_s(self) -> float:
        return self._clock.now().timestamp()

    def _counted(self) -> Iterator[HostedPod]:
        """The pods whose devices this kubelet does not give to others."""
        freed_before_s = self.now_s() - FREES_FORGOTTEN_AFTER_S
        for hosted in self._hosted.values():
            if hosted.forgotten_at_s is None or hosted.forgotten_at_s > freed_before_s:
                yield hosted

    def _refuse(self, ref: PodRef, refusal: Refusal) -> None:
        now_s = self.now_s()
        self._store(
            HostedPod(
                pod=ref,
                containers=(),
                load=LoadProfile(0.0, 0.0, 0),
                starts_at_s=now_s,
                publishes_at_s=now_s,
                exited=True,
                outcome="Failed",
                reason=refusal.reason,
                message=refusal.message,
            )
        )
        self._journal.append(
            JournalEntry(
                0,
                self._time(),
                EntryKind.REFUSED,
                ref,
                resource=refusal.resource,
                requested=refusal.requested,
                reason=f"{refusal.reason}: {refusal.message}",
            )
        )

    def _store(self, hosted: HostedPod) -> None:
        self._hosted[hosted.pod.uid] = hosted
        self.machine.write_hosted(self._hosted.values())

    def _load(self, ref: PodRef, annotations: Mapping[str, str]) -> LoadProfile:
        rng = self._rng(ref, "load")
        level_ratio = _ratio(annotations.get(ANNOTATION_LOAD), rng.uniform(0.35, 0.95))
        memory_ratio = _ratio(annotations.get(ANNOTATION_MEMORY), rng.uniform(0.4, 0.95))
        return LoadProfile(level_ratio, memory_ratio, rng.randrange(2**31))

    def _rng(self, ref: PodRef, purpose: str) -> random.Random:
        """By name, not by UID, so that equal seeds give equal runs."""
        return random.Random(f"{self._behaviour.seed}/{self.node}/{ref.namespace}/{ref.name}/{purpose}")

    def _time(self) -> str:
        return format_micro_time(self._clock.now())


def _ratio(text: str | None, otherwise: float) -> float:
    try:
        return min(1.0, max(0.0, float(text or "")))
    except ValueError:
        return otherwise


def _holds(hosted: HostedPod) -> bool:
    return not hosted.exited and bool(hosted.devices)


def _pod_ref(pod: JsonObject) -> PodRef:
    namespace, name = key_of(pod)
    return PodRef(namespace, name, uid_of(pod))


def _grace_s(pod: JsonObject) -> float:
    grace_s = (pod.get("spec") or {}).get("terminationGracePeriodSeconds")
    return float(grace_s) if isinstance(grace_s, int) else DEFAULT_GRACE_S


def _duration_s(annotations: Mapping[str, str]) -> float | None:
    """A pod without a readable duration runs until it is deleted."""
    try:
        return parse_duration_s(annotations[ANNOTATION_DURATION])
    except (KeyError, ValueError):
        return None
