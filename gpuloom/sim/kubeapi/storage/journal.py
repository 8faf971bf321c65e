"""The state file: an append-only journal of changes, from which a killed server comes back.

A change is in the operating system's hands before it is answered or seen, so SIGKILL loses nothing that was
acknowledged; it is on the disk within a second (and at once when the server ends), which bounds what a power
cut may take. A line torn by a crash is dropped at the next start; damage anywhere else refuses to load.
"""

import asyncio
import fcntl
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import orjson

from gpuloom.errors import GpuloomError
from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubeapi.storage.database import Change

HEADER = b"gpuloom-kubeapi-state 1\n"
COMPACT_ABOVE_BYTES = 32 * 1024 * 1024
_SYNC_INTERVAL_S = 1.0
_GROWTH = 2  # rewrite when the file is this many times what a rewrite left
_COPY_BYTES = 1024 * 1024

_log = logging.getLogger(__name__)

Snapshot = Callable[[], Iterable[Change]]


class StateError(GpuloomError):
    """The state file can't be used; the text says why."""


class Journal:
    """Open with `Journal.open`; one process at a time may have it."""

    def __init__(self, path: Path, descriptor: int, lock: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._lock = lock
        self._size = os.fstat(descriptor).st_size
        self._compact_above = COMPACT_ABOVE_BYTES
        self._unsynced = False
        self._broken = False

    @classmethod
    def open(cls, path: Path) -> tuple["Journal", list[Change]]:
        """The journal, ready to append to, and what it holds. Raise StateError if it can't be used."""
        try:
            lock = _locked(path.with_name(path.name + ".lock"))
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(f"can't open the state file {path}: {error.strerror}") from error
        try:
            changes = _load(path, descriptor)
        except BaseException:
            os.close(descriptor)
            os.close(lock)
            raise
        return cls(path, descriptor, lock), changes

    def append(self, change: Change) -> None:
        """Raise OSError, with the file as it was, if the change could not be written whole."""
        if self._broken:
            raise OSError("the state file could not be repaired after a failed write")
        line = encode_change(change)
        try:
            _write_all(self._descriptor, line)
        except OSError:
            self._repair()
            raise
        self._size += len(line)
        self._unsynced = True

    async def run(self, clock: Clock, snapshot: Snapshot) -> None:
        """Bring the file to the disk every second, and rewrite it when most of it is past, for ever."""
        while True:
            try:
                if self._size > self._compact_above:
                    await self.compact(snapshot)
                elif self._unsynced:
                    self._unsynced = False
                    await asyncio.to_thread(os.fsync, self._descriptor)
            except OSError as error:
                # Appending goes on; the next round tries again.
                _log.error("the state file could not be synced", extra={"error": str(error)})
            await clock.sleep(_SYNC_INTERVAL_S)

    async def compact(self, snapshot: Snapshot) -> None:
        """Rewrite the file as the present state. Changes made meanwhile are copied before it takes over."""
        changes, start = list(snapshot()), self._size
        fresh_path = self._path.with_name(self._path.name + ".new")
        fresh = await asyncio.to_thread(_write_fresh, fresh_path, changes)
        try:
            _copy(self._descriptor, fresh, start)
            os.fsync(fresh)
            os.replace(fresh_path, self._path)
        except OSError:
            os.close(fresh)
            raise
        os.close(self._descriptor)
        self._descriptor = fresh
        self._size = os.fstat(fresh).st_size
        self._compact_above = max(COMPACT_ABOVE_BYTES, _GROWTH * self._size)
        self._unsynced = False
        _sync_directory(self._path.parent)

    def close(self) -> None:
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        os.close(self._lock)

    def _repair(self) -> None:
        """Cut off half a line, so that the next one does not begin in its middle."""
        try:
            os.ftruncate(self._descriptor, self._size)
            os.lseek(self._descriptor, self._size, os.SEEK_SET)
        except OSError:
            self._broken = True


def encode_change(change: Change) -> bytes:
    obj = change.encoded or b"null"
    key = orjson.dumps(change.key)
    body = b'{"v":%d,"r":"%b","k":%b,"o":%b}' % (change.version, change.resource.encode(), key, obj)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode_change(line: bytes) -> Change | None:
    """The change, or None if the line is damaged or not whole."""
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(body):
        return None
    value = orjson.loads(body)
    key = None if value["k"] is None else (value["k"][0], value["k"][1])
    return Change(value["v"], value["r"], key, value["o"])


def _load(path: Path, descriptor: int) -> list[Change]:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        header = file.readline()
        if not header.endswith(b"\n") and HEADER.startswith(header):
            # New, or killed while its very first line was written: nothing can have been acknowledged.
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            _write_all(descriptor, HEADER)
            os.fsync(descriptor)
            _sync_directory(path.parent)
            return []
        if header != HEADER:
            raise StateError(f"{path} is not a state file of this server")
        changes, good_bytes = _read_changes(path, file)
    if good_bytes < os.fstat(descriptor).st_size:
        _log.warning("the state file ended in a torn line, which was dropped", extra={"path": str(path)})
        os.ftruncate(descriptor, good_bytes)
    os.lseek(descriptor, good_bytes, os.SEEK_SET)
    return changes


def _read_changes(path: Path, file: Iterable[bytes]) -> tuple[list[Change], int]:
    changes: list[Change] = []
    good_bytes = len(HEADER)
    lines = iter(file)
    for number, line in enumerate(lines, 2):
        change = decode_change(line)
        if change is None:
            if _is_last(lines):
                break
            raise StateError(
                f"{path} is damaged at line {number}: restore it from a copy, or remove it to start anew"
            )
        changes.append(change)
        good_bytes += len(line)
    return changes, good_bytes


def _is_last(lines: Iterator[bytes]) -> bool:
    return next(lines, None) is None


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StateError(f"another process uses the state file {path.with_suffix('')}") from error
    return descriptor


def _write_fresh(path: Path, changes: list[Change]) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, HEADER)
        for change in changes:
            _write_all(descriptor, encode_change(change))
        os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _copy(source: int, target: int, start: int) -> None:
    while block := os.pread(source, _COPY_BYTES, start):
        _write_all(target, block)
        start += len(block)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
