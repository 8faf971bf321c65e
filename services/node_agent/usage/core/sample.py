"""From one sample of the node to what each pod does on each device. Pure.

Decides what counts as measured. Only what the driver says of exactly this pod counts: the utilisation of a
card that one pod has alone, that of a MIG instance where the card measures it, or the time of the pod's own
processes. A card's utilisation is never divided among pods by guess: that would be a bill for a guess.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu
from gpuloom.model.node import Holder, HolderSource, PodRef
from gpuloom.model.process import GpuProcess
from services.node_agent.attribution.core.ownership import MPS_NAME
from services.node_agent.core.picture import Picture
from services.node_agent.core.readings import DriverReading

BYTES_PER_MIB = 1024 * 1024
FOREIGN = PodRef("", "", "")
"""Whose processes belong to no pod."""

Held = tuple[PodRef | None, DeviceRef]
"""A pod and a device that it has, or nobody and a device that nobody has."""
Given = Mapping[str, Mapping[DeviceRef, int]]
"""Thousandths of devices that pods were given by their allocations, by pod UID."""


@dataclass(frozen=True, slots=True)
class Reading:
    """None is what is not known, never zero. `rivals` are others that have the device or a part of it."""

    milli: int | None = None
    utilization_ratio: float | None = None
    memory_bytes: int | None = None
    rivals: frozenset[PodRef] = frozenset()


@dataclass(frozen=True, slots=True)
class Sample:
    """`at_ns` is by a clock that nobody sets. `energy_j` and `power_w` are of whole cards, by UUID."""

    at_ns: int
    wall: datetime
    node_uid: str
    holders_known: bool
    readings: Mapping[Held, Reading]
    energy_j: Mapping[str, float] = field(default_factory=dict)
    power_w: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moment:
    """When a sample was taken, by both clocks."""

    at_ns: int
    wall: datetime


def sample_of(picture: Picture, given: Given, moment: Moment) -> Sample:
    state, reading = picture.state, picture.reading
    holders = _by_device(state.holders)
    known = None if state.holders_unknown_reason else reading
    driver = None if known is None else _Driver(known, picture.processes, state.gpus)
    readings: dict[Held, Reading] = {}
    for device, pods in holders.items():
        rivals = _rivals(device, holders)
        for pod, holder in pods.items():
            if pod != FOREIGN:
                others = frozenset(rivals - {pod})
                milli = _milli(holder, device, given, bool(others))
                blank = Reading(milli, rivals=others)
                readings[pod, device] = blank if driver is None else driver.measured(pod, device, blank)
    for device in _free_devices(state.gpus, holders):
        readings[None, device] = Reading()
    samples = {} if reading is None else reading.samples
    return Sample(
        at_ns=moment.at_ns,
        wall=moment.wall,
        node_uid=state.node_uid,
        holders_known=not state.holders_unknown_reason,
        readings=readings,
        energy_j={uuid: sample.energy_j for uuid, sample in samples.items() if sample.energy_j is not None},
        power_w={uuid: sample.power_w for uuid, sample in samples.items() if sample.power_w is not None},
    )


class _Driver:
    """What the driver says, of devices of which it is known who has them."""

    def __init__(self, reading: DriverReading, processes: Iterable[GpuProcess], gpus: Iterable[Gpu]) -> None:
        self._reading = reading
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._processes: dict[DeviceRef, list[GpuProcess]] = defaultdict(list)
        for process in processes:
            self._processes[process.device].append(process)

    def measured(self, pod: PodRef, device: DeviceRef, blank: Reading) -> Reading:
        shared = bool(blank.rivals)
        ratio = self._shared_ratio(pod, device) if shared else self._own_ratio(device)
        memory = self._memory_mib(pod, device, shared)
        return replace(
            blank,
            utilization_ratio=None if ratio is None else min(max(ratio, 0.0), 1.0),
            memory_bytes=None if memory is None else memory * BYTES_PER_MIB,
        )

    def _own_ratio(self, device: DeviceRef) -> float | None:
        if device.mig is not None:
            activity = self._reading.activity.get(device)
            if activity is None:
                return None
            return activity.graphics_ratio if activity.graphics_ratio is not None else activity.sm_ratio
        gpu, sample = self._gpus.get(device.gpu_uuid), self._reading.samples.get(device.gpu_uuid)
        # A card in MIG mode gives no utilisation of the whole.
        return None if gpu is None or gpu.mig_enabled or sample is None else sample.utilization_ratio

    def _shared_ratio(self, pod: PodRef, device: DeviceRef) -> float | None:
        """By the pod's own processes, where the driver counts the time of processes at all."""
        if device.mig is not None or not pod.uid or device.gpu_uuid not in self._reading.processes:
            return None
        sample = self._reading.samples.get(device.gpu_uuid)
        if sample is not None and sample.utilization_ratio == 0:
            return 0.0
        there = self._processes[device]
        # The time of MPS' clients may be counted as their server's.
        if any(process.name == MPS_NAME and process.sm_ratio for process in there):
            return None
        if all(process.sm_ratio is None for process in there):
            return None
        own = [process for process in there if _is_of(process, pod)]
        if not own and _any_ownerless(there):
            return None
        # Beside measured processes, one for which no time is listed had none.
        total = sum(process.sm_ratio or 0.0 for process in there)
        return sum(process.sm_ratio or 0.0 for process in own) / max(total, 1.0)

    def _memory_mib(self, pod: PodRef, device: DeviceRef, shared: bool) -> int | None:
        there = self._processes[device]
        own = [process.memory_mib for process in there if _is_of(process, pod)]
        known = [amount for amount in own if amount is not None]
        listed = device.gpu_uuid in self._reading.processes and bool(pod.uid)
        if listed and len(known) == len(own) and (own or not _any_ownerless(there)):
            return sum(known)
        if shared:
            return None
        if device.mig is not None:
            instance = self._reading.instances.get(device)
            return None if instance is None else instance.memory_used_mib
        sample = self._reading.samples.get(device.gpu_uuid)
        return None if sample is None else sample.memory_used_mib


def _is_of(process: GpuProcess, pod: PodRef) -> bool:
    return process.pod is not None and process.pod.uid == pod.uid


def _any_ownerless(processes: Iterable[GpuProcess]) -> bool:
    """Such a process may be that of a pod which Kubernetes does not show here, or not yet."""
    return any(process.pod is None for process in processes)


def _milli(holder: Holder, device: DeviceRef, given: Given, shared: bool) -> int | None:
    if device.mig is not None:
        return MILLI_PER_GPU
    told = given.get(holder.pod.uid, {}).get(device)
    if told is not None:
        return told
    # A device plugin gives whole cards, unless it gives replicas of one; then several pods have it, or one
    # counts more than it has.
    whole = holder.source in (HolderSource.KUBELET, HolderSource.CLAIM)
    return MILLI_PER_GPU if whole and not shared and holder.count == len(holder.devices) else None


def _by_device(holders: Iterable[Holder]) -> dict[DeviceRef, dict[PodRef, Holder]]:
    """Containers of one pod are one; what was given says more than what computes."""
    found: dict[DeviceRef, dict[PodRef, Holder]] = defaultdict(dict)
    for holder in sorted(holders, key=lambda each: each.source is HolderSource.PROCESS):
        for device in holder.devices:
            found[device].setdefault(holder.pod, holder)
    return found


def _rivals(device: DeviceRef, holders: Mapping[DeviceRef, Mapping[PodRef, Holder]]) -> set[PodRef]:
    """Whoever has it, or the card that it is on, or an instance of it."""
    return {
        pod
        for other, pods in holders.items()
        if other.gpu_uuid == device.gpu_uuid
        and (other.mig == device.mig or other.mig is None or device.mig is None)
        for pod in pods
    }


def _free_devices(
    gpus: Iterable[Gpu], holders: Mapping[DeviceRef, Mapping[PodRef, Holder]]
) -> Iterable[DeviceRef]:
    held = {device for device, pods in holders.items() if any(pod != FOREIGN for pod in pods)}
    for gpu in gpus:
        whole = DeviceRef(gpu.uuid)
        if whole in held:
            continue
        parts = [DeviceRef(gpu.uuid, instance.placement) for instance in gpu.mig_instances]
        yield from (part for part in parts or [whole] if part not in held)
