"""What a check of a cluster says: a finding with its remedy. Pure values."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """In the order of how bad it is."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is what was looked at; `remedy` says what to do, and is empty where there is nothing to do."""

    check: str
    verdict: Verdict
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, Verdict.OK, text)


def skipped(check: str, why: str, remedy: str = "") -> Finding:
    """It could not be found out. That is no sign of health, and none of a fault."""
    return Finding(check, Verdict.SKIPPED, why, remedy)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Verdict.WARNING, text, remedy)


def failed(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Verdict.FAILED, text, remedy)


def first_names(names: Iterable[str], most: int = 5) -> str:
    """The names in order, and how many are left out."""
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more
