"""The CDI specs of this node, read from their folders and kept in memory.

`scan` does the reading, away from the event loop; `edits` answers from memory. A spec that can't be read, or
a device that two specs of one folder define, hides no other: what is wrong is told to who asks for it.
"""

import logging
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuloom.errors import InvalidRequestError, NotFoundError
from services.node_agent.delivery.cdi import MAX_SPEC_BYTES, Spec, read_spec
from services.node_agent.delivery.core.edits import Edits, NodeNumbers, combine, with_numbers

_log = logging.getLogger(__name__)

MAX_FILES = 256

_YAML_SUFFIXES = (".yaml", ".yml")
_SUFFIXES = (".json", *_YAML_SUFFIXES)

Fingerprint = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it was read; `spec` is None if it holds none."""

    fingerprint: Fingerprint
    spec: Spec | None
    problem: str


Device = Edits | str
"""How to give the device, or why it can't be given."""


class CdiFolders:
    def __init__(self, folders: Sequence[Path]) -> None:
        """A device in a later folder hides one of the same name in an earlier folder."""
        self._folders = tuple(folders)
        self._files: dict[Path, _File] = {}
        self._devices: dict[str, Device] = {}

    def edits(self, kind: str, names: Sequence[str]) -> Edits:
        """What giving these devices changes. Raise NotFoundError, with the reason, if one can't be given."""
        parts = []
        for name in names:
            found = self._devices.get(f"{kind}={name}", "no CDI spec of this node has it")
            if isinstance(found, str):
                raise NotFoundError(f"device {kind}={name} can't be given: {found}")
            parts.append(found)
        return combine(parts)

    def scan(self) -> None:
        """Read what changed since the last time. Blocks: run in a thread."""
        files: dict[Path, _File] = {}
        devices: dict[str, Device] = {}
        for folder in self._folders:
            found: dict[str, Device] = {}
            for path in _spec_files(folder):
                files[path] = self._read(path)
                spec = files[path].spec
                if spec is not None:
                    _add(found, spec)
            devices |= found
        self._files, self._devices = files, devices

    def _read(self, path: Path) -> _File:
        before = self._files.get(path)
        try:
            status = path.stat()
            fingerprint = (status.st_mtime_ns, status.st_size, status.st_ino)
            if before is not None and before.fingerprint == fingerprint:
                return before
            spec = read_spec(_content(path), path.suffix in _YAML_SUFFIXES)
        except OSError as error:
            return _unreadable(path, before, (0, 0, 0), f"it can't be read: {error.strerror}")
        except InvalidRequestError as error:
            return _unreadable(path, before, fingerprint, str(error))
        _log.info("a CDI spec was read", extra={"file": str(path), "devices": len(spec.devices)})
        return _File(fingerprint, spec, "")


def _spec_files(folder: Path) -> list[Path]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIXES))
    except OSError:
        # Most nodes have only one of the folders.
        return []
    return [folder / name for name in names[:MAX_FILES]]


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_SPEC_BYTES + 1)


def _unreadable(path: Path, before: _File | None, fingerprint: Fingerprint, problem: str) -> _File:
    if before is None or before.problem != problem:
        _log.warning("a CDI spec is not used", extra={"file": str(path), "reason": problem})
    return _File(fingerprint, None, problem)


def _add(found: dict[str, Device], spec: Spec) -> None:
    for name, own in spec.devices.items():
        qualified = f"{spec.kind}={name}"
        if qualified in found:
            found[qualified] = "two CDI specs of the same folder have it"
        else:
            found[qualified] = _completed(combine((spec.shared, own)))


def _completed(edits: Edits) -> Device:
    if edits.beyond:
        return f"its CDI spec asks for {', '.join(edits.beyond)}, which can't be delivered"
    try:
        return with_numbers(edits, _look)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except InvalidRequestError as error:
        return str(error)


def _look(path: str) -> NodeNumbers:
    status = os.stat(path)
    if stat.S_ISFIFO(status.st_mode):
        return NodeNumbers("p")
    if stat.S_ISCHR(status.st_mode):
        kind = "c"
    elif stat.S_ISBLK(status.st_mode):
        kind = "b"
    else:
        raise InvalidRequestError(f"{path} is not a device node")
    return NodeNumbers(kind, os.major(status.st_rdev), os.minor(status.st_rdev))
