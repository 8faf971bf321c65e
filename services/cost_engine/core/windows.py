"""Where a usage window belongs in time, and what it says of each pod.

A node's clock may be set while it runs. Windows of one spool never overlap, so one that begins before the
last has ended proves that the clock was set back; one that ends after it was received, that it was set
forward. Such a window is moved to where it must have been. Its length is by a clock that nobody sets.

Of windows that are read late the second can't be told: one whose clock was ahead is believed. Those after it
then follow on it, until they would be of the future: then it is known which of the two times was wrong.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef
from gpuloom.model.node import PodRef
from gpuloom.model.usage import DeviceUsage, UsageWindow
from services.cost_engine.core.attribution import UsageTotals
from services.cost_engine.core.intervals import NANOSECONDS_PER_SECOND

SKEW_NS = 5 * 60 * NANOSECONDS_PER_SECOND
"""Clocks of healthy nodes differ by less."""


NOTABLE_NS = NANOSECONDS_PER_SECOND
"""Less is how a clock is kept right, and how its time was rounded."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What one pod used of one device in one window: as it is kept."""

    start_ns: int
    end_ns: int
    node_uid: str
    pod_uid: str
    device: str
    milli: int
    held_ns: int
    measured_ns: int
    used_ns: int
    energy_mj: int | None = None
    memory_peak_bytes: int | None = None

    @property
    def share_ns(self) -> int:
        """What was used of the pod's own share: more than that is its whole share, never more."""
        if self.milli == MILLI_PER_GPU:
            return min(self.measured_ns, self.used_ns)
        return min(self.measured_ns, self.used_ns * MILLI_PER_GPU // max(1, self.milli))

    @property
    def totals(self) -> UsageTotals:
        return UsageTotals(self.measured_ns, self.share_ns, self.energy_mj or 0)


@dataclass(frozen=True, slots=True)
class PlacedWindow:
    start_ns: int
    end_ns: int
    moved: bool


def place_window(window: UsageWindow, previous_end_ns: int, received_ns: int) -> PlacedWindow:
    """`previous_end_ns`: where the window before it in its spool was placed to end; 0 if there was none."""
    told_ns = round(window.start.timestamp() * 1_000_000) * 1000
    latest_ns = received_ns + SKEW_NS - window.duration_ns
    believed_ns = told_ns if told_ns <= latest_ns else received_ns - window.duration_ns
    start_ns = max(previous_end_ns, believed_ns)
    if start_ns > latest_ns:
        start_ns = believed_ns
    moved = abs(start_ns - told_ns) > NOTABLE_NS
    return PlacedWindow(start_ns, start_ns + window.duration_ns, moved)


def rows_of(window: UsageWindow, placed: PlacedWindow, node_uid: str) -> list[UsageRow]:
    """One for each pod and device. A device that nobody held is nobody's cost."""
    return [
        _row(usage, usage.pod, placed, node_uid)
        for usage in window.devices
        if usage.pod is not None and usage.pod.uid
    ]


def pods_of(windows: Iterable[UsageWindow]) -> dict[str, PodRef]:
    return {
        usage.pod.uid: usage.pod
        for window in windows
        for usage in window.devices
        if usage.pod is not None and usage.pod.uid
    }


def usage_by_pod(rows: Iterable[UsageRow]) -> Mapping[str, list[tuple[int, UsageTotals]]]:
    found: dict[str, list[tuple[int, UsageTotals]]] = {}
    for row in rows:
        found.setdefault(row.pod_uid, []).append((row.start_ns, row.totals))
    return found


def device_name(device: DeviceRef) -> str:
    if device.mig is None:
        return device.gpu_uuid
    return f"{device.gpu_uuid}/{device.mig.profile}/{device.mig.start}"


def _row(usage: DeviceUsage, pod: PodRef, placed: PlacedWindow, node_uid: str) -> UsageRow:
    held_ns = min(usage.held_ns, placed.end_ns - placed.start_ns)
    measured_ns = min(usage.measured_ns, held_ns)
    milli = usage.milli if usage.milli is not None and usage.device.mig is None else MILLI_PER_GPU
    return UsageRow(
        start_ns=placed.start_ns,
        end_ns=placed.end_ns,
        node_uid=node_uid,
        pod_uid=pod.uid,
        device=device_name(usage.device),
        milli=milli,
        held_ns=held_ns,
        measured_ns=measured_ns,
        used_ns=min(usage.used_ns, measured_ns),
        energy_mj=usage.energy_mj,
        memory_peak_bytes=usage.memory_peak_bytes,
    )
