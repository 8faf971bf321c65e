"""Forecasts half an hour ahead on recorded series: against the last value and against yesterday's.

Pinball loss at 0.9 (ours: the conformal bound; rivals: their value plus the rolling 0.9 quantile of their own
errors) and the weighted absolute percentage error of the expected value.
"""

import csv
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.autoscaler.core.forecasting.forecast import forecast
from services.autoscaler.core.forecasting.series import Sample

_LEVEL = 0.9
_DAYS = 7
Floats = NDArray[np.float64]


def read_series(path: Path) -> list[Sample]:
    """The first column is a time, the second one a number."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return [Sample("series", _time(row[0]), float(row[1])) for row in rows if row[1]]


def report(data: Path, moments: int) -> Iterator[str]:
    header = (
        "series",
        "step min",
        "moments",
        "WAPE ours",
        "last",
        "day ago",
        "pinball ours",
        "last",
        "day ago",
    )
    yield " ".join(f"{title:>13}" for title in header)
    for path in sorted((data / "series").glob("*.csv")):
        samples = read_series(path)
        yield " ".join(f"{figure:>13}" for figure in _row(path.stem[:13], samples, moments))


def _row(name: str, samples: list[Sample], moments: int) -> list[str]:
    step = samples[1].time - samples[0].time
    values = np.array([one.value for one in samples])
    ahead = max(1, round(timedelta(minutes=30) / step))
    day = round(timedelta(days=1) / step)
    first, scale = (_DAYS + 1) * day, float(np.max(values))
    places = np.linspace(first, len(values) - ahead - 1, moments).astype(int)
    ours, bounds = [], []
    for place in places:
        history = samples[place - _DAYS * day : place + 1]
        found = forecast(history, samples[place].time, timedelta(minutes=30), UTC, 0.1 * scale)
        assert found is not None
        ours.append(found.value)
        bounds.append(found.upper)
    truth = values[places + ahead]
    last, ago = values[places], values[places + ahead - day]
    margins = [_margin(values, place, ahead, 0) for place in places]
    seasonal = [_margin(values, place, ahead, day) for place in places]
    wape = [_wape(truth, guess) for guess in (np.array(ours), last, ago)]
    pinball = [
        _pinball(truth, guess)
        for guess in (np.array(bounds), last + np.array(margins), ago + np.array(seasonal))
    ]
    minutes = step.total_seconds() / 60
    return [name, f"{minutes:g}", str(len(places)), *(f"{one:.4f}" for one in (*wape, *pinball))]


def _margin(values: Floats, place: int, ahead: int, day: int) -> float:
    """The 0.9 quantile of this rule's own errors in the days before."""
    ends = np.arange(max(day + ahead, place - 2016), place + 1)
    guesses = values[ends - day] if day else values[ends - ahead]
    return float(np.quantile(values[ends] - guesses, _LEVEL))


def _wape(truth: Floats, guess: Floats) -> float:
    return float(np.sum(np.abs(truth - guess)) / np.sum(np.abs(truth)))


def _pinball(truth: Floats, guess: Floats) -> float:
    """By the mean of the truth, so that series can be compared."""
    error = truth - guess
    return float(np.mean(np.maximum(_LEVEL * error, (_LEVEL - 1) * error)) / np.mean(np.abs(truth)))


def _time(text: str) -> datetime:
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except ValueError:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
