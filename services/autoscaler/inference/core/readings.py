"""What a metric says now, and what many pods say together. Never makes a number of nothing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuloom.model.policies import MetricReading

LEAST_COVERAGE = 0.5
"""Of the ready pods, so many must have told a fresh value: fewer say nothing about the whole, and asking for
more would let one bad pod stop everything."""


@dataclass(frozen=True, slots=True)
class Reading:
    """`value` None: it could not be read; `missing` says why. `saturates`: it can't exceed some maximum."""

    name: str
    target: float
    value: float | None = None
    missing: str = ""
    saturates: bool = False

    @property
    def ratio(self) -> float | None:
        return None if self.value is None else self.value / self.target

    def told(self) -> MetricReading:
        finite = self.ratio is not None and math.isfinite(self.ratio)
        return MetricReading(self.name, self.target, self.value, self.ratio if finite else None)

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name} is not known ({self.missing})"
        return f"{self.name} is {self.value:.4g} of {self.target:.4g}"


class Combination(StrEnum):
    """How values of pods become one. SUM counts pods that are silent as the mean of the others."""

    MEAN = "mean"
    SUM = "sum"


def combined(values: Mapping[str, float], ready: Sequence[str], how: Combination) -> tuple[float | None, str]:
    """One value of fresh ones by pod, or None and why. Pods that are not ready neither count nor hinder."""
    of_ready = [values[pod] for pod in ready if pod in values and math.isfinite(values[pod])]
    if not ready:
        return None, "no replica is ready"
    if len(of_ready) < LEAST_COVERAGE * len(ready) or not of_ready:
        return None, f"{len(of_ready)} of {len(ready)} ready replicas told a fresh value"
    mean = math.fsum(of_ready) / len(of_ready)
    return (mean if how is Combination.MEAN else mean * len(ready)), ""


def not_known(readings: Sequence[Reading]) -> str:
    """Which of them could not be read and why; empty if all were."""
    return "; ".join(str(one) for one in readings if one.value is None)
