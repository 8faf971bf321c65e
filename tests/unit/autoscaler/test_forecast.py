"""Warm before nine, quiet where nothing can be learned, and never sure of what it has not proved."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.autoscaler.core.forecasting.forecast import UTILIZATION_TOLERANCE as TOLERANCE
from services.autoscaler.core.forecasting.forecast import Forecast, forecast
from services.autoscaler.core.forecasting.series import Sample
from tests.effort import examples

BERLIN = ZoneInfo("Europe/Berlin")
HORIZON = timedelta(minutes=30)
MONDAY = datetime(2026, 11, 16, tzinfo=BERLIN)


def office_hours(until: datetime, days: float, busy: float = 0.85, quiet: float = 0.1) -> list[Sample]:
    """Busy from nine to five on weekdays."""
    samples = []
    moment = until - timedelta(days=days)
    while moment <= until:
        at_work = moment.weekday() < 5 and 9 <= moment.hour < 17
        samples.append(Sample("utilization", moment.astimezone(UTC), busy if at_work else quiet))
        moment += timedelta(minutes=5)
    return samples


def predicted(now: datetime, days: float = 7) -> Forecast | None:
    return forecast(office_hours(now, days), now.astimezone(UTC), HORIZON, BERLIN, TOLERANCE)


def test_busy_at_nine_on_weekdays_is_warm_at_half_past_eight_after_seven_days() -> None:
    found = predicted(MONDAY + timedelta(hours=8, minutes=30))

    assert found is not None
    assert found.upper > 0.7
    assert found.confidence > 0.7


def test_a_quiet_hour_a_weekend_and_a_short_history_warm_nothing() -> None:
    night = predicted(MONDAY + timedelta(hours=3))
    saturday = predicted(MONDAY + timedelta(days=5, hours=8, minutes=30), days=14)

    assert night is not None
    assert night.upper < 0.2
    assert saturday is not None
    assert saturday.value < 0.3
    assert predicted(MONDAY + timedelta(hours=8, minutes=30), days=1) is None


def test_samples_of_times_to_come_are_no_history() -> None:
    """A replica whose clock was ahead wrote them."""
    now = MONDAY.astimezone(UTC)
    ahead = [Sample("utilization", now + timedelta(hours=at), 0.9) for at in (3, 4)]

    assert forecast(ahead, now, HORIZON, BERLIN, TOLERANCE) is None
    known = office_hours(MONDAY, 7)
    assert forecast([*known, *ahead], now, HORIZON, BERLIN, TOLERANCE) == predicted(MONDAY)


def test_f24_what_can_not_be_learned_is_the_last_value_with_little_confidence() -> None:
    chance = np.random.default_rng(7)
    start = MONDAY.astimezone(UTC) - timedelta(days=8)
    noise = [
        Sample("utilization", start + timedelta(minutes=5 * at), float(chance.uniform(0, 1)))
        for at in range(8 * 288)
    ]

    found = forecast(noise, noise[-1].time, HORIZON, UTC, TOLERANCE)

    assert found is not None
    assert found.confidence < 0.5
    assert found.skill < 0.4


def test_a_forecast_needs_to_know_the_present() -> None:
    now = MONDAY + timedelta(hours=8, minutes=30)
    old = [one for one in office_hours(now, 7) if one.time < now - timedelta(hours=2)]

    assert forecast(old, now.astimezone(UTC), HORIZON, BERLIN, TOLERANCE) is None


@settings(max_examples=examples(40), deadline=None)
@given(level=st.floats(0, 1), days=st.integers(3, 9), hour=st.integers(0, 23))
def test_a_level_that_never_changes_is_forecast_as_it_is(level: float, days: int, hour: int) -> None:
    now = MONDAY + timedelta(hours=hour)

    found = forecast(office_hours(now, days, level, level), now.astimezone(UTC), HORIZON, BERLIN, TOLERANCE)

    assert found is not None
    assert abs(found.value - level) < 1e-6
    assert found.upper >= found.value
    assert found.confidence == 1.0
