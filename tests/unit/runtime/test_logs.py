import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from gpuloom.runtime.logs import (
    ConsoleFormatter,
    FieldLogger,
    JsonFormatter,
    LogFormat,
    LogLevel,
    configure_logging,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Speechless:
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.fixture
def _logging_restored() -> Iterator[None]:
    root, handlers, level = logging.getLogger(), logging.getLogger().handlers[:], logging.getLogger().level
    logger_class = logging.getLoggerClass()
    # basicConfig closes the handlers it replaces, so pytest's own are taken out of its reach.
    root.handlers[:] = []
    yield
    logging.captureWarnings(False)
    logging.setLoggerClass(logger_class)
    root.handlers[:] = handlers
    root.setLevel(level)


def a_logger(formatter: logging.Formatter) -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = FieldLogger("example.module")
    logger.addHandler(handler)
    return logger, stream


def logged(message: str, *args: object, **options: Any) -> dict[str, Any]:
    """What one JSON record says; fails if it is not exactly one line."""
    logger, stream = a_logger(JsonFormatter("discovery"))
    logger.info(message, *args, **options)
    (line,) = stream.getvalue().splitlines()
    return dict(json.loads(line))


def printed(message: str, *args: object, **options: Any) -> list[str]:
    logger, stream = a_logger(ConsoleFormatter("discovery"))
    logger.info(message, *args, **options)
    return stream.getvalue().splitlines()


def test_a_record_is_one_json_object_with_its_fields() -> None:
    record = logged("pod bound", extra={"pod": "ns/name", "devices": 2})

    assert record.pop("time")[-5:].endswith("Z")
    assert record == {
        "level": "info",
        "service": "discovery",
        "logger": "example.module",
        "message": "pod bound",
        "pod": "ns/name",
        "devices": 2,
    }


def test_a_line_break_in_a_message_cannot_forge_a_second_record() -> None:
    forged = 'x\n{"level":"critical","message":"forged"}\r\u2028\x85y'

    assert logged("%s", forged)["message"] == forged
    assert len(printed("%s", forged, extra={"field": forged})) == 1


def test_terminal_control_sequences_are_made_visible_on_a_console() -> None:
    (line,) = printed("\x1b[2Jgone", extra={"pod": "\x07"})

    assert "\\x1b[2Jgone" in line
    assert "pod=\\x07" in line


@pytest.mark.parametrize(
    "name", ["name", "args", "msg", "module", "process", "exc_info", "asctime", "taskName"]
)
def test_a_field_with_a_name_of_the_logging_library_is_kept(name: str) -> None:
    record = logged("scheduled", extra={name: "mine", "pod": "ns/name"})

    assert record[name] == "mine"
    assert record["pod"] == "ns/name"
    assert record["message"] == "scheduled"


@pytest.mark.parametrize("name", ["time", "level", "service", "logger", "message"])
def test_a_field_cannot_replace_what_every_record_says(name: str) -> None:
    plain = logged("scheduled")

    record = logged("scheduled", extra={name: "mine"})

    assert record[f"{name}_"] == "mine"
    assert {key: record[key] for key in plain if key != "time"} == {
        key: plain[key] for key in plain if key != "time"
    }


def test_an_exception_is_part_of_its_record() -> None:
    try:
        raise KeyError("missing gpu")
    except KeyError:
        record = logged("bind failed", exc_info=True, extra={"error": "mine"})
        lines = printed("bind failed", exc_info=True)

    assert record["error"].startswith("Traceback")
    assert "KeyError: 'missing gpu'" in record["error"]
    assert record["error_"] == "mine"
    assert lines[0].endswith("bind failed")
    assert lines[-1] == "KeyError: 'missing gpu'"


def test_an_error_field_without_an_exception_keeps_its_name() -> None:
    assert logged("refused", exc_info=False, extra={"error": "no room"})["error"] == "no room"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({1}, "{1}"),
        (2**80, str(2**80)),
        ("lone \udc80", "lone \\udc80"),
        ({"deep": {"set": {3}}}, {"deep": {"set": "{3}"}}),
        ({1: "one"}, {"1": "one"}),
        (b"raw", "b'raw'"),
        (Speechless(), "<Speechless without a text>"),
        (None, None),
    ],
)
def test_a_value_that_json_cannot_hold_becomes_text(value: object, shown: object) -> None:
    record = logged("seen", extra={"value": value, "other": 7})

    assert record["value"] == shown
    assert record["other"] == 7


def test_arguments_that_do_not_fit_the_message_do_not_lose_the_record() -> None:
    assert logged("%d pods", "many")["message"] == "%d pods ('many',)"


def test_a_console_line_reads_well() -> None:
    (line,) = printed("pod bound", extra={"pod": "ns/name"})

    assert line[2] == ":"
    assert line.endswith("INFO     discovery example.module: pod bound  pod=ns/name")


@pytest.mark.usefixtures("_logging_restored")
def test_every_logger_writes_to_the_stream_and_a_module_level_one_takes_any_field() -> None:
    logger = logging.getLogger("made.before")
    stream = io.StringIO()

    configure_logging("discovery", LogLevel.INFO, LogFormat.AUTO, stream)
    logger.info("seen", extra={"name": "ns/name"})
    logger.debug("not seen")

    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["name"] == "ns/name"


@pytest.mark.usefixtures("_logging_restored")
def test_a_terminal_gets_the_console_format_unless_json_is_asked_for() -> None:
    automatic, asked = Terminal(), Terminal()

    configure_logging("discovery", LogLevel.INFO, LogFormat.AUTO, automatic)
    logging.getLogger("example").warning("seen")
    configure_logging("discovery", LogLevel.INFO, LogFormat.JSON, asked)
    logging.getLogger("example").warning("seen")

    assert "WARNING  discovery example: seen" in automatic.getvalue()
    assert json.loads(asked.getvalue())["message"] == "seen"


@pytest.mark.usefixtures("_logging_restored")
def test_warnings_of_python_become_records() -> None:
    stream = io.StringIO()
    configure_logging("discovery", LogLevel.INFO, LogFormat.JSON, stream)

    # pytest turns warnings into errors before they are shown, so this one is shown by hand.
    warnings.showwarning("old thing", DeprecationWarning, "module.py", 7)

    record = json.loads(stream.getvalue())
    assert record["logger"] == "py.warnings"
    assert "old thing" in record["message"]
    assert sys.stderr is not stream
