"""The nodes of the model: what containers really hold, and what their agents say of it, late or wrongly.

The truth is strict: from the moment a Binding is applied a kubelet owes the pod its devices, whether or not
the container runs yet, and until it has really ended, whatever Kubernetes says meanwhile.

Who lists a container depends on the node: the kubelet where it chooses, the container runtime where the agent
delivers, and Kubernetes itself where devices come by environment (`e1`). The first and the last forget a
force-deleted pod at once; the runtime lists nothing between two runs. Of those that it has listed an agent
goes on to tell as long as their control group exists, but an agent that restarts remembers nobody.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

from gpuloom.codec.allocation import decode_allocation
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu
from gpuloom.model.node import Holder, HolderSource, NodeMode, PodPresence, PodRef
from gpuloom.model.request import GpuRequest
from gpuloom.model.snapshot import NodeFacts
from gpuloom.placement.devices import NodeView
from services.scheduler_extender.pods import allocation_text
from tests.unit.scheduler_extender.builders import JsonObject, a_holder, an_observed_pod, some_facts

START_WITHIN_S = 5.0
PUBLISH_WITHIN_S = 5.0
AGENT_TTL_S = 10.0
"""Discovery no longer trusts what an agent said longer ago."""


@dataclass
class Owed:
    """What a kubelet owes one pod."""

    pod: PodRef
    request: GpuRequest
    given: dict[DeviceRef, tuple[int, int]]
    """Milli and MiB by device: of the allocation, or of the kubelet's own choice once it has started."""
    start_by_s: float
    started: bool = False
    shown_by_s: float | None = None
    shown: bool = False
    shown_fully: bool = False
    vanished_at: int | None = None
    """How long the log of Kubernetes was when it was force-deleted; None while it is in Kubernetes."""
    between_runs: bool = False


@dataclass(frozen=True)
class Report:
    """What an agent saw at one moment."""

    taken_s: float
    facts: NodeFacts


@dataclass
class Machine:
    """One node: a machine with its kubelet and agent. A node of the same name may be another machine."""

    name: str
    uid: str
    mode: NodeMode
    gpus: tuple[Gpu, ...]
    chance: Random
    owed: dict[str, Owed] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    said: Report | None = None
    """The report that discovery goes by now."""
    distrusted: bool = False
    quiet: bool = False
    """The agent reports only when it is told to."""
    blind: bool = False
    """The agent can't see control groups: it tells those that it saw last."""
    groups: set[str] = field(default_factory=set)
    listed: int = 1
    """Grows with every list of pods that says something new."""
    boot: int = 1
    remembered: dict[str, Holder] = field(default_factory=dict)
    """Whom the agent has told of, by UID."""

    def accept(self, pod: JsonObject, now_s: float) -> None:
        """A pod was bound to this name."""
        owed = self.would_owe(pod, now_s)
        if owed is not None:
            self.owed[owed.pod.uid] = owed

    def would_owe(self, pod: JsonObject, now_s: float) -> Owed | None:
        """What a pod that is bound here gets. Without a record for this very node the agent gives nothing."""
        observed = an_observed_pod(pod)
        assert observed.request is not None
        given: dict[DeviceRef, tuple[int, int]] = {}
        if self.mode is NodeMode.GPULOOM:
            allocation = decode_allocation(allocation_text(pod) or "")
            if allocation.node_uid != self.uid:
                return None
            given = {item.device: (item.milli, item.memory_mib) for item in allocation.devices}
        return Owed(observed.ref, observed.request.gpu, given, start_by_s=now_s + START_WITHIN_S)

    def start(self, owed: Owed, now_s: float) -> None:
        """On an nvidia node the kubelet takes what is free, at random."""
        owed.started = True
        owed.shown_by_s = now_s + PUBLISH_WITHIN_S
        if self.mode is NodeMode.NVIDIA:
            free = sorted(self._free(owed.request), key=str)
            chosen = self.chance.sample(free, min(owed.request.count, len(free)))
            owed.given = dict.fromkeys(chosen, (MILLI_PER_GPU, 0))

    def pass_time(self, now_s: float) -> None:
        for owed in self.owed.values():
            if not owed.started and now_s >= owed.start_by_s:
                self.start(owed, now_s)
            if owed.shown_by_s is not None and now_s >= owed.shown_by_s:
                owed.shown = True

    def report(self, now_s: float, unnamed: bool = False, partly: bool = False) -> None:
        """`unnamed`: it can't tell whose containers they are; `partly`: of new ones it sees one device."""
        listed = []
        for owed in self.owed.values():
            if self._is_listed(owed):
                pod = PodRef(owed.pod.namespace, owed.pod.name, "" if unnamed else owed.pod.uid)
                owed.shown_fully = owed.shown_fully or not partly
                listed.append(a_holder(pod, *list(owed.given)[: None if owed.shown_fully else 1]))
        here = self._look_at_groups()
        named = {holder.pod.uid: holder for holder in listed}
        # Of one that ended its kubelet tells, which an agent that can't see control groups goes by.
        unlisted = here & self.owed.keys() - named.keys()
        lingering = [holder for uid, holder in self.remembered.items() if uid in unlisted]
        told = [*listed, *(replace(holder, source=HolderSource.CGROUP) for holder in lingering)]
        self.remembered = {holder.pod.uid: holder for holder in told if holder.pod.uid}
        self.said = Report(now_s, self._facts(told, here))
        self.distrusted = False
        self.reports.append(self.said)

    def restart_agent(self) -> None:
        self.remembered.clear()
        self.groups = set()
        self.listed += 1

    def reboot(self, alive: set[str], now_s: float) -> None:
        """Nothing runs any more; what is alive in Kubernetes is started again."""
        self.boot += 1
        self.restart_agent()
        self.owed = {uid: owed for uid, owed in self.owed.items() if uid in alive}
        for owed in self.owed.values():
            owed.started = owed.shown = owed.shown_fully = owed.between_runs = False
            owed.start_by_s, owed.shown_by_s = now_s + START_WITHIN_S, None

    def _is_listed(self, owed: Owed) -> bool:
        if self.name.startswith("e"):
            return owed.vanished_at is None
        if self.mode is NodeMode.NVIDIA:
            return owed.shown and owed.vanished_at is None
        return owed.shown and not owed.between_runs

    def _look_at_groups(self) -> set[str]:
        here = {uid for uid, owed in self.owed.items() if owed.started}
        if not self.blind and here != self.groups:
            self.groups = here
            self.listed += 1
        return self.groups

    def _facts(self, holders: list[Holder], pods: set[str]) -> NodeFacts:
        presence = PodPresence(tuple(sorted(pods)), boot_id=f"boot-{self.boot}", listed_at_ms=self.listed)
        if self.blind:
            presence = replace(presence, unknown_reason="no control groups")
        return some_facts(
            self.name, *self.gpus, uid=self.uid, mode=self.mode, holders=holders, present=presence
        )

    def go_back(self, draw: Callable[[int], int], now_s: float) -> None:
        """Another discovery replica speaks, whose newest report of this node is an older one."""
        fresh = [report for report in self.reports if now_s - report.taken_s <= AGENT_TTL_S]
        if fresh:
            self.said = fresh[draw(len(fresh))]
            self.distrusted = False

    def facts(self, now_s: float) -> NodeFacts | None:
        if self.said is None:
            return None
        if self.distrusted or now_s - self.said.taken_s > AGENT_TTL_S:
            return NodeFacts(self.said.facts.state, ("the agent is silent",))
        return self.said.facts

    def shows(self, owed: Owed) -> bool:
        """Whether discovery goes by a report that has this pod with all it holds, and the next will, too."""
        holders = self.said.facts.state.holders if self.said is not None else ()
        held = {device for holder in holders if holder.pod == owed.pod for device in holder.devices}
        remembered = self._is_listed(owed) or owed.pod.uid in self.remembered
        return owed.started and held == set(owed.given) and remembered

    def overbooked(
        self, coming: Iterable[Owed] = (), believed: NodeView | None = None, heard: int = 0
    ) -> str:
        """What this machine owes beyond what it has; empty if all is well.

        `coming` may be owed at any moment, and what somebody believes to be free may be given away as soon.
        `heard`: how much of the log of Kubernetes that somebody has heard.
        """
        owed = [*self.owed.values(), *coming]
        offered = believed if believed is not None and not believed.closed_reason else None
        if self.mode is NodeMode.NVIDIA:
            problem = self._too_many(owed, offered) or self._given_again(offered, heard)
        else:
            problem = self._too_much(owed, offered)
        return f"{self.name}: {problem}; owed {owed}; believed free {believed}" if problem else ""

    def _too_many(self, owed: list[Owed], offered: NodeView | None) -> str:
        count = Counter[str]()
        for entry in owed:
            count[entry.request.mig_profile or ""] += entry.request.count
        for view in offered.gpus if offered is not None else ():
            if not view.unusable_reason:
                count[""] += view.untouched and not view.gpu.mig_enabled
                count.update(instance.placement.profile for instance in view.free_mig)
        for kind, number in count.items():
            existing = len(list(self._devices(kind)))
            if number > existing:
                return f"{number} devices {kind!r} of {existing}"
        return ""

    def _given_again(self, offered: NodeView | None, heard: int) -> str:
        """A kubelet counts the devices of a pod that vanished as free, and may choose them for the next."""
        forgotten = [
            entry
            for entry in self.owed.values()
            if entry.started and entry.vanished_at is not None and entry.vanished_at < heard
        ]
        free = [view.gpu.uuid for view in offered.gpus if view.untouched or view.free_mig] if offered else []
        return f"{free} offered beside {forgotten}" if free and forgotten else ""

    def _too_much(self, owed: list[Owed], offered: NodeView | None) -> str:
        milli, memory_mib, owners = Counter[str](), Counter[str](), Counter[DeviceRef]()
        for entry in owed:
            for device, share in entry.given.items():
                owners[device] += 1
                if device.mig is None:
                    milli[device.gpu_uuid] += share[0]
                    memory_mib[device.gpu_uuid] += share[1]
        for view in offered.gpus if offered is not None else ():
            if not view.unusable_reason and not view.gpu.mig_enabled:
                milli[view.gpu.uuid] += view.free_milli
                memory_mib[view.gpu.uuid] += view.free_memory_mib
            owners.update(DeviceRef(view.gpu.uuid, instance.placement) for instance in view.free_mig)
        for gpu in self.gpus:
            if milli[gpu.uuid] > MILLI_PER_GPU or memory_mib[gpu.uuid] > gpu.memory_mib:
                return f"{milli[gpu.uuid]} milli, {memory_mib[gpu.uuid]} MiB of {gpu.uuid}"
        twice = [device for device, number in owners.items() if device.mig is not None and number > 1]
        return f"slices with two owners: {twice}" if twice else ""

    def _free(self, request: GpuRequest) -> set[DeviceRef]:
        held = {device for owed in self.owed.values() for device in owed.given}
        return set(self._devices(request.mig_profile or "")) - held

    def _devices(self, profile: str) -> Iterator[DeviceRef]:
        for gpu in self.gpus:
            if not profile and not gpu.mig_enabled:
                yield DeviceRef(gpu.uuid)
            for instance in gpu.mig_instances:
                if instance.placement.profile == profile:
                    yield DeviceRef(gpu.uuid, instance.placement)
