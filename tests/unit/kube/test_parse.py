from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.kube.parse import (
    MAX_QUANTITY,
    format_micro_time,
    format_time,
    parse_quantity,
    parse_time,
    quantity_milli,
    quantity_value,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", Fraction(0)),
        ("2", Fraction(2)),
        ("+2", Fraction(2)),
        ("-1.5", Fraction(-3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("100n", Fraction(1, 10**7)),
        ("3u", Fraction(3, 10**6)),
        ("1500m", Fraction(3, 2)),
        ("1k", Fraction(1000)),
        ("1M", Fraction(10**6)),
        ("1G", Fraction(10**9)),
        ("1T", Fraction(10**12)),
        ("1P", Fraction(10**15)),
        ("2E", Fraction(2 * 10**18)),
        ("1Ki", Fraction(1024)),
        ("1Mi", Fraction(2**20)),
        ("1.5Gi", Fraction(3 * 2**29)),
        ("1Ti", Fraction(2**40)),
        ("1Pi", Fraction(2**50)),
        ("1Ei", Fraction(2**60)),
        ("1e3", Fraction(1000)),
        ("1E3", Fraction(1000)),
        ("25e-1", Fraction(5, 2)),
        (7, Fraction(7)),
        (0.25, Fraction(1, 4)),
    ],
)
def test_a_quantity_has_its_exact_value(text: str | float, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "-",
        "e3",
        "1e",
        "1 Gi",
        " 1",
        "1gi",
        "1K",
        "0x10",
        "1_000",
        "\u0661",
        "NaN",
        "inf",
        "1e99",
        "1e9999999",
        "9" * 65,
        "10E",
        float("nan"),
        float("inf"),
        10**30,
        True,
    ],
)
def test_what_is_no_quantity_is_refused(text: str | float) -> None:
    with pytest.raises(ValueError, match=r"quantity|exponent|larger"):
        parse_quantity(text)


@given(st.text(max_size=80))
def test_any_text_is_a_bounded_quantity_or_a_value_error(text: str) -> None:
    try:
        value = parse_quantity(text)
    except ValueError:
        return

    assert abs(value) <= MAX_QUANTITY


def test_thousandths_and_units_round_up() -> None:
    assert quantity_milli("100u") == 1
    assert quantity_milli("1.5") == 1500
    assert quantity_value("1500m") == 2
    assert quantity_value("-1500m") == -1


def test_a_time_in_another_zone_is_read_as_utc() -> None:
    moment = parse_time("2026-01-31T09:30:00.123456789+02:00")

    assert moment == datetime(2026, 1, 31, 7, 30, 0, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-31",
        "2026-01-31T09:30:00",
        "2026-13-01T00:00:00Z",
        "2026-01-31T25:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "2026-01-31T09:30:00+24:00",
        "2026-01-31 09:30:00Z",
        "2026-01-31T09:30:00.Z",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_time(text)


def test_times_are_written_in_utc_with_a_z() -> None:
    moment = datetime(2026, 1, 31, 9, 30, 0, 5, tzinfo=timezone(timedelta(hours=1)))

    assert format_time(moment) == "2026-01-31T08:30:00Z"
    assert format_micro_time(moment) == "2026-01-31T08:30:00.000005Z"


def test_a_time_without_a_zone_is_not_written() -> None:
    with pytest.raises(ValueError, match="without a zone"):
        format_time(datetime(2026, 1, 31))  # noqa: DTZ001


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_micro_time_survives_the_round_trip(moment: datetime) -> None:
    assert parse_time(format_micro_time(moment)) == moment


@given(st.text(max_size=40))
def test_any_text_is_a_time_or_a_value_error(text: str) -> None:
    try:
        moment = parse_time(text)
    except ValueError:
        return

    assert moment.tzinfo is UTC
