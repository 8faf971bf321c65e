"""How log records look: one JSON object a line for machines, one plain line for people on a terminal.

A record is a constant message plus fields: `log.info("pod bound", extra={"pod": "ns/name"})`. It decides
the form alone, never what is worth logging, and nothing that is logged can make it fail or forge a second
record.
"""

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

import orjson


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """AUTO is CONSOLE on a terminal, else JSON."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


# Fields whose names the standard library refuses, kept beside the record's own attributes.
_CLASHES = "clashing_fields"
# taskName is an attribute from Python 3.12 on.
_OWN_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", _CLASHES}
# JSON lets these stand in a string, but many readers take them for the end of a line.
_LINE_BREAKS = {0x85: r"\u0085", 0x2028: r"\u2028", 0x2029: r"\u2029"}
_JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z


def configure_logging(service: str, level: LogLevel, log_format: LogFormat, stream: TextIO) -> None:
    """Make every logger of the process, and Python's warnings, write to the stream in our form."""
    console = log_format is LogFormat.CONSOLE or (log_format is LogFormat.AUTO and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(ConsoleFormatter(service) if console else JsonFormatter(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    _let_loggers_take_any_field()
    _leave_out_what_nobody_reads()


class JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": _message(record),
        }
        error = _error(self, record)
        if error:
            line["error"] = error
        for key, value in _fields(record).items():
            line[_free_name(str(key), line)] = value
        return _encode(line)


class ConsoleFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        time = _time(record).strftime("%H:%M:%S.%f")[:-3]
        fields = "".join(
            f"  {_printable(str(key))}={_printable(_text(value))}" for key, value in _fields(record).items()
        )
        head = f"{time} {record.levelname:<8} {self._service} {record.name}: "
        lines = [head + _printable(_message(record)) + fields]
        lines += [_printable(line) for line in _error(self, record).splitlines()]
        return "\n".join(lines)


class FieldLogger(logging.Logger):
    """A logger that takes fields of any name; the standard one raises on `name`, `args`, `module`, …"""

    def makeRecord(  # noqa: PLR0913, PLR0917 - the standard library's signature
        self,
        name: str,
        level: int,
        fn: str,
        lno: int,
        msg: object,
        args: Any,
        exc_info: Any,
        func: str | None = None,
        extra: Mapping[str, object] | None = None,
        sinfo: str | None = None,
    ) -> logging.LogRecord:
        record = super().makeRecord(name, level, fn, lno, msg, args, exc_info, func, None, sinfo)
        clashes = {}
        for key, value in (extra or {}).items():
            if key in _OWN_ATTRIBUTES:
                clashes[key] = value
            else:
                record.__dict__[key] = value
        record.__dict__[_CLASHES] = clashes
        return record


def _let_loggers_take_any_field() -> None:
    logging.setLoggerClass(FieldLogger)
    # Modules made their loggers when they were imported, long before this.
    for logger in list(logging.root.manager.loggerDict.values()):
        if type(logger) is logging.Logger:
            logger.__class__ = FieldLogger


def _leave_out_what_nobody_reads() -> None:
    """Where a record comes from is half of what it costs to make one, and our forms don't show it."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # As the standard library's manual says it: without this, every record looks through the stack.
    logging._srcfile = None  # noqa: SLF001
    if sys.version_info >= (3, 12):
        logging.logAsyncioTasks = False


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not fit the message must not lose the record
        return f"{_text(record.msg)} {_text(record.args)}"


def _fields(record: logging.LogRecord) -> dict[str, object]:
    given = {key: value for key, value in record.__dict__.items() if key not in _OWN_ATTRIBUTES}
    clashing: dict[str, object] = record.__dict__.get(_CLASHES, {})
    return given | clashing


def _error(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)


def _free_name(name: str, line: Mapping[str, object]) -> str:
    while name in line:
        name += "_"
    return name


def _encode(line: dict[str, object]) -> str:
    try:
        encoded = orjson.dumps(line, default=_text, option=_JSON_OPTIONS)
    except TypeError:
        # Something in it is beyond JSON (a huge number, a lone surrogate, a loop): only that becomes text.
        safe = {_well_formed(key): _encodable(value) for key, value in line.items()}
        encoded = orjson.dumps(safe, option=_JSON_OPTIONS)
    return encoded.decode().translate(_LINE_BREAKS)


def _encodable(value: object) -> object:
    try:
        return orjson.Fragment(orjson.dumps(value, default=_text, option=_JSON_OPTIONS))
    except TypeError:
        return _text(value)


def _text(value: object) -> str:
    try:
        return _well_formed(str(value))
    except Exception:  # noqa: BLE001 - a value that cannot describe itself must not lose the record
        return f"<{type(value).__name__} without a text>"


def _well_formed(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _printable(text: str) -> str:
    """Without line breaks and terminal control sequences, which could fake records or hide them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
