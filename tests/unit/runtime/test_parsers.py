import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.runtime.parsers import (
    Address,
    address,
    boolean,
    choice,
    comma_list,
    existing_file,
    integer,
    port,
    seconds,
    text,
)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("parse", "raw", "value"),
    [
        (text, " some words ", "some words"),
        (port, "0", 0),
        (port, "65535", 65535),
        (integer(-5, 5), "-5", -5),
        (integer(-5, 5), "+3", 3),
        (seconds, "30", 30.0),
        (seconds, "30s", 30.0),
        (seconds, "500ms", 0.5),
        (seconds, "2m", 120.0),
        (seconds, "1.5h", 5400.0),
        (boolean, "True", True),
        (boolean, "on", True),
        (boolean, "0", False),
        (boolean, "NO", False),
        (choice("auto", "leastLoaded"), "leastloaded", "leastLoaded"),
        (choice(*Colour), "BLUE", Colour.BLUE),
        (address, "discovery.gpuloom.svc:50053", Address("discovery.gpuloom.svc", 50053)),
        (address, "127.0.0.1:0", Address("127.0.0.1", 0)),
        (address, "[::1]:8443", Address("::1", 8443)),
        (comma_list(text), "a, b,c", ("a", "b", "c")),
        (comma_list(port), "80,443", (80, 443)),
    ],
)
def test_a_good_value_is_understood(parse: Callable[[str], object], raw: str, value: object) -> None:
    assert parse(raw) == value


@pytest.mark.parametrize(
    ("parse", "raw", "says"),
    [
        (text, "  ", "must not be empty"),
        (port, "65536", "from 0 to 65535, not '65536'"),
        (port, "-1", "whole number"),
        (port, "80a", "'80a'"),
        (port, "1_000", "whole number"),
        (port, "٣", "whole number"),
        (port, "9" * 5000, "whole number"),
        (integer(1, 3), "4", "from 1 to 3"),
        (integer(1, 3), "1.0", "whole number"),
        (seconds, "0", "positive duration"),
        (seconds, "-5s", "positive duration"),
        (seconds, "5 parsecs", "such as 30s, 500ms or 2m"),
        (seconds, "inf", "positive duration"),
        (seconds, "nan", "positive duration"),
        (boolean, "maybe", "true or false, not 'maybe'"),
        (choice("auto", "json"), "xml", "one of auto, json, not 'xml'"),
        (address, "discovery", "must be host:port"),
        (address, "::1:80", "must be host:port"),
        (address, "host:80:90", "must be host:port"),
        (address, "host:http", "port from 0 to 65535"),
        (address, "ho st:80", "must be host:port"),
        (comma_list(text), "a,,b", "without empty items"),
        (comma_list(port), "80,http", "not 'http'"),
    ],
)
def test_a_bad_value_is_refused_with_what_would_be_right(
    parse: Callable[[str], object], raw: str, says: str
) -> None:
    with pytest.raises(ValueError, match=r"must ") as refusal:
        parse(raw)

    assert says in str(refusal.value)


def test_a_file_that_exists_is_accepted(tmp_path: Path) -> None:
    certificate = tmp_path / "tls.crt"
    certificate.write_text("certificate")

    assert existing_file(str(certificate)) == certificate


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.crt", tmp_path):
        with pytest.raises(ValueError, match="must name an existing file"):
            existing_file(str(path))


def test_a_file_without_read_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "tls.key"
    key.write_text("key")
    # Root may read everything, so the permission bits alone would not do.
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    with pytest.raises(ValueError, match="may not read"):
        existing_file(str(key))


@given(st.text(max_size=300))
def test_a_refusal_is_one_short_line_whatever_was_typed(raw: str) -> None:
    for parse in (port, seconds, boolean, address, choice("auto")):
        try:
            parse(raw)
        except ValueError as error:
            message = str(error)
            assert len(message.splitlines()) == 1
            assert len(message) < 1000


@given(st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True), st.integers(0, 65535))
def test_an_address_reads_back_what_it_prints(host: str, number: int) -> None:
    assert address(str(Address(host, number))) == Address(host, number)
