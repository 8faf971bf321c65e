"""How the GPUs of a simulated machine are cut and shared now, in a file that outlives processes.

layout.json    what the driver would show, of every GPU that was ever changed; replaced whole
layouts.jsonl  every instance that was made; read by the audit

It behaves as a driver does: a place that is taken is refused, an instance that a container has is in use, an
instance that is made again has another UUID, and nothing of it survives a boot. It decides no layout.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from gpuloom.catalog import Catalog, load_catalog
from gpuloom.errors import ConflictError, InvalidRequestError
from gpuloom.model.gpu import DeviceRef, Gpu, SharingMode
from gpuloom.model.layout import Sharing
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.placement.mig_geometry import Geometry, layout_problem
from gpuloom.sim.machines.hardware import Hardware, gpu_from_json, gpu_to_json, instance_uuid

LAYOUT_FILE = "layout.json"
HISTORY_FILE = "layouts.jsonl"
LOCK_FILE = "layout.lock"

# Of these the mode is lost with the power; older ones keep it.
_FORGETFUL = frozenset({"hopper", "blackwell"})


@dataclass(frozen=True, slots=True)
class MachineLayout:
    """`gpus` are those that were changed since the machine was built; `made` counts instances."""

    boots: int = 1
    made: int = 0
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    sharing: Mapping[str, Sharing] = field(default_factory=dict)


def overlaid(hardware: Hardware, layout: MachineLayout) -> Hardware:
    """The machine as it is now."""
    if not layout.gpus:
        return hardware
    return replace(hardware, gpus=tuple(layout.gpus.get(gpu.uuid, gpu) for gpu in hardware.gpus))


def layout_from_json(document: Mapping[str, Any]) -> MachineLayout:
    gpus = (gpu_from_json(entry) for entry in document["gpus"])
    return MachineLayout(
        boots=int(document["boots"]),
        made=int(document["made"]),
        gpus={gpu.uuid: gpu for gpu in gpus},
        sharing={
            str(uuid): Sharing(SharingMode(mode), *map(int, numbers))
            for uuid, (mode, *numbers) in document["sharing"].items()
        },
    )


@contextmanager
def layout_lock(directory: Path) -> Iterator[None]:
    """Who starts a container on an instance and who destroys it take turns, across processes."""
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def ever_made(directory: Path) -> frozenset[DeviceRef]:
    """All instances that the machine had at some time after it was built."""
    try:
        lines = (directory / HISTORY_FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return frozenset()
    entries = [orjson.loads(line) for line in lines]
    return frozenset(DeviceRef(e["gpu"], MigPlacement(int(e["start"]), str(e["profile"]))) for e in entries)


class LayoutFile:
    """Changes the layout of one machine. Everything blocks; run it in a thread."""

    def __init__(
        self,
        directory: Path,
        built: Hardware,
        read: Callable[[], MachineLayout],
        used: Callable[[], frozenset[DeviceRef]],
    ) -> None:
        """`used` are devices that containers have now."""
        self._directory = directory
        self._built = built
        self._read = read
        self._used = used
        self._catalog: Catalog = load_catalog()

    def geometry(self, gpu_uuid: str) -> Geometry | None:
        """None if the model can't be cut."""
        model = self._catalog.gpu(self._gpu(gpu_uuid).model)
        return Geometry(model.mig_slices, model.mig_profiles) if model.mig_profiles else None

    def set_mode(self, gpu_uuid: str, enabled: bool) -> None:
        """Raise ConflictError if somebody uses the GPU, or it has instances."""
        with layout_lock(self._directory):
            gpu = self._gpu(gpu_uuid)
            if gpu.mig_enabled != enabled and (gpu.mig_instances or self._used_on(gpu_uuid)):
                raise ConflictError("In use by another client")
            self._put(replace(gpu, mig_enabled=enabled))

    def create(self, gpu_uuid: str, placement: MigPlacement) -> None:
        """Raise ConflictError if there is no room, InvalidRequestError if the place can't be."""
        with layout_lock(self._directory):
            gpu, geometry = self._gpu(gpu_uuid), self.geometry(gpu_uuid)
            profile = None if geometry is None else geometry.profile(placement.profile)
            if geometry is None or profile is None or not gpu.mig_enabled:
                raise InvalidRequestError("Not Supported")
            there = [instance.placement for instance in gpu.mig_instances]
            problem = layout_problem(geometry, [*there, placement])
            if problem:
                raise ConflictError(f"Insufficient Resources: {problem}")
            made = self._read().made + 1
            uuid = instance_uuid(
                self._built.spec, f"{gpu.index}-{placement.profile}-{placement.start}-{made}"
            )
            instance = MigInstance(placement, profile.memory_slices, profile.memory_mib, uuid)
            self._note(gpu_uuid, placement)
            ordered = sorted((*gpu.mig_instances, instance), key=lambda one: one.placement)
            self._put(replace(gpu, mig_instances=tuple(ordered)), made=made)

    def destroy(self, gpu_uuid: str, placement: MigPlacement) -> None:
        """Raise ConflictError if a container has it."""
        with layout_lock(self._directory):
            gpu = self._gpu(gpu_uuid)
            if DeviceRef(gpu_uuid, placement) in self._used():
                raise ConflictError("In use by another client")
            left = tuple(one for one in gpu.mig_instances if one.placement != placement)
            self._put(replace(gpu, mig_instances=left))

    def share(self, gpu_uuid: str, sharing: Sharing) -> None:
        with layout_lock(self._directory):
            layout = self._read()
            self._write(replace(layout, sharing={**layout.sharing, gpu_uuid: sharing}))

    def boot(self) -> None:
        """No instance and no daemon survives, and on newer cards not even the mode."""
        with layout_lock(self._directory):
            layout = self._read()
            gpus = {
                gpu.uuid: replace(
                    gpu,
                    mig_enabled=gpu.mig_enabled and gpu.architecture not in _FORGETFUL,
                    mig_instances=(),
                )
                for gpu in overlaid(self._built, layout).gpus
            }
            self._write(MachineLayout(layout.boots + 1, layout.made, gpus))

    def _gpu(self, gpu_uuid: str) -> Gpu:
        for gpu in overlaid(self._built, self._read()).gpus:
            if gpu.uuid == gpu_uuid:
                return gpu
        raise InvalidRequestError("no GPU of this machine has that UUID")

    def _used_on(self, gpu_uuid: str) -> bool:
        return any(device.gpu_uuid == gpu_uuid for device in self._used())

    def _put(self, gpu: Gpu, made: int | None = None) -> None:
        layout = self._read()
        count = layout.made if made is None else made
        self._write(replace(layout, gpus={**layout.gpus, gpu.uuid: gpu}, made=count))

    def _write(self, layout: MachineLayout) -> None:
        document = {
            "boots": layout.boots,
            "made": layout.made,
            "gpus": [gpu_to_json(gpu) for _, gpu in sorted(layout.gpus.items())],
            "sharing": {
                uuid: [
                    sharing.mode.value,
                    sharing.thread_percentage,
                    sharing.memory_mib,
                    sharing.time_slice,
                    sharing.least_milli,
                ]
                for uuid, sharing in sorted(layout.sharing.items())
            },
        }
        replace_file(self._directory / LAYOUT_FILE, document)

    def _note(self, gpu_uuid: str, placement: MigPlacement) -> None:
        entry = {"gpu": gpu_uuid, "profile": placement.profile, "start": placement.start}
        with (self._directory / HISTORY_FILE).open("ab") as file:
            file.write(orjson.dumps(entry) + b"\n")


def replace_file(path: Path, document: Mapping[str, Any]) -> None:
    """Readers see the old file or the new one, never half of one, even if the writer is killed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
