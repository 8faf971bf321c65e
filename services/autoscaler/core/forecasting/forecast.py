"""What will be needed in half an hour: the last value plus what this time of day usually brings. Pure.

On most clusters the last value is hard to beat, so the learned change counts only as far as it has proved
itself: it is shrunk by its skill in a backtest. The upper bound is a conformal 0.9 quantile of past errors,
and the confidence is the share of comparable moments in the past that the forecast got right. It is used to
raise a floor, never to remove anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

import numpy as np
from numpy.typing import NDArray

from services.autoscaler.core.forecasting.series import Sample

BIN_S = 300
BINS_A_DAY = 86_400 // BIN_S
QUANTILE = 0.9
UTILIZATION_TOLERANCE = 0.15
"""A forecast of utilization that is off by less than this was right."""
MIN_DAYS = 2
_FILL_BINS = 6
"""A gap of half an hour is filled with what was before it; a longer one stays a gap."""
_SAME_WEEKDAY, _SAME_KIND, _OTHER_KIND, _PRIOR = 2.0, 1.0, 0.15, 0.25
_NEAR_BINS = 12
"""Moments within an hour of the same time of day are comparable."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Forecast:
    """`value` is expected, `upper` holds nine times of ten. `confidence` is 0 to 1, backtested."""

    value: float
    upper: float
    confidence: float
    skill: float


def forecast(
    samples: Sequence[Sample], now: datetime, horizon: timedelta, zone: tzinfo, tolerance: float
) -> Forecast | None:
    """None with less than two days of history, or if nothing was measured lately.

    `tolerance`: how far a forecast may be off to count as right, in the unit of the samples.
    """
    series = _binned(samples, now)
    steps = max(1, round(horizon.total_seconds() / BIN_S))
    if series is None or len(series) < MIN_DAYS * BINS_A_DAY + steps or np.isnan(series[-1]):
        return None
    days = _weekdays(len(series), now, zone)
    deltas = _usual_changes(series, days, steps)
    # Of each moment in the past whose outcome is known: what was, and what the usual change would have said.
    base, truth, usual = series[:-steps], series[steps:], deltas[:-steps]
    known = ~(np.isnan(base) | np.isnan(truth) | np.isnan(usual))
    if not known.any() or np.isnan(deltas[-1]):
        return Forecast(float(series[-1]), float(series[-1]), 0.0, 0.0)
    errors = truth - base
    skill = _skill(errors[known], usual[known])
    residuals = errors - skill * usual
    near = known & _comparable(len(base), len(series), days)
    judged = residuals[near] if near.sum() >= _NEAR_BINS else residuals[known]
    value = float(series[-1] + skill * deltas[-1])
    margin = max(0.0, _conformal(judged))
    return Forecast(value, value + margin, float(np.mean(np.abs(judged) <= tolerance)), skill)


def _binned(samples: Sequence[Sample], now: datetime) -> Floats | None:
    """Means of five minutes, the last bin being the present one; NaN where nothing was measured."""
    # A clock that was ahead once has left samples of times that are still to come.
    samples = [one for one in samples if one.time <= now]
    if not samples:
        return None
    last = int(now.timestamp() // BIN_S)
    first = int(min(one.time.timestamp() for one in samples) // BIN_S)
    total, count = np.zeros(last - first + 1), np.zeros(last - first + 1)
    for one in samples:
        place = int(one.time.timestamp() // BIN_S) - first
        if 0 <= place < len(total):
            total[place] += one.value
            count[place] += 1
    series: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    gap = 0
    for place in range(1, len(series)):
        gap = gap + 1 if count[place] == 0 else 0
        if 0 < gap <= _FILL_BINS:
            series[place] = series[place - 1]
    return series


def _weekdays(length: int, now: datetime, zone: tzinfo) -> NDArray[np.int64]:
    """The day of the week of every bin, in the cluster's time zone."""
    local = now.astimezone(zone)
    minute = (local.hour * 60 + local.minute) * 60 // BIN_S
    back = np.arange(length - 1, -1, -1) + (BINS_A_DAY - 1 - minute)
    days: NDArray[np.int64] = (local.weekday() - back // BINS_A_DAY) % 7
    return days


def _usual_changes(series: Floats, days: NDArray[np.int64], steps: int) -> Floats:
    """For every bin, the mean change over the next `steps` at the same time on earlier days.

    Days of the same kind count most; a prior of no change keeps a single day from being believed outright.
    """
    length = len(series)
    change = np.full(length, np.nan)
    change[: length - steps] = series[steps:] - series[: length - steps]
    total, weight = np.zeros(length), np.zeros(length)
    for lag in range(BINS_A_DAY, length, BINS_A_DAY):
        earlier = change[: length - lag]
        # Only what had happened by then: the outcome of the earlier moment lies before this one.
        weights = _alike(days[lag:], days[: length - lag]) * ~np.isnan(earlier)
        total[lag:] += weights * np.nan_to_num(earlier)
        weight[lag:] += weights
    usual: Floats = np.where(weight > 0, total / (weight + _PRIOR), np.nan)
    return usual


def _alike(days: NDArray[np.int64], others: NDArray[np.int64]) -> Floats:
    same_kind = (days >= 5) == (others >= 5)
    weights: Floats = np.where(
        days == others, _SAME_WEEKDAY, np.where(same_kind, _SAME_KIND, _OTHER_KIND)
    ).astype(np.float64)
    return weights


def _skill(errors: Floats, usual: Floats) -> float:
    """The part of the usual change that would have been best in the past, 0 to 1: by least squares."""
    power = float(np.sum(usual**2))
    if power <= 0:
        return 0.0
    return float(np.clip(np.sum(errors * usual) / power, 0.0, 1.0))


def _comparable(count: int, length: int, days: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Moments near the present time of day, on days of the present kind."""
    apart = (np.arange(count) - (length - 1)) % BINS_A_DAY
    near = np.minimum(apart, BINS_A_DAY - apart) <= _NEAR_BINS // 2
    kind: NDArray[np.bool_] = (days[:count] >= 5) == (days[-1] >= 5)
    return near & kind


def _conformal(residuals: Floats) -> float:
    """The quantile with the correction for few samples."""
    count = len(residuals)
    level = min(1.0, np.ceil((count + 1) * QUANTILE) / count)
    return float(np.quantile(residuals, level))
