"""What a notice of interruption asks for, and when it turns out to be nothing. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuloom.model.policies import CapacityType
from services.autoscaler.core.buying.offerings import Offering, OfferingKey

DEFAULT_NOTICE_S = 120.0
FALSE_ALARM_AFTER = timedelta(minutes=5)
"""A machine that is still there so long after its announced end stays: its node is opened again."""


@dataclass(frozen=True, slots=True)
class Notice:
    """`ends`: when the machine ends, by the cloud's word or two minutes from when it was seen."""

    node: str
    ends: datetime

    def is_false_alarm(self, now: datetime) -> bool:
        # Not their sum: an annotation may name the end of time.
        return now - self.ends >= FALSE_ALARM_AFTER


def notice_of(node: str, ends: datetime | None, seen: datetime) -> Notice:
    """A warning without a time, or with one that nobody can read, gives the shortest notice of EC2."""
    return Notice(node, ends or seen + timedelta(seconds=DEFAULT_NOTICE_S))


def alternatives(offerings: Sequence[Offering], lost: OfferingKey) -> list[Offering]:
    """Where a replacement comes from: anything but more of what is just being taken back.

    If nothing else is offered, the same again is better than nothing.
    """
    others = [
        one
        for one in offerings
        if one.key.capacity_type is not CapacityType.SPOT
        or (one.key.instance_type, one.key.zone) != (lost.instance_type, lost.zone)
    ]
    return others or [replace(one) for one in offerings]
