"""What one pod did, window by window, in constant space. Pure.

A run sums up everything that its pod's windows said, and remembers the last minutes one by one, because waste
is about these. What was not measured is in no sum of use.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpuloom.model.usage import DeviceUsage, UsageWindow

BINS = 20
RECENT_S = 900.0
MAX_RECENT = 200
MIB = 1024 * 1024
_NS_PER_S = 1_000_000_000
_IDLE_RATIO = 0.05
_LEAST_MEASURED_NS = 500_000_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """One window of a pod, over all its devices: seconds, and GPU-seconds of whole devices."""

    ends_at_s: float
    duration_s: float
    held_s: float
    measured_s: float
    used_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """`histogram` has the measured time by utilisation, in nanoseconds. `given_milli`: of one device.

    `changes` sums up how much utilisation moved from one window to the next, over `steps` of them.
    """

    pod_uid: str
    signature: str
    started_at: datetime
    seen_until: datetime
    devices: int = 0
    given_milli: int | None = None
    duration_ns: int = 0
    held_ns: int = 0
    measured_ns: int = 0
    used_ns: int = 0
    histogram: tuple[int, ...] = (0,) * BINS
    memory_peak_bytes: int | None = None
    energy_mj: int | None = None
    last_ratio: float | None = None
    changes: float = 0.0
    steps: int = 0
    recent: tuple[Stretch, ...] = ()

    @property
    def mean_ratio(self) -> float | None:
        return self.used_ns / self.measured_ns if self.measured_ns else None

    @property
    def duration_s(self) -> float:
        return self.duration_ns / _NS_PER_S

    @property
    def memory_mib(self) -> float | None:
        return None if self.memory_peak_bytes is None else self.memory_peak_bytes / MIB

    @property
    def power_w(self) -> float | None:
        if self.energy_mj is None or not self.held_ns:
            return None
        return self.energy_mj / 1000 / (self.held_ns / _NS_PER_S)

    @property
    def idle_ratio(self) -> float:
        """Of the measured time, how much was spent below 5 %."""
        total = sum(self.histogram)
        return sum(self.histogram[: max(1, round(_IDLE_RATIO * BINS))]) / total if total else 0.0

    @property
    def burstiness(self) -> float:
        return self.changes / self.steps if self.steps else 0.0

    def quantile(self, level: float) -> float | None:
        """Of utilisation over the measured time: the upper edge of the bin."""
        total = sum(self.histogram)
        if not total:
            return None
        passed = 0
        for place, amount in enumerate(self.histogram):
            passed += amount
            if passed >= level * total:
                return (place + 1) / BINS
        return 1.0


def begin_run(pod_uid: str, signature: str, started_at: datetime) -> Run:
    return Run(pod_uid, signature, started_at, started_at)


def add_window(run: Run, window: UsageWindow, usages: Sequence[DeviceUsage]) -> Run:
    """`usages` are this pod's rows of the window. A window that the run has seen already changes nothing."""
    ends_at_s = window.start.timestamp() + window.duration_ns / _NS_PER_S
    held_ns = sum(usage.held_ns for usage in usages)
    measured_ns = sum(usage.measured_ns for usage in usages)
    used_ns = sum(usage.used_ns for usage in usages)
    measured = measured_ns > _LEAST_MEASURED_NS
    ratio = used_ns / measured_ns if measured else None
    moved = ratio is not None and run.last_ratio is not None
    return replace(
        run,
        seen_until=max(run.seen_until, datetime.fromtimestamp(ends_at_s, window.start.tzinfo)),
        devices=max(run.devices, len(usages)),
        given_milli=next((usage.milli for usage in usages if usage.milli is not None), run.given_milli),
        duration_ns=run.duration_ns + window.duration_ns,
        held_ns=run.held_ns + held_ns,
        measured_ns=run.measured_ns + measured_ns,
        used_ns=run.used_ns + used_ns,
        histogram=_binned(run.histogram, ratio, measured_ns),
        memory_peak_bytes=_most(run.memory_peak_bytes, [usage.memory_peak_bytes for usage in usages]),
        energy_mj=_sum(run.energy_mj, [usage.energy_mj for usage in usages]),
        last_ratio=ratio if ratio is not None else run.last_ratio,
        changes=run.changes + (abs((ratio or 0.0) - (run.last_ratio or 0.0)) if moved else 0.0),
        steps=run.steps + moved,
        recent=_recent(run.recent, _stretch(window, ends_at_s, held_ns, measured_ns, used_ns)),
    )


def run_to_json(run: Run) -> dict[str, Any]:
    """Without the recent windows and the pod's own names, which have columns of their own."""
    return {
        "devices": run.devices,
        "milli": run.given_milli,
        "duration": run.duration_ns,
        "held": run.held_ns,
        "measured": run.measured_ns,
        "used": run.used_ns,
        "histogram": list(run.histogram),
        "memory": run.memory_peak_bytes,
        "energy": run.energy_mj,
        "last": run.last_ratio,
        "changes": run.changes,
        "steps": run.steps,
        "recent": [
            [each.ends_at_s, each.duration_s, each.held_s, each.measured_s, each.used_s]
            for each in run.recent
        ],
    }


def run_from_json(run: Run, document: dict[str, Any]) -> Run:
    """Raise KeyError, TypeError or ValueError for what is no such document."""
    histogram = tuple(int(amount) for amount in document["histogram"])
    if len(histogram) != BINS:
        raise ValueError("a histogram of another size")
    return replace(
        run,
        devices=int(document["devices"]),
        given_milli=_whole(document["milli"]),
        duration_ns=int(document["duration"]),
        held_ns=int(document["held"]),
        measured_ns=int(document["measured"]),
        used_ns=int(document["used"]),
        histogram=histogram,
        memory_peak_bytes=_whole(document["memory"]),
        energy_mj=_whole(document["energy"]),
        last_ratio=None if document["last"] is None else float(document["last"]),
        changes=float(document["changes"]),
        steps=int(document["steps"]),
        recent=tuple(Stretch(*map(float, each)) for each in document["recent"]),
    )


def _whole(told: Any) -> int | None:
    return None if told is None else int(told)


def _stretch(window: UsageWindow, ends_at_s: float, held_ns: int, measured_ns: int, used_ns: int) -> Stretch:
    return Stretch(
        ends_at_s,
        window.duration_ns / _NS_PER_S,
        held_ns / _NS_PER_S,
        measured_ns / _NS_PER_S,
        used_ns / _NS_PER_S,
    )


def _recent(known: tuple[Stretch, ...], latest: Stretch) -> tuple[Stretch, ...]:
    # A clock that was set back leaves windows that end in the future: they say nothing of the last minutes.
    kept = [each for each in known if latest.ends_at_s - RECENT_S < each.ends_at_s <= latest.ends_at_s]
    return (*kept[1 - MAX_RECENT :], latest)


def _binned(histogram: tuple[int, ...], ratio: float | None, measured_ns: int) -> tuple[int, ...]:
    if ratio is None:
        return histogram
    place = min(BINS - 1, int(ratio * BINS))
    return (*histogram[:place], histogram[place] + measured_ns, *histogram[place + 1 :])


def _most(known: int | None, amounts: Sequence[int | None]) -> int | None:
    return max([each for each in (known, *amounts) if each is not None], default=None)


def _sum(known: int | None, amounts: Sequence[int | None]) -> int | None:
    told = [each for each in (known, *amounts) if each is not None]
    return sum(told) if told else None
