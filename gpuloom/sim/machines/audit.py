"""The independent check: was any device ever given to two owners at once?

It judges from what the simulated machines recorded as they started and ended containers, and from what
hardware they have. It never reads annotations, the ledger or anything else the product says.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import combinations
from pathlib import Path

from gpuloom.catalog import load_catalog
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import NodeMode, PodRef
from gpuloom.names import RESOURCE_NVIDIA_GPU, RESOURCE_NVIDIA_MIG_PREFIX
from gpuloom.sim.machines.hardware import Hardware, plugin_resource
from gpuloom.sim.machines.journal import (
    JOURNAL_FILE,
    EntryKind,
    JournalEntry,
    ParsedJournal,
    parse_journal,
    read_journal,
)
from gpuloom.sim.machines.layouts import ever_made
from gpuloom.sim.machines.machine import find_machines, read_hardware


class FindingKind(StrEnum):
    TWO_WHOLE_OWNERS = "two-whole-owners"
    WHOLE_BESIDE_SHARE = "whole-beside-share"
    SHARES_ABOVE_CARD = "shares-above-card"
    MEMORY_ABOVE_CARD = "memory-above-card"
    CARD_BESIDE_INSTANCE = "card-beside-instance"
    OVERLAPPING_INSTANCES = "overlapping-instances"
    STARTED_TWICE = "started-twice"
    UNKNOWN_DEVICE = "unknown-device"
    OVERBOOKED = "overbooked"
    CORRUPT_JOURNAL = "corrupt-journal"


@dataclass(frozen=True, slots=True)
class Finding:
    """`sequence` is the journal entry that showed it, 0 if the journal itself is at fault."""

    kind: FindingKind
    node: str
    sequence: int
    message: str
    gpu_uuid: str = ""
    pods: tuple[PodRef, ...] = ()

    def __str__(self) -> str:
        return f"{self.node}: {self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """`refusals` are pods that a kubelet turned away for another reason than overbooking."""

    machines: int
    starts: int
    ends: int
    findings: tuple[Finding, ...] = ()
    refusals: tuple[str, ...] = ()

    @property
    def double_bookings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.kind is not FindingKind.CORRUPT_JOURNAL)

    @property
    def clean(self) -> bool:
        return not self.findings


@dataclass(slots=True)
class _Sweep:
    """Who holds what after the entries seen so far."""

    hardware: Hardware
    made: Callable[[], frozenset[DeviceRef]] = frozenset
    """Instances that it had beside those that it was built with."""
    starts: int = 0
    ends: int = 0
    last_sequence: int = 0
    held: dict[PodRef, tuple[AllocatedDevice, ...]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def read(self, journal: ParsedJournal) -> None:
        """The next part of the machine's journal."""
        node = self.hardware.spec.node
        self.findings.extend(Finding(FindingKind.CORRUPT_JOURNAL, node, 0, text) for text in journal.corrupt)
        for entry in journal.entries:
            if entry.sequence <= self.last_sequence:
                text = f"entry {entry.sequence} follows entry {self.last_sequence}"
                self.find(entry, FindingKind.CORRUPT_JOURNAL, text)
            self.last_sequence = entry.sequence
            self.starts += entry.kind is EntryKind.START
            self.ends += entry.kind is EntryKind.END
            _STEPS[entry.kind](self, entry)

    def report(self) -> AuditReport:
        return AuditReport(1, self.starts, self.ends, tuple(self.findings), tuple(self.refusals))

    def on_gpu(self, gpu_uuid: str) -> list[tuple[PodRef, AllocatedDevice]]:
        return [
            (pod, device)
            for pod, devices in self.held.items()
            for device in devices
            if device.device.gpu_uuid == gpu_uuid
        ]

    def find(self, entry: JournalEntry, kind: FindingKind, message: str) -> None:
        self.findings.append(
            Finding(kind, self.hardware.spec.node, entry.sequence, message, pods=(entry.pod,))
        )


def audit(machines_dir: Path) -> AuditReport:
    """Judge every machine under the directory. Raise InvalidRequestError if a machine can't be read."""
    return combine(
        audit_machine(
            read_hardware(directory), read_journal(directory / JOURNAL_FILE), partial(ever_made, directory)
        )
        for directory in find_machines(machines_dir, with_ended=True)
    )


def combine(reports: Iterable[AuditReport]) -> AuditReport:
    parts = tuple(reports)
    return AuditReport(
        machines=sum(part.machines for part in parts),
        starts=sum(part.starts for part in parts),
        ends=sum(part.ends for part in parts),
        findings=tuple(finding for part in parts for finding in part.findings),
        refusals=tuple(refusal for part in parts for refusal in part.refusals),
    )


def audit_machine(
    hardware: Hardware, journal: ParsedJournal, made: Callable[[], frozenset[DeviceRef]] = frozenset
) -> AuditReport:
    """Sweep one journal in its order."""
    sweep = _Sweep(hardware, made)
    sweep.read(journal)
    return sweep.report()


class LiveAudit:
    """The same judgement while machines run: every call reads only what was written since the one before."""

    def __init__(self, machines_dir: Path) -> None:
        """Raise InvalidRequestError if a machine can't be read."""
        self._machines = [_LiveMachine(directory) for directory in find_machines(machines_dir)]

    def report(self) -> AuditReport:
        return combine(machine.report() for machine in self._machines)


class _LiveMachine:
    def __init__(self, directory: Path) -> None:
        self._sweep = _Sweep(read_hardware(directory), partial(ever_made, directory))
        self._journal = directory / JOURNAL_FILE
        self._read_bytes = 0
        self._read_lines = 0

    def report(self) -> AuditReport:
        try:
            with self._journal.open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
        except FileNotFoundError:
            new = b""
        # A line that is still being written is read with the next call, or cut off by the next kubelet.
        lines = new[: new.rfind(b"\n") + 1]
        if lines:
            self._sweep.read(parse_journal(lines, self._read_lines + 1))
            self._read_bytes += len(lines)
            self._read_lines += lines.count(b"\n")
        return self._sweep.report()


def _start(sweep: _Sweep, entry: JournalEntry) -> None:
    if entry.pod in sweep.held:
        sweep.find(entry, FindingKind.STARTED_TWICE, f"{entry.pod} started while it was running")
        return
    sweep.held[entry.pod] = entry.devices
    known = {gpu.uuid: gpu.memory_mib for gpu in sweep.hardware.gpus}
    for device in dict.fromkeys(held.device for held in entry.devices):
        existed = _instance_exists(sweep.hardware, device) or device in sweep.made()
        if device.gpu_uuid not in known or not existed:
            sweep.find(entry, FindingKind.UNKNOWN_DEVICE, f"{entry.pod} was given {_name(device)}, not there")
    for gpu_uuid in dict.fromkeys(held.device.gpu_uuid for held in entry.devices):
        holdings = sweep.on_gpu(gpu_uuid)
        for kind, message in _conflicts(holdings, known.get(gpu_uuid, 0), _slices(sweep.hardware)):
            pods = tuple(dict.fromkeys(pod for pod, _ in holdings))
            names = ", ".join(str(pod) for pod in pods)
            sweep.findings.append(
                Finding(
                    kind,
                    sweep.hardware.spec.node,
                    entry.sequence,
                    f"{gpu_uuid}: {message}: {names}",
                    gpu_uuid,
                    pods,
                )
            )


def _end(sweep: _Sweep, entry: JournalEntry) -> None:
    if sweep.held.pop(entry.pod, None) is None:
        sweep.find(entry, FindingKind.CORRUPT_JOURNAL, f"{entry.pod} ended but never started")


def _refused(sweep: _Sweep, entry: JournalEntry) -> None:
    """Too few devices counts as overbooking unless enough exist and only a fault withheld them."""
    is_nvidia = entry.resource == RESOURCE_NVIDIA_GPU or entry.resource.startswith(RESOURCE_NVIDIA_MIG_PREFIX)
    capacity = _device_count(sweep.hardware, entry.resource)
    held = len(set(_held_devices(sweep, entry.resource)))
    if is_nvidia and held + entry.requested > capacity:
        message = f"{entry.pod} wanted {entry.requested} {entry.resource}, {held} of {capacity} were taken"
        sweep.find(entry, FindingKind.OVERBOOKED, message)
    else:
        sweep.refusals.append(f"{sweep.hardware.spec.node}: {entry.pod}: {entry.reason}")


_STEPS = {EntryKind.START: _start, EntryKind.END: _end, EntryKind.REFUSED: _refused}


def _slices(hardware: Hardware) -> dict[str, int]:
    """How many memory slices an instance of each profile covers."""
    model = load_catalog().find_gpu(hardware.spec.gpu_model)
    return {} if model is None else {profile.name: profile.memory_slices for profile in model.mig_profiles}


def _overlap(one: MigPlacement, other: MigPlacement, slices: Mapping[str, int]) -> bool:
    first, second = sorted((one, other))
    return first != second and first.start + slices.get(first.profile, 1) > second.start


def _conflicts(
    holdings: list[tuple[PodRef, AllocatedDevice]], memory_mib: int, slices: Mapping[str, int]
) -> Iterator[tuple[FindingKind, str]]:
    cards = [held for _, held in holdings if held.device.mig is None]
    instances = [held.device.mig for _, held in holdings if held.device.mig is not None]
    whole = sum(held.milli >= MILLI_PER_GPU for held in cards)
    shares = len(cards) - whole
    milli = sum(held.milli for held in cards)
    used_mib = sum(held.memory_mib for held in cards)
    if whole > 1:
        yield FindingKind.TWO_WHOLE_OWNERS, f"{whole} owners of the whole card"
    elif whole and shares:
        yield FindingKind.WHOLE_BESIDE_SHARE, f"a whole owner beside {shares} shares"
    elif milli > MILLI_PER_GPU:
        yield FindingKind.SHARES_ABOVE_CARD, f"shares add up to {milli} milli"
    elif used_mib > memory_mib:
        yield FindingKind.MEMORY_ABOVE_CARD, f"memory adds up to {used_mib} of {memory_mib} MiB"
    if len(set(instances)) < len(instances):
        yield FindingKind.TWO_WHOLE_OWNERS, "two owners of one MIG instance"
    if any(_overlap(one, other, slices) for one, other in combinations(instances, 2)):
        yield FindingKind.OVERLAPPING_INSTANCES, "two MIG instances on the same slices"
    if cards and instances:
        yield FindingKind.CARD_BESIDE_INSTANCE, "the card itself beside its MIG instances"


def _instance_exists(hardware: Hardware, device: DeviceRef) -> bool:
    return device.mig is None or any(
        device.mig == instance.placement
        for gpu in hardware.gpus
        if gpu.uuid == device.gpu_uuid
        for instance in gpu.mig_instances
    )


def _held_devices(sweep: _Sweep, resource: str) -> Iterator[DeviceRef]:
    for devices in sweep.held.values():
        for held in devices:
            if plugin_resource(held.device) == resource:
                yield held.device


def _device_count(hardware: Hardware, resource: str) -> int:
    if hardware.spec.mode is not NodeMode.NVIDIA:
        return 0
    return len(hardware.plugin_devices().get(resource, ()))


def _name(device: DeviceRef) -> str:
    if device.mig is None:
        return device.gpu_uuid
    return f"{device.gpu_uuid} {device.mig.profile} at {device.mig.start}"
