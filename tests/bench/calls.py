"""How long each call of an extender took, kept in its process and written to a file at its end.

Exact: a histogram's buckets are too coarse to tell percentiles of a few milliseconds apart.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import orjson

CallTimes = Mapping[str, list[float]]
"""Seconds by verb, in the order of their end."""


class CallRecorder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def record(self, verb: str, seconds: float) -> None:
        self._seconds[verb].append(seconds)

    def write(self) -> None:
        self._path.write_bytes(orjson.dumps(self._seconds))


def read_calls(path: Path) -> CallTimes:
    """Empty if the process left none."""
    try:
        return dict(orjson.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
