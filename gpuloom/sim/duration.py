"""Durations as people write them: "40s", "1m30s", "250ms", "2h", or a plain number of seconds."""

import re

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MAX_LENGTH = 32


def parse_duration_s(text: str) -> float:
    """Raise ValueError with the right form if it is something else."""
    if len(text) <= MAX_LENGTH:
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            return float(text)
        parts = _PART.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    raise ValueError(f'{text[:MAX_LENGTH]!r} is not a duration; write e.g. "40s", "1m30s" or "2h"')
