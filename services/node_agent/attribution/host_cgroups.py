"""Which pods are on this node, by the control groups that the kubelet makes for them.

A pod has its control group from before its first container until after its last one, also while none of them
runs between two tries; the kubelet removes it when the container runtime has nothing of the pod any more. So
it outlives the pod in Kubernetes and in the kubelet's own lists, both of which forget a force-deleted one at
once. Only names of folders are read.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

from gpuloom.codec.device import MAX_PODS_PER_NODE
from gpuloom.errors import UnavailableError
from gpuloom.model.node import PodPresence
from services.node_agent.attribution.core.cgroup import (
    is_above_pods,
    is_quality_class,
    may_be_above,
    pod_uid_of,
)

# Version 1 has a hierarchy for each controller. A pod is in all of these; one that shows pods is enough.
_V1_HIERARCHIES = ("memory", "pids", "cpu,cpuacct", "cpu", "systemd")
_V2_MARK = "cgroup.controllers"
# How deep below a hierarchy's top a kubelet's own top is looked for: /docker/<id>/kubelet/kubepods.
_DEPTH = 4
_MAX_FOLDERS = 20_000

NOT_THE_HOST = (
    "the pods' control groups can't be seen: mount the host's /sys/fs/cgroup"
    " and name it in GPULOOM_AGENT_CGROUP_DIR"
)


# The same in every container: it is the kernel's.
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class HostCgroups:
    def __init__(self, cgroup_dir: Path, boot_id_file: Path = _BOOT_ID_FILE) -> None:
        self._cgroup_dir = cgroup_dir
        self._boot_id_file = boot_id_file

    async def presence(self) -> PodPresence:
        """All pods that have control groups. Raise UnavailableError if the kubelet's can't be seen."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> PodPresence:
        # Not the agent's own clock: this one goes on while agents come and go.
        listed_at_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
        try:
            uids = next(filter(None, map(_pods_below, self._hierarchies())), None)
            boot_id = self._boot_id_file.read_text(encoding="ascii", errors="replace").strip()
        except OSError as error:
            raise UnavailableError(f"control groups may not be read: {error.strerror}") from error
        if uids is None:
            raise UnavailableError(NOT_THE_HOST)
        pods = sorted(uids - {""})
        if len(pods) > MAX_PODS_PER_NODE:
            raise UnavailableError(f"there are control groups of {len(pods)} pods, more than a node can run")
        return PodPresence(tuple(pods), boot_id=boot_id, listed_at_ms=listed_at_ms)

    def _hierarchies(self) -> Iterator[Path]:
        if (self._cgroup_dir / _V2_MARK).exists():
            yield self._cgroup_dir
            return
        yield from (self._cgroup_dir / name for name in _V1_HIERARCHIES)


def _pods_below(hierarchy: Path) -> set[str]:
    """UIDs of the pods of every kubelet here, with an empty one for the kubelet itself; nothing if none."""
    found: set[str] = set()
    for top in _tops(hierarchy):
        found.add("")
        for name in _folders(top):
            below = _folders(f"{top}/{name}") if is_quality_class(name) else (name,)
            found.update(map(pod_uid_of, below))
    return found


def _tops(hierarchy: Path) -> Iterator[str]:
    """Where kubelets have their pods. What is below pods is not theirs, and is not looked at."""
    level, seen = [str(hierarchy)], 0
    for _ in range(_DEPTH):
        below: list[str] = []
        for folder in level:
            seen += 1
            if seen > _MAX_FOLDERS:
                raise UnavailableError("there are more control groups than a node can have")
            for name in _folders(folder):
                if is_above_pods(name):
                    yield f"{folder}/{name}"
                elif may_be_above(name):
                    below.append(f"{folder}/{name}")
        level = below


def _folders(path: str) -> list[str]:
    """One that is gone has none."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
