"""A subtree of the control groups for each node. A kubelet ends pods under its root that it does not know.

Works on the one hierarchy of version 2 and on the several of version 1.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")

_INHERITED_CPUSETS = ("cpuset.cpus", "cpuset.mems")


def hierarchies(root: Path = ROOT) -> tuple[Path, ...]:
    """The tops of all hierarchies that are mounted."""
    if (root / "cgroup.controllers").exists():
        return (root,)
    return tuple(folder for folder in sorted(root.iterdir()) if (folder / "cgroup.procs").exists())


def create_subtree(name: str, root: Path = ROOT) -> None:
    for top in hierarchies(root):
        subtree = top / name
        subtree.mkdir(exist_ok=True)
        for setting in _INHERITED_CPUSETS:
            # In version 1 a new group has no processor and no memory node until it is told.
            if (top / setting).exists() and not (top / "cgroup.controllers").exists():
                (subtree / setting).write_text((top / setting).read_text())
        _delegate(top, subtree)


def kill_subtree(name: str, root: Path = ROOT) -> int:
    """Kill every process in it; how many there were."""
    found = {pid for folder in _folders(name, root) for pid in processes(folder)}
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(found)


def remove_subtree(name: str, root: Path = ROOT) -> bool:
    """Whether nothing of it is left; a group that a process is still leaving can't be removed yet."""
    for folder in _folders(name, root):
        try:
            folder.rmdir()
        except OSError:
            continue
    return not any((top / name).exists() for top in hierarchies(root))


def processes(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _folders(name: str, root: Path) -> Iterator[Path]:
    """The deepest first."""
    for top in hierarchies(root):
        yield from (Path(folder) for folder, _, _ in os.walk(top / name, topdown=False))


def _delegate(top: Path, subtree: Path) -> None:
    """In version 2 a group controls only what its parent passes on."""
    if not (top / "cgroup.controllers").exists():
        return
    for folder in (top, subtree):
        for controller in (folder / "cgroup.controllers").read_text().split():
            try:
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError:
                # A controller that this machine can't pass on is missed by the kubelet, which says so.
                continue
