"""Who uses how much of a device. Pure.

Decides the parts in which the readings of a device are shown when several containers have it: by what their
processes really use, else in equal parts. The parts of a device always make one whole. It never decides who
may have a device, and never what it costs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import Holder, HolderSource
from gpuloom.model.process import GpuProcess
from services.node_agent.core.picture import Picture


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """A container by its names."""

    namespace: str = ""
    pod: str = ""
    container: str = ""


NOBODY = Owner()
"""Stands for processes of no pod, and for a device that nobody has."""


@dataclass(frozen=True, slots=True)
class Share:
    owner: Owner
    compute_ratio: float
    memory_ratio: float


class Division:
    """How the devices of one sample are divided."""

    def __init__(self, picture: Picture) -> None:
        self._holders = _holders_by_device(picture.state.holders)
        self._processes: dict[DeviceRef, list[GpuProcess]] = defaultdict(list)
        for process in picture.processes:
            self._processes[process.device].append(process)

    def shares(self, device: DeviceRef) -> tuple[Share, ...]:
        """At least one, by owner. Who holds a card that is cut into instances holds all of them."""
        holders = self._holders.get(device, set()) | self._holders.get(DeviceRef(device.gpu_uuid), set())
        return divide(holders, self._processes.get(device, ()))


def divide(holders: Iterable[Owner], processes: Iterable[GpuProcess]) -> tuple[Share, ...]:
    """The parts of one device, which these containers hold and on which these processes compute."""
    known = set(holders)
    compute: dict[Owner, float] = defaultdict(float)
    memory: dict[Owner, float] = defaultdict(float)
    for process in processes:
        owner = _owner(process, known)
        # The driver lists no time for a process that was idle, so next to measured ones it used none.
        compute[owner] += max(process.sm_ratio or 0.0, 0.0)
        memory[owner] += max(process.memory_mib or 0, 0)
    # A process of no pod that uses nothing needs no series of its own.
    unseen = {NOBODY} if not (compute[NOBODY] or memory[NOBODY]) else set()
    owners = sorted((known | compute.keys()) - unseen) or [NOBODY]
    compute_ratios, memory_ratios = _ratios(owners, compute), _ratios(owners, memory)
    return tuple(Share(owner, compute_ratios[owner], memory_ratios[owner]) for owner in owners)


def _ratios(owners: list[Owner], used: Mapping[Owner, float]) -> dict[Owner, float]:
    total = sum(used.values())
    if total > 0:
        return {owner: used.get(owner, 0.0) / total for owner in owners}
    # Where no use is measured, who has the device answers for it.
    pods = [owner for owner in owners if owner != NOBODY] or owners
    return {owner: 1 / len(pods) if owner in pods else 0.0 for owner in owners}


def _owner(process: GpuProcess, holders: set[Owner]) -> Owner:
    # A pod that is known by its UID alone has no name to be shown under.
    if process.pod is None or not process.pod.name:
        return NOBODY
    namespace, pod = process.pod.namespace, process.pod.name
    if process.container:
        return Owner(namespace, pod, process.container)
    # Not told which container: it can only be the one that has the device, if there is one.
    candidates = [owner for owner in holders if (owner.namespace, owner.pod) == (namespace, pod)]
    return candidates[0] if len(candidates) == 1 else Owner(namespace, pod)


def _holders_by_device(holders: Iterable[Holder]) -> dict[DeviceRef, set[Owner]]:
    """By name, because names are what series tell apart: a pod made anew goes on under its labels."""
    found: dict[DeviceRef, set[Owner]] = defaultdict(set)
    for holder in holders:
        # Those known by their processes alone are shown for what these use.
        if holder.source is HolderSource.PROCESS or not holder.pod.name:
            continue
        owner = Owner(holder.pod.namespace, holder.pod.name, holder.container)
        for device in holder.devices:
            found[device].add(owner)
    return found
