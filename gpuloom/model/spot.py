"""What a cloud says about the end of a machine."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class SpotNoticeKind(StrEnum):
    """INTERRUPTION: the machine will be taken away. REBALANCE: it may be; only a hint."""

    INTERRUPTION = "interruption"
    REBALANCE = "rebalance"


@dataclass(frozen=True, slots=True)
class SpotNotice:
    """`time`, in UTC, is the machine's end, or when the hint was given; None if the cloud does not say."""

    kind: SpotNoticeKind
    time: datetime | None
    cloud: str
    action: str = ""
