"""One spool in a folder of the node's disk: segment files that are only ever appended to, and dropped whole.

Blocks, so it is used off the event loop. A window has its number for good once `append` has returned: it is
on the disk then. A spool whose end can't be read is never written again: what stood there may have been read
by somebody, so its numbers must not be given to other windows. Another spool is begun instead.
"""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.node_agent.usage.core.records import header, read_segment, record

SUFFIX = ".usage"
BOOT = "boot"
SEGMENT_BYTES = 1024 * 1024
SEGMENT_NS = 3_600_000_000_000

# A segment that was dropped meanwhile, or that the disk can't give back. Other errors may pass.
_LOST = (errno.ENOENT, errno.EIO)


@dataclass(frozen=True, slots=True)
class Written:
    """A closed window as it is kept: its proto, and how long it was."""

    data: bytes
    duration_ns: int


@dataclass(slots=True)
class _Segment:
    path: Path
    first: int
    count: int
    size: int
    covered_ns: int

    @property
    def end(self) -> int:
        """One behind its last window."""
        return self.first + self.count


class DiskSpool:
    """Made by `create` or `load`. Reading and writing may happen in different threads."""

    def __init__(self, folder: Path, spool_id: str, first: int, boot_id: str = "") -> None:
        self.folder = folder
        self.spool_id = spool_id
        self.boot_id = boot_id
        """Of the boot in which it was begun."""
        self.writable = True
        self._next = first
        self._segments: list[_Segment] = []
        self._lock = threading.Lock()

    @classmethod
    def create(cls, folder: Path, spool_id: str, first: int = 1, boot_id: str = "") -> "DiskSpool":
        """Raise OSError if the disk does not take it. The folder must be new."""
        folder.mkdir(parents=True)
        (folder / BOOT).write_text(boot_id, encoding="utf-8")
        _sync_folder(folder.parent)
        return cls(folder, spool_id, first, boot_id)

    @classmethod
    def load(cls, folder: Path, duration_of: Callable[[bytes], int]) -> "DiskSpool | None":
        """What is in the folder; None if no window of it can be read. Raise OSError if nothing can be."""
        spool = cls(folder, "", 1, _boot_of(folder))
        paths = sorted(folder.glob(f"*{SUFFIX}"))
        for path in paths:
            data = path.read_bytes()
            segment = read_segment(data)
            if segment is None or (spool.spool_id and segment.spool_id != spool.spool_id):
                spool.writable = False
                continue
            spool.spool_id = segment.spool_id
            if segment.good_bytes < len(data):
                spool.writable = False
            covered_ns = sum(duration_of(window) for window in segment.windows)
            kept = _Segment(path, segment.first, len(segment.windows), segment.good_bytes, covered_ns)
            spool._segments.append(kept)
            spool._next = kept.end
        return spool if any(segment.count for segment in spool._segments) else None

    @property
    def first(self) -> int:
        with self._lock:
            return self._segments[0].first if self._segments else self._next

    @property
    def last(self) -> int:
        return self._next - 1

    @property
    def size(self) -> int:
        with self._lock:
            return sum(segment.size for segment in self._segments)

    @property
    def covered_ns(self) -> int:
        with self._lock:
            return sum(segment.covered_ns for segment in self._segments)

    def append(self, windows: Sequence[Written]) -> None:
        """Keep these, the first under the number `last + 1`. Raise OSError: then none of them is kept."""
        data = b"".join(record(window.data) for window in windows)
        covered_ns = sum(window.duration_ns for window in windows)
        current = self._segments[-1] if self._segments else None
        if current is None or current.size >= SEGMENT_BYTES or current.covered_ns >= SEGMENT_NS:
            path = self.folder / f"{self._next:020d}{SUFFIX}"
            current = _Segment(path, self._next, 0, 0, 0)
            data = header(self.spool_id, self._next) + data
        try:
            _append(current.path, current.size, data)
        except OSError:
            # Whatever of it is on the disk is behind the last window that was ever served.
            self.writable = False
            raise
        with self._lock:
            if not current.count and not current.size:
                self._segments.append(current)
            current.size += len(data)
            current.count += len(windows)
            current.covered_ns += covered_ns
            self._next = current.end

    def read(self, sequence: int, max_bytes: int) -> tuple[int, list[bytes]]:
        """The number of the first window from `sequence` on that is there, and some windows from it on.

        Raise OSError if the disk does not answer. A segment that can't be read any more is passed over.
        """
        for segment in self._from(sequence):
            first = max(sequence, segment.first)
            try:
                with segment.path.open("rb") as file:
                    found = read_segment(file.read(segment.size))
            except OSError as error:
                if error.errno not in _LOST:
                    raise
                continue
            windows = found.windows[first - segment.first :] if found is not None else ()
            if windows:
                return first, list(_some(windows, max_bytes))
        return self._next, []

    def drop_oldest(self) -> int:
        """Drop one segment, but never the one that is written; how many windows that were."""
        with self._lock:
            if len(self._segments) < (2 if self.writable else 1):
                return 0
            oldest = self._segments.pop(0)
        oldest.path.unlink(missing_ok=True)
        return oldest.count

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def oldest_covered_ns(self) -> int:
        """How much time the oldest segment covers."""
        with self._lock:
            return self._segments[0].covered_ns if self._segments else 0

    def _from(self, sequence: int) -> list[_Segment]:
        with self._lock:
            return [
                _Segment(each.path, each.first, each.count, each.size, each.covered_ns)
                for each in self._segments
                if each.end > sequence
            ]


def _boot_of(folder: Path) -> str:
    """Empty if it can't be told."""
    try:
        return (folder / BOOT).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _append(path: Path, size: int, data: bytes) -> None:
    """Durable when this returns. The file's beginning is durable with its folder's entry."""
    is_new = size == 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if is_new else 0), 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], size + written)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _some(windows: Sequence[bytes], max_bytes: int) -> Iterator[bytes]:
    """At least one."""
    taken = 0
    for window in windows:
        if taken and taken + len(window) > max_bytes:
            return
        taken += len(window)
        yield window
