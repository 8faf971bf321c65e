"""A file of counters in dcgm-exporter's own format: which metrics and labels are shown. Pure.

Lines are "FIELD, gauge|counter|label, help"; empty ones and those that begin with # are skipped. A field that
we can't give is only told of, because the same file may be dcgm-exporter's, which gives more. A line that
is no such line is refused.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuloom.errors import InvalidRequestError
from services.node_agent.exporter.core.families import FAMILIES, LABELS, Family, Kind

_LABEL = "label"
_TYPES = (*Kind, _LABEL)
_COLUMNS = 3
_SHOWN = {family.name: family for family in FAMILIES}


@dataclass(frozen=True, slots=True)
class Choice:
    """What a file chooses, in its order. `unknown` are the fields that are not ours to give."""

    families: tuple[Family, ...]
    labels: tuple[str, ...]
    unknown: tuple[str, ...]


def read_choice(text: str) -> Choice:
    """Raise InvalidRequestError that names the line which can't be understood."""
    families: list[Family] = []
    labels: list[str] = []
    unknown: list[str] = []
    lines: dict[str, int] = {}
    for number, (name, kind, meaning) in _records(text):
        if name in lines:
            raise InvalidRequestError(f"line {number}: {name} is on line {lines[name]} already")
        lines[name] = number
        if kind == _LABEL and name in LABELS:
            labels.append(name)
        elif kind != _LABEL and name in _SHOWN:
            families.append(replace(_SHOWN[name], kind=Kind(kind), help=meaning))
        else:
            unknown.append(name)
    return Choice(tuple(families), tuple(labels), tuple(unknown))


def _records(text: str) -> Iterator[tuple[int, tuple[str, str, str]]]:
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, _record(number, line)


def _record(number: int, line: str) -> tuple[str, str, str]:
    try:
        columns = [column.strip() for column in next(csv.reader([line], skipinitialspace=True, strict=True))]
    except csv.Error as error:
        raise InvalidRequestError(f"line {number}: {error}") from error
    if len(columns) != _COLUMNS or not columns[0]:
        form = "FIELD, type, help (a help text with commas in quotes)"
        raise InvalidRequestError(f"line {number}: must be {form}, not {line.strip()!r:.80}")
    name, kind, meaning = columns
    if kind not in _TYPES:
        raise InvalidRequestError(
            f"line {number}: the type must be one of {', '.join(_TYPES)}, not {kind!r:.40}"
        )
    return name, kind, meaning
