"""The host's processes, as its /proc shows them.

Reads `stat` and `cgroup` alone: neither waits for a process that hangs, as `cmdline` may.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpuloom.codec.machine import MAX_PROCESSES_PER_NODE
from gpuloom.errors import UnavailableError
from services.node_agent.attribution.core.cgroup import MAX_CGROUP_BYTES, PodCgroup, pod_of_cgroup
from services.node_agent.ports import ProcessOwner

_MAX_STAT_BYTES = 4096
_CHUNK_BYTES = 16 * 1024
# Number 2 is the parent of the kernel's threads, which only the host's own namespace shows.
_KERNEL_THREADS = ("2", "kthreadd")
# Of stat's fields after the name, which may hold anything: the start, in clock ticks since boot.
_START_FIELD = 19

NOT_THE_HOST = (
    "the host's processes can't be seen: set hostPID: true on the agent's pod,"
    " or mount the host's /proc and name it in GPULOOM_AGENT_PROC_DIR"
)


class _Stat(NamedTuple):
    name: str
    started: int


class _Known(NamedTuple):
    started: int
    pod: PodCgroup | None


class HostProcesses:
    """A process keeps its control group, as far as pods go; so it is read once for each process.

    A process is its number and its start: numbers are used again.
    """

    def __init__(self, proc_dir: Path = Path("/proc")) -> None:
        self._proc_dir = proc_dir
        self._known: Mapping[int, _Known] = {}
        self._sees_host = False

    async def owners(self, pids: Iterable[int]) -> Mapping[int, ProcessOwner]:
        """Those that ended are left out. Raise UnavailableError if the host's processes can't be seen."""
        wanted = sorted({pid for pid in pids if pid > 0})
        if len(wanted) > MAX_PROCESSES_PER_NODE:
            raise UnavailableError(f"the driver lists {len(wanted)} processes, more than a node can run")
        return await asyncio.to_thread(self._read, wanted) if wanted else {}

    def _read(self, pids: list[int]) -> dict[int, ProcessOwner]:
        known: dict[int, _Known] = {}
        owners: dict[int, ProcessOwner] = {}
        try:
            for pid in pids:
                self._read_one(pid, known, owners)
        except PermissionError as error:
            raise UnavailableError(f"the host's processes may not be read: {error.strerror}") from error
        self._sees_host = self._sees_host or bool(owners) or self._shows_kernel_threads()
        if not self._sees_host:
            raise UnavailableError(NOT_THE_HOST)
        self._known = known
        return owners

    def _read_one(self, pid: int, known: dict[int, _Known], owners: dict[int, ProcessOwner]) -> None:
        stat = self._stat(pid)
        if stat is None:
            return
        entry = self._known.get(pid)
        if entry is None or entry.started != stat.started:
            content = _read_bounded(self._proc_dir / str(pid) / "cgroup", MAX_CGROUP_BYTES)
            again = self._stat(pid)
            if content is None or again is None or again.started != stat.started:
                # It ended meanwhile, and the control group may be that of another one.
                return
            entry = _Known(stat.started, pod_of_cgroup(content))
        known[pid] = entry
        pod = entry.pod or PodCgroup("")
        owners[pid] = ProcessOwner(stat.name, pod.pod_uid, pod.container_id)

    def _stat(self, pid: int) -> _Stat | None:
        content = _read_bounded(self._proc_dir / str(pid) / "stat", _MAX_STAT_BYTES)
        return None if content is None else _parse_stat(content)

    def _shows_kernel_threads(self) -> bool:
        number, name = _KERNEL_THREADS
        content = _read_bounded(self._proc_dir / number / "comm", _MAX_STAT_BYTES)
        return content is not None and content.strip() == name.encode()


def _parse_stat(content: bytes) -> _Stat | None:
    """`number (name) state …`; the name may itself have parentheses and spaces, so its last one counts."""
    opening, closing = content.find(b"("), content.rfind(b")")
    fields = content[closing + 1 :].split()
    if not 0 < opening < closing or len(fields) <= _START_FIELD or not fields[_START_FIELD].isdigit():
        return None
    return _Stat(content[opening + 1 : closing].decode("utf-8", "replace"), int(fields[_START_FIELD]))


def _read_bounded(path: Path, limit: int) -> bytes | None:
    """At most one byte more than the limit, which tells that it is longer. None if there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return None
    try:
        content = b""
        while len(content) <= limit and (chunk := os.read(descriptor, _CHUNK_BYTES)):
            content += chunk
        return content[: limit + 1]
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)
