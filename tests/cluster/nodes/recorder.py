"""What really runs with which devices on a real node, written where a simulated machine keeps it.

Judges from the kernel alone: the pods' control groups, and the environment of the processes in them. So the
agent of a simulated machine tells the truth about a real node, and the audit judges what really ran.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuloom.codec.allocation import decode_allocation
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.parse import format_micro_time
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef
from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import Clock
from gpuloom.sim.machines.journal import EntryKind, Journal, JournalEntry
from gpuloom.sim.machines.load import LoadProfile
from gpuloom.sim.machines.machine import HostedContainer, HostedPod, Machine
from tests.cluster.nodes.cgroups import ROOT, hierarchies, processes
from tests.cluster.nodes.pods import (
    CONTAINER,
    VARIABLE_ALLOCATION,
    VARIABLE_DEVICES,
    VARIABLE_NAME,
    VARIABLE_NAMESPACE,
)

INTERVAL_S = 0.25

_POD_GROUP = re.compile(r"pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_LOAD = LoadProfile(level_ratio=0.5, memory_ratio=0.5, seed=0)


class Recorder:
    """Keeps one machine's files true to the pods in one control group, until `close`."""

    def __init__(self, cgroup: str, machine: Machine, clock: Clock) -> None:
        self._cgroup = cgroup
        self._machine = machine
        self._clock = clock
        self._journal = Journal(machine.journal_path)
        self._known: dict[PodRef, tuple[AllocatedDevice, ...]] = {}
        self._since_s: dict[PodRef, float] = {}

    async def run(self) -> None:
        while True:
            self.look()
            await self._clock.sleep(INTERVAL_S)

    def close(self) -> None:
        """After a last sample: what began since the one before has run as well."""
        self.look()
        self._journal.close()

    def look(self) -> None:
        held = held_devices(self._cgroup)
        if held == self._known:
            return
        now = self._clock.now()
        for pod in sorted(self._known.keys() - held.keys()):
            self._note(EntryKind.END, pod, self._known[pod])
        for pod in sorted(held.keys() - self._known.keys()):
            self._note(EntryKind.START, pod, held[pod])
        self._since_s = {pod: self._since_s.get(pod, now.timestamp()) for pod in held}
        self._known = held
        self._machine.write_hosted(self._hosted(pod) for pod in sorted(held))

    def _note(self, kind: EntryKind, pod: PodRef, devices: tuple[AllocatedDevice, ...]) -> None:
        self._journal.append(JournalEntry(0, format_micro_time(self._clock.now()), kind, pod, devices))

    def _hosted(self, pod: PodRef) -> HostedPod:
        container = HostedContainer(CONTAINER, self._known[pod])
        since_s = self._since_s[pod]
        return HostedPod(pod, (container,), _LOAD, starts_at_s=since_s, publishes_at_s=since_s)


def held_devices(cgroup: str, root: Path = ROOT) -> dict[PodRef, tuple[AllocatedDevice, ...]]:
    """The pods with processes that see devices, in the control group of a node."""
    held = {}
    for uid, pid in _pod_processes(hierarchies(root)[0] / cgroup):
        environment = _environment(pid)
        devices = visible_devices_of(environment)
        if devices:
            pod = PodRef(environment[VARIABLE_NAMESPACE], environment[VARIABLE_NAME], uid)
            held[pod] = devices
    return held


def visible_devices_of(environment: Mapping[str, str]) -> tuple[AllocatedDevice, ...]:
    """What a process sees; of how much of it, its allocation tells. Without one it counts as all of it."""
    uuids = [uuid for uuid in environment.get(VARIABLE_DEVICES, "").split(",") if uuid]
    try:
        allocated = decode_allocation(environment.get(VARIABLE_ALLOCATION, "")).devices
    except InvalidRequestError:
        allocated = ()
    shares = {share.device.gpu_uuid: share for share in allocated}
    return tuple(
        shares.get(uuid) or AllocatedDevice(DeviceRef(uuid), MILLI_PER_GPU, 0) for uuid in sorted(uuids)
    )


def _pod_processes(node: Path) -> Iterator[tuple[str, int]]:
    """UID of the pod, and a process of it."""
    for folder in sorted(node.rglob("pod*")):
        found = _POD_GROUP.fullmatch(folder.name)
        if found is not None:
            for group in (folder, *folder.rglob("*/")):
                for pid in processes(group):
                    yield found["uid"].replace("_", "-"), pid


def _environment(pid: int) -> dict[str, str]:
    try:
        content = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace")
    except OSError:
        # It ended between two looks.
        return {}
    return dict(entry.split("=", 1) for entry in content.split("\0") if "=" in entry)
