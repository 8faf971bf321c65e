"""The arithmetic of the benchmark: percentiles, spreads, ratios. Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """What several rounds gave: the middle one and how far they lie apart."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Durations:
    """Of calls, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    highest_ms: float


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least that many percent do not exceed. Raise ValueError without values."""
    if not values or not 0 < percent <= 100:
        raise ValueError(f"no {percent:g}th percentile of {len(values)} values")
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def spread(values: Sequence[float]) -> Spread | None:
    """None without values."""
    return Spread(statistics.median(values), min(values), max(values)) if values else None


def durations(seconds: Sequence[float]) -> Durations | None:
    """None without calls."""
    if not seconds:
        return None
    return Durations(
        count=len(seconds),
        p50_ms=1000 * percentile(seconds, 50),
        p99_ms=1000 * percentile(seconds, 99),
        highest_ms=1000 * max(seconds),
    )


def ratios(values: Mapping[int, float], baseline: Mapping[int, float]) -> list[float]:
    """Each round's value against the baseline of the same round; rounds that lack either are left out."""
    return [value / baseline[number] for number, value in sorted(values.items()) if baseline.get(number)]


def pods_per_second(times_s: Sequence[float]) -> float | None:
    """From the first to the last binding. None if there were too few to tell."""
    took_s = max(times_s) - min(times_s) if times_s else 0.0
    return (len(times_s) - 1) / took_s if took_s > 0 else None


@dataclass(frozen=True, slots=True)
class Aim:
    """What a benchmark is run for: a figure and the most that it may be."""

    what: str
    measured: float
    most: float
    unit: str

    @property
    def met(self) -> bool:
        return self.measured <= self.most

    def line(self) -> str:
        verdict = "met" if self.met else "MISSED"
        return f"{verdict}: {self.what} {self.measured:.2f} {self.unit}, at most {self.most:g} {self.unit}"
