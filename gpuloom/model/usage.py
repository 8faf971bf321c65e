"""What was used on one node, window by window, and how far a reader has come.

A window is a stretch of time on one node during which nobody began or ended to hold a device. "Not measured"
is a quantity of its own: `held_ns - measured_ns` is neither used nor idle.
"""

from dataclasses import dataclass
from datetime import datetime

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import PodRef


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """What `pod` used of `device`; a device that nobody held has no pod and `held_ns` 0.

    `used_ns` is the integral of the utilisation of the whole device by this pod over the measured time.
    `milli` are the thousandths of the device that were given; 1000 for a MIG instance.
    """

    device: DeviceRef
    pod: PodRef | None = None
    milli: int | None = None
    held_ns: int = 0
    measured_ns: int = 0
    used_ns: int = 0
    memory_mean_bytes: int | None = None
    memory_peak_bytes: int | None = None
    energy_mj: int | None = None
    utilization_peak: float | None = None


@dataclass(frozen=True, slots=True)
class UsageWindow:
    """`start` is by the node's clock, which may be set; `duration_ns` by one that nobody sets."""

    sequence: int
    node_uid: str
    start: datetime
    duration_ns: int
    devices: tuple[DeviceUsage, ...] = ()


@dataclass(frozen=True, slots=True)
class UsagePosition:
    """Where a spool stands: its oldest and its newest window. Empty: `first == last + 1`."""

    spool_id: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class UsageCursor:
    """How far a reader has come on one node: `sequence` is the last window it keeps, 0 if none."""

    node_uid: str
    spool_id: str
    sequence: int


@dataclass(frozen=True, slots=True)
class UsageBatch:
    """Windows of one spool in order, and the cursor after them.

    `missed` is how many windows before the first of these will never come: they left the spool before they
    were read.
    """

    cursor: UsageCursor
    node_name: str
    windows: tuple[UsageWindow, ...]
    missed: int = 0
