"""Mode ratio: the current number times the largest ratio of value to target, rounded up. No tolerance.

Never says less than now while any metric is not known: what is missing may be what is overloaded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from services.autoscaler.inference.core.readings import Reading, not_known


@dataclass(frozen=True, slots=True)
class Proposal:
    """A number of replicas, before limits. `held`: why it is not less, or not another one."""

    replicas: int
    reason: str
    held: str = ""


def scaled(current: int, reading: Reading) -> int | None:
    """ceil(current * value / target), exactly: in binary fractions 10 replicas at 110 % would become 12."""
    if reading.value is None or not math.isfinite(reading.value):
        return None
    return math.ceil(current * Fraction(repr(reading.value)) / Fraction(repr(reading.target)))


def propose(current: int, readings: Sequence[Reading]) -> Proposal:
    by_metric = [(wanted, one) for one in readings if (wanted := scaled(current, one)) is not None]
    missing = not_known(readings)
    if not by_metric:
        return Proposal(current, missing or "there is no metric", "no metric is known")
    wanted, reading = max(by_metric, key=lambda pair: (pair[0], pair[1].ratio or 0.0))
    reason = f"{reading}: {current} x {reading.ratio:.4g} makes {wanted}"
    if missing and wanted < current:
        return Proposal(current, f"{reason}, but {missing}", "a metric is not known")
    return Proposal(wanted, reason)
