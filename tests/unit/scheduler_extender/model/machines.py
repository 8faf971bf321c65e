"""The nodes of the model: what containers really hold, and what their agents say of it, late or wrongly.

The truth is strict: from the moment a Binding is applied a kubelet owes the pod its devices, whether or not
the container runs yet, and until it has really ended, whatever Kubernetes says meanwhile.

Who lists a container depends on the node: the kubelet where it chooses, the container runtime where the agent
delivers, and Kubernetes itself where devices come by environment (`e1`). The first and the last forget a
force-deleted pod at once; the runtime lists nothing between two runs. Of those that it has listed an agent
goes on to tell as long as their control group exists, but an agent that restarts remembers nobody.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from gpuloom.codec.allocation import decode_allocation
from gpuloom.codec.pod import plugged_devices
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu
from gpuloom.model.node import Holder, HolderSource, NodeMode, PodPresence, PodRef
from gpuloom.model.request import GpuRequest
from gpuloom.model.snapshot import NodeFacts
from gpuloom.placement.devices import NodeView
from services.scheduler_extender.core.objects.pods import allocation_text, observed_pod
from tests.unit.scheduler_extender.builders import JsonObject, a_holder, some_facts

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
    mode: NodeMode
    """In which its devices are given; the node may have changed since."""
    started: bool = False
    shown_by_s: float | None = None
    shown: bool = False
    shown_fully: bool = False
    vanished_at: int | None = None
    """How long the log of Kubernetes was when it was force-deleted; None while it is in Kubernetes."""
    between_runs: bool = False
    unlisted: int = 0
    """How many of its devices only an init container asked for: the kubelet keeps and never lists them."""

    @property
    def listed(self) -> list[DeviceRef]:
        return list(self.given)[: len(self.given) - self.unlisted]

    def keep_listed_only(self) -> None:
        """The kubelet forgets a force-deleted pod at once, and what nobody uses is free again."""
        self.given = {device: self.given[device] for device in self.listed}
        self.request = replace(self.request, count=self.request.count - self.unlisted)
        self.unlisted = 0


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
    out_of_sight: set[str] = field(default_factory=set)
    """UUIDs of cards that its agent does not know any more; whoever has them still does."""
    distrusted: bool = False
    quiet: bool = False
    """The agent reports only when it is told to."""
    claimed: dict[PodRef, DeviceRef] = field(default_factory=dict)
    """What a DRA driver gave out, by pods that ask for no GPU otherwise."""
    ended: set[str] = field(default_factory=set)
    """UIDs of pods whose containers have ended: they don't start again."""
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
        """What a pod that is bound here gets. Without a record for this very node the agent gives nothing.

        What is not given out in this mode a kubelet refuses, and the agent does not deliver.
        """
        observed = observed_pod(pod)
        if observed is None:
            return None
        assert observed.request is not None
        if observed.request.gpu.authority.value != self.mode.value:
            return None
        given: dict[DeviceRef, tuple[int, int]] = {}
        if self.mode is NodeMode.GPULOOM:
            text = allocation_text(pod)
            if text is None:
                return None
            allocation = decode_allocation(text)
            if allocation.node_uid != self.uid:
                return None
            given = {item.device: (item.milli, item.memory_mib) for item in allocation.devices}
        unlisted = sum(kind.most - kind.lasting for kind in plugged_devices(pod))
        start_by_s = now_s + START_WITHIN_S
        return Owed(observed.ref, observed.request.gpu, given, start_by_s, self.mode, unlisted=unlisted)

    def change_mode(self, bound: Iterable[JsonObject], now_s: float) -> None:
        """Whatever runs keeps its devices. What has not started gets them only where they are still given.

        Of the pods that are `bound` here the agent delivers to those that it could not deliver to before, if
        no other mode's container has what they were given; a kubelet has refused its ones for good.
        """
        self.mode = NodeMode.NVIDIA if self.mode is NodeMode.GPULOOM else NodeMode.GPULOOM
        self.out_of_sight.clear()
        self.restart_agent()
        self.owed = {uid: owed for uid, owed in self.owed.items() if owed.started or owed.mode is self.mode}
        if self.mode is NodeMode.GPULOOM:
            held = self.held_elsewhere
            for pod in bound:
                owed = self.would_owe(pod, now_s)
                if owed is None or owed.pod.uid in self.owed.keys() | self.ended:
                    continue
                if not _overlap(owed.given, held):
                    self.owed[owed.pod.uid] = owed

    @property
    def by_environment(self) -> bool:
        """Its pods get their devices by their environment; the API's pods are its holders."""
        return self.name.startswith("e")

    @property
    def held_elsewhere(self) -> set[DeviceRef]:
        return self._held_elsewhere(self.owed.values())

    def may_be_claimed(self) -> list[DeviceRef]:
        """Cards that a DRA driver may take without any fault of ours: nobody has them or is about to."""
        if any(not owed.started for owed in self.owed.values()):
            return []
        held = {device for owed in self.owed.values() for device in owed.given} | set(self.claimed.values())
        return [device for device in self._devices("") if device not in held]

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
                devices = owed.listed[: None if owed.shown_fully else 1]
                listed += [self._holder(owed, pod, devices)] if devices else []
        here = self._look_at_groups()
        named = {holder.pod.uid: holder for holder in listed}
        # Of one that ended its kubelet tells, which an agent that can't see control groups goes by.
        unlisted = here & self.owed.keys() - named.keys()
        lingering = [holder for uid, holder in self.remembered.items() if uid in unlisted]
        told = [*listed, *(replace(holder, source=HolderSource.CGROUP) for holder in lingering)]
        self.remembered = {holder.pod.uid: holder for holder in told if holder.pod.uid}
        told += [a_holder(pod, card, source=HolderSource.CLAIM) for pod, card in self.claimed.items()]
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
        ours = {uid: owed for uid, owed in self.owed.items() if owed.mode is self.mode}
        self.owed = {uid: owed for uid, owed in ours.items() if uid in alive}
        for owed in self.owed.values():
            owed.started = owed.shown = owed.shown_fully = owed.between_runs = False
            owed.start_by_s, owed.shown_by_s = now_s + START_WITHIN_S, None

    def _is_listed(self, owed: Owed) -> bool:
        if self.by_environment:
            return owed.vanished_at is None
        if owed.mode is NodeMode.NVIDIA:
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
        gpus = [gpu for gpu in self.gpus if gpu.uuid not in self.out_of_sight]
        return some_facts(self.name, *gpus, uid=self.uid, mode=self.mode, holders=holders, present=presence)

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
        lingers = owed.pod.uid in self.remembered and (not self.blind or owed.pod.uid in self.groups)
        remembered = self._is_listed(owed) or lingers
        return owed.started and held == set(owed.given) and remembered

    def overbooked(
        self, coming: Iterable[Owed] = (), believed: NodeView | None = None, heard: int = 0
    ) -> str:
        """What this machine owes beyond what it has; empty if all is well.

        `coming` may be owed at any moment, and what somebody believes to be free may be given away as soon.
        `heard`: how much of the log of Kubernetes that somebody has heard.
        """
        owed = [*self.owed.values(), *coming]
        # What is believed of another mode would go to pods that get nothing here.
        is_offered = believed is not None and not believed.closed_reason and believed.mode is self.mode
        offered = believed if is_offered else None
        if self.mode is NodeMode.NVIDIA:
            problem = self._too_many(owed, offered) or self._given_again(offered, heard)
        else:
            problem = self._too_much(owed, offered)
        return f"{self.name}: {problem}; owed {owed}; believed free {believed}" if problem else ""

    def _too_many(self, owed: list[Owed], offered: NodeView | None) -> str:
        count = Counter[str]()
        ours = [entry for entry in owed if entry.mode is self.mode]
        if self._held_elsewhere(owed) and (
            any(not entry.started for entry in ours) or (offered is not None and _has_any(offered))
        ):
            return "the device plugin may choose what it does not know to be held"
        for entry in ours:
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
        milli.update({card.gpu_uuid: MILLI_PER_GPU for card in self.claimed.values()})
        for view in offered.gpus if offered is not None else ():
            if view.unusable_reason:
                continue
            if not view.gpu.mig_enabled:
                milli[view.gpu.uuid] += view.free_milli
                memory_mib[view.gpu.uuid] += view.free_memory_mib
            owners.update(DeviceRef(view.gpu.uuid, instance.placement) for instance in view.free_mig)
        for gpu in self.gpus:
            if milli[gpu.uuid] > MILLI_PER_GPU or memory_mib[gpu.uuid] > gpu.memory_mib:
                return f"{milli[gpu.uuid]} milli, {memory_mib[gpu.uuid]} MiB of {gpu.uuid}"
        twice = [device for device, number in owners.items() if device.mig is not None and number > 1]
        return f"slices with two owners: {twice}" if twice else ""

    def _free(self, request: GpuRequest) -> set[DeviceRef]:
        """As the kubelet sees it, which knows only what its device plugin gave."""
        ours = (owed for owed in self.owed.values() if owed.mode is self.mode)
        held = {device for owed in ours for device in owed.given}
        return set(self._devices(request.mig_profile or "")) - held

    def _held_elsewhere(self, owed: Iterable[Owed]) -> set[DeviceRef]:
        """What containers have that were not given it by whoever gives now."""
        others = {device for entry in owed if entry.mode is not self.mode for device in entry.given}
        return others | set(self.claimed.values())

    def _holder(self, owed: Owed, pod: PodRef, devices: Sequence[DeviceRef]) -> Holder:
        """The kubelet's list is always there; without the runtime's a container is seen by its processes."""
        if owed.mode is NodeMode.NVIDIA:
            return a_holder(pod, *devices, source=HolderSource.KUBELET)
        if self.by_environment:
            return a_holder(pod, *devices, source=HolderSource.ENVIRONMENT)
        if self.mode is NodeMode.GPULOOM:
            return a_holder(pod, *devices, source=HolderSource.RUNTIME)
        return a_holder(owed.pod, *owed.given, source=HolderSource.PROCESS)

    def _devices(self, profile: str) -> Iterator[DeviceRef]:
        for gpu in self.gpus:
            if not profile and not gpu.mig_enabled:
                yield DeviceRef(gpu.uuid)
            for instance in gpu.mig_instances:
                if instance.placement.profile == profile:
                    yield DeviceRef(gpu.uuid, instance.placement)


def _overlap(given: Iterable[DeviceRef], held: Iterable[DeviceRef]) -> bool:
    """A card and a slice of it are in each other's way."""
    return any(
        one.gpu_uuid == other.gpu_uuid and (one.mig == other.mig or None in (one.mig, other.mig))
        for one in given
        for other in held
    )


def _has_any(view: NodeView) -> bool:
    """Whether a whole card or a slice of this node is believed to be free."""
    usable = [gpu for gpu in view.gpus if not gpu.unusable_reason]
    return any(gpu.free_mig or (gpu.untouched and not gpu.gpu.mig_enabled) for gpu in usable)
