"""A simulated GPU machine as a directory, so that hardware outlives every process that reads it.

machine.json     what it is; written once, renamed to machine.ended.json when its cloud takes it back
containers.json  which pods it hosts on which devices; written by its kubelet alone, replaced whole
layout.json      how its GPUs are cut and shared now; see `layouts`
faults.json      faults on request; written by tests and commands, read live
journal.jsonl    what started and ended; appended by its kubelet alone, read by the audit

This file decides nothing about pods; it keeps and shows what its kubelet put there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson

from gpuloom.catalog import load_catalog
from gpuloom.errors import InvalidRequestError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.layout import Sharing
from gpuloom.model.node import PodRef
from gpuloom.sim.machines.hardware import (
    Hardware,
    MachineSpec,
    assemble,
    hardware_from_json,
    hardware_to_json,
)
from gpuloom.sim.machines.journal import JOURNAL_FILE, device_from_json, device_to_json, what_is_wrong
from gpuloom.sim.machines.layouts import (
    LAYOUT_FILE,
    LayoutFile,
    MachineLayout,
    layout_from_json,
    overlaid,
    replace_file,
)
from gpuloom.sim.machines.load import (
    DeviceProcess,
    Faults,
    GpuFault,
    LoadProfile,
    Readings,
    RunningContainer,
    readings,
)

__all__ = [
    "DeviceProcess",
    "Faults",
    "GpuFault",
    "HostedClaim",
    "HostedContainer",
    "HostedPod",
    "Machine",
    "MachineSpec",
    "Readings",
    "end_machine",
    "find_machines",
    "machine_names",
    "read_hardware",
    "readings",
]

MACHINE_FILE = "machine.json"
ENDED_FILE = "machine.ended.json"
CONTAINERS_FILE = "containers.json"
FAULTS_FILE = "faults.json"
SOCKET_FILE = "pod-resources.sock"

Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class HostedClaim:
    """A device that a DRA driver gave; `held` is the GPU it is, None if it is none."""

    driver: str
    device: str
    held: AllocatedDevice | None = None


@dataclass(frozen=True, slots=True)
class HostedContainer:
    name: str
    devices: tuple[AllocatedDevice, ...] = ()
    claims: tuple[HostedClaim, ...] = ()


@dataclass(frozen=True, slots=True)
class HostedPod:
    """A pod that this machine took in. Times are seconds since 1970 by the wall clock.

    It holds its devices from admission until `exited`. An exited pod stays listed until Kubernetes has
    been told its end, so that a kubelet killed in between neither starts it again nor forgets the outcome.
    `forgotten_at_s`: it vanished from Kubernetes, and its kubelet no longer counts it, while its containers
    have up to `grace_s` to stop.
    """

    pod: PodRef
    containers: tuple[HostedContainer, ...]
    load: LoadProfile
    starts_at_s: float
    publishes_at_s: float
    ends_at_s: float | None = None
    stops_at_s: float | None = None
    exited: bool = False
    outcome: str = "Succeeded"
    reason: str = ""
    message: str = ""
    grace_s: float = 30.0
    ignores_sigterm: bool = False
    forgotten_at_s: float | None = None

    @property
    def devices(self) -> tuple[AllocatedDevice, ...]:
        """All that it holds, whoever gave it."""
        claims = (claim for container in self.containers for claim in container.claims)
        return self.given + tuple(claim.held for claim in claims if claim.held is not None)

    @property
    def given(self) -> tuple[AllocatedDevice, ...]:
        """What the device plugin gave, or an allocation."""
        return tuple(device for container in self.containers for device in container.devices)


class Machine:
    """One machine's directory. Reading is cheap: a file is parsed again only when it was replaced."""

    def __init__(self, directory: Path, hardware: Hardware) -> None:
        self.directory = directory
        self._built = hardware
        self._layout = _WatchedFile(directory / LAYOUT_FILE, layout_from_json, MachineLayout())
        self._overlaid = MachineLayout(), hardware
        self.layouts = LayoutFile(directory, hardware, self._layout.read, self._used)
        """Changes how the GPUs are cut and shared."""
        nothing: tuple[HostedPod, ...] = ()
        self._hosted = _WatchedFile(directory / CONTAINERS_FILE, _hosted_from_json, nothing)
        self._faults = _WatchedFile(directory / FAULTS_FILE, self._faults_from_json, Faults())

    @classmethod
    def create(cls, directory: Path, spec: MachineSpec) -> "Machine":
        """Build the machine, or raise InvalidRequestError. What runs on an existing one is left alone."""
        hardware = assemble(spec, load_catalog())
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(directory / MACHINE_FILE, hardware_to_json(hardware))
        return cls(directory, hardware)

    @classmethod
    def open(cls, directory: Path) -> "Machine":
        """Raise InvalidRequestError if there is no machine in the directory."""
        return cls(directory, read_hardware(directory))

    @property
    def hardware(self) -> Hardware:
        """As it is cut now."""
        layout = self._layout.read()
        if layout is not self._overlaid[0]:
            self._overlaid = layout, overlaid(self._built, layout)
        return self._overlaid[1]

    @property
    def boots(self) -> int:
        """How often it was started."""
        return self._layout.read().boots

    def sharing(self, gpu_uuid: str) -> Sharing:
        return self._layout.read().sharing.get(gpu_uuid, Sharing())

    @property
    def spec(self) -> MachineSpec:
        return self._built.spec

    @property
    def journal_path(self) -> Path:
        return self.directory / JOURNAL_FILE

    @property
    def socket_path(self) -> Path:
        return self.directory / SOCKET_FILE

    def read(self, now: datetime) -> Readings:
        """What the driver would say now. Raise InvalidRequestError if a file of the machine is malformed."""
        return readings(self.hardware, self.containers(), self.faults(), now.timestamp())

    def containers(self) -> tuple[RunningContainer, ...]:
        """What the container runtime would say: every container that holds devices now."""
        return tuple(
            RunningContainer(hosted.pod, container.name, container.devices, hosted.load)
            for hosted in self.hosted()
            if not hosted.exited
            for container in hosted.containers
            if container.devices
        )

    def hosted(self) -> tuple[HostedPod, ...]:
        return self._hosted.read()

    def faults(self) -> Faults:
        return self._faults.read()

    def write_hosted(self, pods: Iterable[HostedPod]) -> None:
        """For the machine's kubelet alone."""
        replace_file(self.directory / CONTAINERS_FILE, {"pods": [_hosted_to_json(pod) for pod in pods]})

    def write_faults(self, faults: Faults) -> None:
        document = {
            "gpus": {
                uuid: {"health": fault.health.value, "reason": fault.reason}
                for uuid, fault in faults.gpus.items()
            },
        }
        replace_file(self.directory / FAULTS_FILE, document)

    def _used(self) -> frozenset[DeviceRef]:
        held = (device for pod in self.hosted() if not pod.exited for device in pod.devices)
        return frozenset(device.device for device in held)

    def _faults_from_json(self, document: Mapping[str, Any]) -> Faults:
        """A GPU is named by its UUID or, for people, by its index."""
        by_index = {str(gpu.index): gpu.uuid for gpu in self.hardware.gpus}
        gpus = {}
        for name, fault in document.get("gpus", {}).items():
            health = GpuHealth(fault["health"])
            if health not in (GpuHealth.UNHEALTHY, GpuHealth.LOST):
                raise ValueError(f"a faulty GPU is unhealthy or lost, not {health}")
            gpus[by_index.get(name, name)] = GpuFault(health, str(fault.get("reason", "")))
        return Faults(gpus)


def end_machine(directory: Path) -> None:
    """There is no machine any more; what it recorded stays, because the audit reads it."""
    (directory / MACHINE_FILE).rename(directory / ENDED_FILE)


def find_machines(machines_dir: Path, *, with_ended: bool = False) -> tuple[Path, ...]:
    """The directories of all machines, by name. Raise InvalidRequestError if there are none."""
    names = (MACHINE_FILE, ENDED_FILE) if with_ended else (MACHINE_FILE,)
    found = tuple(sorted({path.parent for name in names for path in machines_dir.glob(f"*/{name}")}))
    if not found:
        raise InvalidRequestError(f"no machines in {machines_dir}")
    return found


def machine_names(machines_dir: Path) -> frozenset[str]:
    """The names of the directories that hold a machine now; there may be none."""
    return frozenset(path.parent.name for path in machines_dir.glob(f"*/{MACHINE_FILE}"))


def read_hardware(directory: Path) -> Hardware:
    path = directory / MACHINE_FILE
    if not path.exists() and (directory / ENDED_FILE).exists():
        path = directory / ENDED_FILE
    try:
        return hardware_from_json(orjson.loads(path.read_bytes()))
    except FileNotFoundError:
        raise InvalidRequestError(f"no machine in {directory}: {MACHINE_FILE} is missing") from None
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"{path} is malformed: {what_is_wrong(error)}") from None


class _WatchedFile(Generic[Parsed]):
    """A JSON file that others replace; parsed only when its identity or time changed."""

    def __init__(self, path: Path, parse: Callable[[Mapping[str, Any]], Parsed], absent: Parsed) -> None:
        self._path = path
        self._parse = parse
        self._absent = absent
        self._seen: tuple[int, int, int] | None = None
        self._value = absent

    def read(self) -> Parsed:
        try:
            stat = self._path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen != self._seen:
                self._value = self._parse(orjson.loads(self._path.read_bytes()))
                self._seen = seen
        except FileNotFoundError:
            self._seen, self._value = None, self._absent
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidRequestError(f"{self._path} is malformed: {what_is_wrong(error)}") from None
        return self._value


def _hosted_to_json(hosted: HostedPod) -> dict[str, Any]:
    return {
        "pod": {"uid": hosted.pod.uid, "namespace": hosted.pod.namespace, "name": hosted.pod.name},
        "containers": [
            {
                "name": container.name,
                "devices": [device_to_json(device) for device in container.devices],
                "claims": [_claim_to_json(claim) for claim in container.claims],
            }
            for container in hosted.containers
        ],
        "load": {
            "level": hosted.load.level_ratio,
            "memory": hosted.load.memory_ratio,
            "seed": hosted.load.seed,
        },
        "startsAt": hosted.starts_at_s,
        "publishesAt": hosted.publishes_at_s,
        "endsAt": hosted.ends_at_s,
        "stopsAt": hosted.stops_at_s,
        "exited": hosted.exited,
        "outcome": hosted.outcome,
        "reason": hosted.reason,
        "message": hosted.message,
        "grace": hosted.grace_s,
        "ignoresSigterm": hosted.ignores_sigterm,
        "forgottenAt": hosted.forgotten_at_s,
    }


def _hosted_from_json(document: Mapping[str, Any]) -> tuple[HostedPod, ...]:
    return tuple(_hosted_pod(entry) for entry in document["pods"])


def _hosted_pod(entry: Mapping[str, Any]) -> HostedPod:
    pod, load = entry["pod"], entry["load"]
    return HostedPod(
        pod=PodRef(str(pod["namespace"]), str(pod["name"]), str(pod["uid"])),
        containers=tuple(
            HostedContainer(
                str(container["name"]),
                tuple(device_from_json(device) for device in container["devices"]),
                tuple(_claim(claim) for claim in container.get("claims", ())),
            )
            for container in entry["containers"]
        ),
        load=LoadProfile(float(load["level"]), float(load["memory"]), int(load["seed"])),
        starts_at_s=float(entry["startsAt"]),
        publishes_at_s=float(entry["publishesAt"]),
        ends_at_s=_optional_seconds(entry["endsAt"]),
        stops_at_s=_optional_seconds(entry["stopsAt"]),
        exited=bool(entry["exited"]),
        outcome=str(entry["outcome"]),
        reason=str(entry["reason"]),
        message=str(entry["message"]),
        grace_s=float(entry["grace"]),
        ignores_sigterm=bool(entry["ignoresSigterm"]),
        forgotten_at_s=_optional_seconds(entry["forgottenAt"]),
    )


def _claim_to_json(claim: HostedClaim) -> dict[str, Any]:
    held = None if claim.held is None else device_to_json(claim.held)
    return {"driver": claim.driver, "device": claim.device, "held": held}


def _claim(entry: Mapping[str, Any]) -> HostedClaim:
    held = None if entry["held"] is None else device_from_json(entry["held"])
    return HostedClaim(str(entry["driver"]), str(entry["device"]), held)


def _optional_seconds(value: Any) -> float | None:
    return None if value is None else float(value)
