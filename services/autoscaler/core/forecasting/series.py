"""One number at one time, as history keeps it. Decides nothing."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Sample:
    """`name` says what was measured, as utilization or gpu-demand."""

    name: str
    time: datetime
    value: float
