"""Device files and CDI entries of the MIG instances of this node, made as soon as they are.

The kernel driver shows a capability for each instance; whoever may open its device file may use the instance.
Nothing here waits for a run of NVIDIA's toolkit.
"""

import asyncio
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml

from gpuloom.errors import UnavailableError
from gpuloom.model.layout import GpuLayout
from services.node_agent.layout.core.cdi_entries import (
    NAME,
    SliceFiles,
    base_of,
    major_of,
    minor_of,
    named_in,
    spec_of,
)
from services.node_agent.nvml.binding import NvmlError
from services.node_agent.nvml.cutting import DeviceNumbers, described, device_numbers
from services.node_agent.nvml.driver import NvmlDriver

_PATIENCE_S = 10.0
_CAPS_DRIVER = "nvidia-caps"
_MAX_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DevicePlaces:
    """Folders of the host as the agent sees them; the last of `cdi_dirs` is written to."""

    proc_dir: Path
    dev_dir: Path
    cdi_dirs: tuple[Path, ...]
    cdi_kind: str


class NvidiaDeviceFiles:
    def __init__(self, driver: NvmlDriver, places: DevicePlaces) -> None:
        self._driver = driver
        self._places = places
        self._published: frozenset[str] | None = None

    async def publish(self, layouts: tuple[GpuLayout, ...]) -> None:
        uuids = frozenset(one.uuid for layout in layouts for one in layout.instances if one.uuid)
        if uuids == self._published:
            return
        numbers = {}
        for layout in layouts:
            if layout.usable:
                numbers[layout.gpu_uuid] = await self._numbers(layout.gpu_uuid)
        await asyncio.to_thread(self._write, numbers, uuids)
        self._published = uuids

    async def _numbers(self, gpu_uuid: str) -> DeviceNumbers:
        try:
            return await self._driver.perform(gpu_uuid, device_numbers, _PATIENCE_S)
        except NvmlError as error:
            raise UnavailableError(described(error)) from None

    def _write(self, numbers: Mapping[str, DeviceNumbers], uuids: frozenset[str]) -> None:
        folder = self._places.cdi_dirs[-1]
        others = _documents(self._places.cdi_dirs)
        kind = self._places.cdi_kind
        ours = uuids - named_in(others, kind)
        slices = [
            SliceFiles(uuid, (f"/dev/nvidia{of_gpu.minor}", *self._capabilities(of_gpu.minor, *instance)))
            for of_gpu in numbers.values()
            for uuid, instance in of_gpu.instances.items()
            if uuid in ours
        ]
        if not slices:
            (folder / NAME).unlink(missing_ok=True)
            return
        spec = spec_of(slices, kind, base_of(others, kind), str(self._places.dev_dir))
        folder.mkdir(parents=True, exist_ok=True)
        replacement = folder / f".{NAME}.new"
        replacement.write_bytes(orjson.dumps(spec, option=orjson.OPT_INDENT_2))
        replacement.replace(folder / NAME)

    def _capabilities(self, minor: int, gpu_instance: int, compute_instance: int) -> tuple[str, ...]:
        """Their device files, made if they are missing."""
        of_gpu = self._places.proc_dir / "driver/nvidia/capabilities" / f"gpu{minor}" / "mig"
        instance = of_gpu / f"gi{gpu_instance}"
        return tuple(
            self._device_file(path / "access") for path in (instance, instance / f"ci{compute_instance}")
        )

    def _device_file(self, capability: Path) -> str:
        minor = minor_of(capability.read_text())
        major = major_of((self._places.proc_dir / "devices").read_text(), _CAPS_DRIVER)
        if minor is None or major is None:
            raise UnavailableError(f"the kernel driver does not say which device file {capability} is")
        name = f"nvidia-caps/nvidia-cap{minor}"
        path = self._places.dev_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            os.mknod(path, stat.S_IFCHR | 0o444, os.makedev(major, minor))
        return f"/dev/{name}"


def _documents(folders: Sequence[Path]) -> list[Mapping[str, Any]]:
    found = []
    for folder in folders:
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            if path.name == NAME or path.suffix not in (".json", ".yaml", ".yml"):
                continue
            document = _document(path)
            found += [document] if document is not None else []
    return found


def _document(path: Path) -> Mapping[str, Any] | None:
    """None if it is no spec: whoever delivers tells so."""
    try:
        content = path.read_bytes()[:_MAX_BYTES]
        document = orjson.loads(content) if path.suffix == ".json" else yaml.safe_load(content)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return document if isinstance(document, dict) else None
