"""Which folder belongs to which living node, and the end of what an earlier run left behind.

A node's folder is locked as long as a process of its run lives. A folder that nobody locks is of a run that
was killed: its processes are ended, its control groups and the folder removed, before a new node starts.
"""

import fcntl
import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuloom.errors import ConflictError, UnavailableError
from tests.cluster.nodes.cgroups import kill_subtree, remove_subtree

_log = logging.getLogger(__name__)

HOMES = Path("/var/lib/gpuloom-nodes")
"""Root's alone, and short: paths of sockets have little room."""

_LOCK_FILE = ".lock"
_END_TIMEOUT_S = 20.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Claim:
    """A folder that is ours while `descriptor` is open."""

    home: Path
    descriptor: int

    @property
    def cgroup(self) -> str:
        """A name, the same at the top of every hierarchy."""
        return _cgroup(self.home)


def claim_home(key: str, homes: Path = HOMES) -> Claim:
    """An empty folder for the node. Raise ConflictError if a living node has it. Blocks: run in a thread."""
    home = homes / key
    with _only_claimer(homes):
        sweep(homes)
        if home.exists():
            raise ConflictError(f"another process runs a node in {home}: end it, or take another name")
        home.mkdir()
        descriptor = _try_lock(home)
        if descriptor is None:
            raise ConflictError(f"{home} was taken by somebody else just now")
        return Claim(home, descriptor)


def give_up_home(claim: Claim) -> None:
    """After the node's processes were told to end: wait for that and remove what they leave. Blocks."""
    try:
        # A claimer that sweeps must not meet a folder that is half removed.
        with _only_claimer(claim.home.parent):
            _clear(claim.home)
    finally:
        os.close(claim.descriptor)


def sweep(homes: Path) -> list[Path]:
    """Clear every folder that no living process has locked; which these were."""
    swept = []
    for home in sorted(path for path in homes.iterdir() if path.is_dir()):
        descriptor = _try_lock(home)
        if descriptor is None:
            continue
        try:
            ended = _clear(home)
        finally:
            os.close(descriptor)
        fields = {"folder": str(home), "ended_processes": ended}
        _log.warning("cleaned up after a node that an earlier run left behind in %s", home, extra=fields)
        swept.append(home)
    return swept


def _clear(home: Path) -> int:
    """End its processes, remove its control groups and the folder; how many processes there were."""
    ended = 0
    ends_s = time.monotonic() + _END_TIMEOUT_S
    while True:
        left = _kill_processes_of(home) + kill_subtree(_cgroup(home))
        ended = max(ended, left)
        if not left and remove_subtree(_cgroup(home)):
            break
        if time.monotonic() > ends_s:
            raise UnavailableError(f"processes of the node in {home} do not end, or keep its control groups")
        # The kernel offers no event for this that is worth its code.
        time.sleep(_POLL_S)
    shutil.rmtree(home)
    return ended


def _kill_processes_of(home: Path) -> int:
    """Every process of a node names a file of its folder; with its first one the kernel ends all others."""
    mark = f"{home}/".encode()
    count = 0
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            named = mark in entry.read_bytes()
            if named and int(entry.parent.name) != os.getpid():
                os.kill(int(entry.parent.name), signal.SIGKILL)
                count += 1
        except (FileNotFoundError, ProcessLookupError):
            continue
    return count


def _cgroup(home: Path) -> str:
    return f"gpuloom-node-{home.name}"


def _try_lock(home: Path) -> int | None:
    descriptor = os.open(home / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def _only_claimer(homes: Path) -> Iterator[None]:
    homes.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (homes / _LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
