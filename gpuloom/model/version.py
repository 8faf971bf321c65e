"""Where a versioned stream stands."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class StreamVersion:
    """An epoch is one run of the sender; numbers compare only within one epoch."""

    epoch: str
    number: int
