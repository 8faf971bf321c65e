"""Who was there, from when to when: nodes and the pods on them. Times are nanoseconds since 1970, UTC.

An interval without an end lasts still. Nothing here reads a clock: whoever asks says until when.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

NANOSECONDS_PER_SECOND = 1_000_000_000
HOUR_NS = 3_600 * NANOSECONDS_PER_SECOND
DAY_NS = 24 * HOUR_NS

UNITS_PER_GPU = 21_000
"""Shares are counted in units of a GPU that every way to cut one divides: thousandths, and the 4, 7, 8 or 12
slices of MIG."""


@dataclass(frozen=True, slots=True)
class NodeTraits:
    """What a node is, as far as its price depends on it. An empty text is not known.

    `advertised` is how many GPUs its device plugin offers: more than `gpu_count` where GPUs are shared by
    time; 0 if no plugin offers any.
    """

    name: str
    gpu_count: int
    provider: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    capacity_type: str = ""
    pool: str = ""
    gpu_model: str = ""
    advertised: int = 0

    @property
    def capacity_units(self) -> int:
        return self.gpu_count * UNITS_PER_GPU


@dataclass(frozen=True, slots=True)
class NodeInterval:
    node_uid: str
    start_ns: int
    end_ns: int | None
    traits: NodeTraits


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """A pod as its bill names it; labels are those of its first sight."""

    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    workload: str = ""
    """Kind and name of what made it, e.g. Deployment/server."""
    optimized: bool = False
    """A recommendation was applied to it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a pod holds of its node: so many units in all, on so many devices."""

    units: int
    devices: int
    mechanism: str = "whole"
    """whole, share, mig or timeslicing."""


@dataclass(frozen=True, slots=True)
class PodInterval:
    """`recovered`: Kubernetes never showed it here; an agent's windows did."""

    pod_uid: str
    node_uid: str
    start_ns: int
    end_ns: int | None
    claim: Claim
    recovered: bool = False


def clipped(start_ns: int, end_ns: int | None, low_ns: int, high_ns: int) -> tuple[int, int] | None:
    """The part of an interval between these times, None if there is none."""
    first, last = max(start_ns, low_ns), high_ns if end_ns is None else min(end_ns, high_ns)
    return (first, last) if first < last else None


def hour_of(time_ns: int) -> int:
    return time_ns - time_ns % HOUR_NS


def day_of(time_ns: int) -> int:
    return time_ns - time_ns % DAY_NS


def hours_between(start_ns: int, end_ns: int) -> range:
    """The hours that this stretch touches, by their beginning."""
    return range(hour_of(start_ns), max(end_ns, start_ns), HOUR_NS)
