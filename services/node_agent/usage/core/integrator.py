"""From samples to windows. Pure: samples in, closed windows out.

Decides where a window begins and ends: at multiples of its length by the node's clock, and whenever a holder
comes or goes, the node gets another UID, or its clock is set. How long a window was comes from a clock that
nobody sets. What a sample says holds for the time since the sample before it. Time in which nobody looked is
in no window.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import PodRef
from gpuloom.model.usage import DeviceUsage, UsageWindow
from services.node_agent.usage.core.sample import Held, Reading, Sample

UNNUMBERED = 0
MAX_CLOCK_DRIFT_NS = 500_000_000
"""If the node's clock is further from where it should be, it was set."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MJ_PER_J = 1000.0
_NS_PER_S = 1e9
_NS_PER_MS = 1_000_000


@dataclass(slots=True)
class _Row:
    milli: int | None
    held_ns: int = 0
    measured_ns: int = 0
    used_ns: int = 0
    memory_known_ns: int = 0
    memory_byte_ns: int = 0
    memory_peak_bytes: int | None = None
    energy_mj: float | None = None
    utilization_peak: float | None = None


@dataclass(slots=True)
class _Open:
    """A window that is not closed yet. `ends_ns` is when it is closed at the latest."""

    start: datetime
    start_ns: int
    ends_ns: int
    node_uid: str
    rows: dict[Held, _Row] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Rates:
    """What held for a stretch between two samples, of one holding."""

    reading: Reading | None
    """None: not measured."""
    energy_mj_per_ns: float | None


class Integrator:
    def __init__(self, window_ns: int, max_gap_ns: int) -> None:
        """Samples further apart than `max_gap_ns` say nothing of the time between them.

        A window is whole milliseconds long: a wall clock has no nanoseconds to align to.
        """
        if window_ns < 1 or window_ns % _NS_PER_MS:
            raise ValueError(f"a window is whole milliseconds long, not {window_ns} ns")
        self._window_ns = window_ns
        self._max_gap_ns = max_gap_ns
        self._last: Sample | None = None
        self._open: _Open | None = None

    def add(self, sample: Sample) -> list[UsageWindow]:
        """The windows that are closed by this sample, without numbers."""
        last, self._last = self._last, sample
        if last is None or self._open is None:
            self._begin(sample)
            return []
        if not last.at_ns <= sample.at_ns <= last.at_ns + self._max_gap_ns:
            closed = self._end(last.at_ns)
            self._begin(sample)
            return closed
        closed = self._integrate(last, sample)
        if self._open is None or _is_cut(self._open, last, sample):
            closed += self._end(sample.at_ns)
            self._begin(sample)
        return closed

    def close(self) -> list[UsageWindow]:
        """End the open window where it was last seen; the next sample begins another."""
        if self._last is None or self._open is None:
            return []
        closed = self._end(self._last.at_ns)
        self._open = self._last = None
        return closed

    def _begin(self, sample: Sample) -> None:
        # Before it is known for the first time who has what, there is nothing to say.
        if self._open is None and not sample.holders_known:
            return
        self._open = self._window(sample.wall, sample.at_ns, sample)

    def _window(self, start: datetime, start_ns: int, sample: Sample) -> _Open:
        since_ns = _nanoseconds(start - _EPOCH)
        ends_ns = start_ns + self._window_ns - since_ns % self._window_ns
        rows = {held: _Row(reading.milli) for held, reading in sample.readings.items()}
        return _Open(start, start_ns, ends_ns, sample.node_uid, rows)

    def _integrate(self, last: Sample, sample: Sample) -> list[UsageWindow]:
        closed: list[UsageWindow] = []
        rates = _rates(last, sample)
        at_ns = last.at_ns
        while self._open is not None and self._open.ends_ns <= sample.at_ns:
            before = self._open
            _add(before, rates, before.ends_ns - at_ns)
            at_ns = before.ends_ns
            closed += self._end(at_ns)
            start = before.start + timedelta(microseconds=(at_ns - before.start_ns) // 1000)
            self._open = self._window(start, at_ns, last)
        if self._open is not None:
            _add(self._open, rates, sample.at_ns - at_ns)
        return closed

    def _end(self, at_ns: int) -> list[UsageWindow]:
        """One window, or none: one without any time or any device says nothing."""
        ended = self._open
        if ended is None or at_ns <= ended.start_ns or not ended.rows:
            return []
        devices = [_usage(held, row) for held, row in ended.rows.items()]
        duration_ns = at_ns - ended.start_ns
        ordered = tuple(sorted(devices, key=_order))
        return [UsageWindow(UNNUMBERED, ended.node_uid, ended.start, duration_ns, ordered)]


def _is_cut(window: _Open, last: Sample, sample: Sample) -> bool:
    """The milli of a holding that becomes known is a change, too: a row has one."""
    if last.node_uid != sample.node_uid or _holdings(last) != _holdings(sample):
        return True
    expected_ns = sample.at_ns - window.start_ns
    drift_ns = _nanoseconds(sample.wall - window.start) - expected_ns
    return abs(drift_ns) > MAX_CLOCK_DRIFT_NS


def _holdings(sample: Sample) -> dict[Held, int | None]:
    return {held: reading.milli for held, reading in sample.readings.items()}


def _rates(last: Sample, sample: Sample) -> dict[Held, _Rates]:
    energy = _energy_rates(last, sample)
    return {held: _Rates(_during(held, last, sample), energy.get(held)) for held in last.readings}


def _during(held: Held, last: Sample, sample: Sample) -> Reading | None:
    """What the later sample says, if the pod had the device at both ends, and beside the same others."""
    before, after = last.readings[held], sample.readings.get(held)
    same = after is not None and before.rivals == after.rivals
    return after if same and last.holders_known and sample.holders_known else None


def _energy_rates(last: Sample, sample: Sample) -> dict[Held, float]:
    """Of whole cards: a card measures its energy as a whole, so that of an instance is not known."""
    length_ns = sample.at_ns - last.at_ns
    if length_ns <= 0:
        return {}
    cards: dict[str, list[Held]] = {}
    for held in last.readings:
        cards.setdefault(held[1].gpu_uuid, []).append(held)
    found: dict[Held, float] = {}
    for uuid, holdings in cards.items():
        energy_mj = _energy_mj(uuid, last, sample)
        if energy_mj is None or any(device.mig is not None for _, device in holdings):
            continue
        parts = _parts({held: _during(held, last, sample) for held in holdings})
        found |= {held: energy_mj * part / length_ns for held, part in parts.items()}
    return found


def _energy_mj(uuid: str, last: Sample, sample: Sample) -> float | None:
    before, after = last.energy_j.get(uuid), sample.energy_j.get(uuid)
    if before is not None and after is not None:
        # The counter begins anew with the driver.
        return (after - before) * _MJ_PER_J if after >= before else None
    power_w = sample.power_w.get(uuid)
    return None if power_w is None else power_w * _MJ_PER_J * (sample.at_ns - last.at_ns) / _NS_PER_S


def _parts(readings: Mapping[Held, Reading | None]) -> dict[Held, float]:
    """By use if all of it is measured, else by what was given; whoever is alone has all. Or nobody's."""
    if len(readings) == 1:
        return dict.fromkeys(readings, 1.0)
    for of in (_use, _share):
        weights = {held: None if reading is None else of(reading) for held, reading in readings.items()}
        known = {held: weight for held, weight in weights.items() if weight is not None}
        total = sum(known.values())
        if len(known) == len(readings) and total > 0:
            return {held: weight / total for held, weight in known.items()}
    return {}


def _use(reading: Reading) -> float | None:
    return reading.utilization_ratio


def _share(reading: Reading) -> float | None:
    return None if reading.milli is None else float(reading.milli)


def _add(window: _Open, rates: Mapping[Held, _Rates], length_ns: int) -> None:
    for held, row in window.rows.items():
        now = rates.get(held)
        if now is None:
            continue
        if now.energy_mj_per_ns is not None:
            row.energy_mj = (row.energy_mj or 0.0) + now.energy_mj_per_ns * length_ns
        if held[0] is not None:
            row.held_ns += length_ns
            _measure(row, now.reading, length_ns)


def _measure(row: _Row, reading: Reading | None, length_ns: int) -> None:
    if reading is None:
        return
    ratio, memory_bytes = reading.utilization_ratio, reading.memory_bytes
    if ratio is not None:
        row.measured_ns += length_ns
        row.used_ns += min(round(length_ns * ratio), length_ns)
        row.utilization_peak = max(row.utilization_peak or 0.0, ratio)
    if memory_bytes is not None:
        row.memory_known_ns += length_ns
        row.memory_byte_ns += length_ns * memory_bytes
        row.memory_peak_bytes = max(row.memory_peak_bytes or 0, memory_bytes)


def _usage(held: Held, row: _Row) -> DeviceUsage:
    pod, device = held
    return DeviceUsage(
        device=device,
        pod=pod,
        milli=row.milli,
        held_ns=row.held_ns,
        measured_ns=row.measured_ns,
        used_ns=row.used_ns,
        memory_mean_bytes=row.memory_byte_ns // row.memory_known_ns if row.memory_known_ns else None,
        memory_peak_bytes=row.memory_peak_bytes,
        energy_mj=None if row.energy_mj is None else round(row.energy_mj),
        utilization_peak=row.utilization_peak,
    )


def _order(usage: DeviceUsage) -> tuple[str, int, str, PodRef]:
    device: DeviceRef = usage.device
    start, profile = (-1, "") if device.mig is None else (device.mig.start, device.mig.profile)
    return device.gpu_uuid, start, profile, usage.pod or PodRef("", "", "")


def _nanoseconds(delta: timedelta) -> int:
    return ((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds) * 1000
