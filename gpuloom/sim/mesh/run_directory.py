"""The directory of a run: who may use it, what is cleared for a fresh start, and where everything goes.

Only a directory that is empty, or that carries our marker, is ever touched, and in it only what a run makes.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuloom.errors import ConflictError, InvalidRequestError
from gpuloom.sim.kubelet.podresources import MAX_SOCKET_PATH_BYTES
from gpuloom.sim.machines.machine import SOCKET_FILE

MARKER_FILE = ".gpuloom-run"
_MARKER_TEXT = "`gpuloom run` made this directory and clears it when it starts here again.\n"
_SHORT_PREFIX = "gpuloom-"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Absolute paths. `lock_descriptor` keeps others out for as long as anybody has it open."""

    path: Path
    lock_descriptor: int
    machines: Path
    certificates_elsewhere: Path | None = None

    @property
    def certificates(self) -> Path:
        return self.certificates_elsewhere or self.path / "certificates"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def agents_file(self) -> Path:
        return self.path / "agents.json"

    @property
    def endpoints_file(self) -> Path:
        return self.path / "endpoints.json"

    @property
    def prometheus_targets_file(self) -> Path:
        return self.path / "prometheus-targets.json"

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def api_state(self) -> Path:
        return self.path / "kubernetes-api.state"

    @property
    def databases(self) -> Path:
        return self.path / "databases"

    @property
    def machines_are_elsewhere(self) -> bool:
        return self.machines.parent != self.path


@contextmanager
def open_run_directory(path: Path, node_names: Iterable[str]) -> Iterator[RunDirectory]:
    """A fresh start in that directory.

    Raise InvalidRequestError if the directory is not ours to use, ConflictError if a run is using it.
    """
    path = path.absolute()
    _refuse_foreign(path)
    with _locked(path) as descriptor:
        _clear(path)
        (path / "databases").mkdir()
        yield RunDirectory(path, descriptor, _make_machines_dir(path, node_names))


@contextmanager
def resume_run_directory(path: Path, certificates: Path) -> Iterator[RunDirectory]:
    """Go on with what is in that directory, if anything is; the certificates are somebody else's.

    Raise InvalidRequestError if the directory is not ours to use, ConflictError if a run is using it.
    """
    path = path.absolute()
    _refuse_foreign(path)
    with _locked(path) as descriptor:
        machines = path / "machines"
        machines.mkdir(exist_ok=True)
        yield RunDirectory(path, descriptor, machines, certificates)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The descriptor that keeps others out of the directory, which is made if it is not there."""
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path / MARKER_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(descriptor, path)
        os.pwrite(descriptor, _MARKER_TEXT.encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_foreign(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise InvalidRequestError(f"{path} is not a directory; name another one with --dir")
    if any(path.iterdir()) and not (path / MARKER_FILE).is_file():
        raise InvalidRequestError(
            f"{path} is not empty and `gpuloom run` did not make it; name another directory with --dir"
        )


def is_in_use(path: Path) -> bool:
    """Whether a run has that directory now; one that was killed does not, whatever files it left."""
    try:
        descriptor = os.open(path / MARKER_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    while not _try_lock(descriptor, fcntl.LOCK_EX):
        # A command that asks `is_in_use` has a shared lock for a moment; a run has it exclusively.
        if not _try_lock(descriptor, fcntl.LOCK_SH):
            raise ConflictError(
                f"another `gpuloom run` is using {path}; end it, or name another directory with --dir"
            )


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _clear(path: Path) -> None:
    """Remove what an earlier run left; it may have been killed at any moment."""
    machines = path / "machines"
    if machines.is_symlink():
        elsewhere = machines.readlink()
        if elsewhere.name.startswith(_SHORT_PREFIX) and (elsewhere / MARKER_FILE).is_file():
            shutil.rmtree(elsewhere)
        machines.unlink()
    for name in ("machines", "certificates", "logs", "databases"):
        shutil.rmtree(path / name, ignore_errors=True)
    files = ("agents.json", "endpoints.json", "prometheus-targets.json", "kubeconfig", "kubernetes-api.state")
    for name in files:
        for file in path.glob(f"{name}*"):
            file.unlink()


def _make_machines_dir(path: Path, node_names: Iterable[str]) -> Path:
    """Beside everything else, or in a short place if a machine's socket would have too long a path."""
    machines = path / "machines"
    longest_name = max(node_names, key=len, default="")
    if _is_short(machines, longest_name):
        machines.mkdir()
        return machines
    elsewhere = Path(tempfile.mkdtemp(prefix=_SHORT_PREFIX))
    if not _is_short(elsewhere, longest_name):
        elsewhere.rmdir()
        raise InvalidRequestError(
            f"{path} and {elsewhere.parent} are too long for the paths of sockets; name a shorter --dir"
        )
    (elsewhere / MARKER_FILE).write_text(_MARKER_TEXT, encoding="utf-8")
    # The link lets people find the machines, and the next run clear them.
    machines.symlink_to(elsewhere, target_is_directory=True)
    return elsewhere


def _is_short(machines: Path, node_name: str) -> bool:
    return len(str(machines / node_name / SOCKET_FILE).encode()) <= MAX_SOCKET_PATH_BYTES
