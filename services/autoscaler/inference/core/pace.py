"""How fast the number may follow what is wanted: windows, limits, cooldown. As the behavior of an HPA."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuloom.model.policies import ScalingBehavior, ScalingLimit, ScalingUnit

LONGEST_WINDOW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Memory:
    """What was wanted, within minimum and maximum, and what was changed, with its sign; oldest first."""

    wanted: tuple[tuple[datetime, int], ...] = ()
    changes: tuple[tuple[datetime, int], ...] = ()
    last_scale: datetime | None = None

    def wanting(self, now: datetime, replicas: int) -> "Memory":
        """Times to come are those of another clock, or of this one before it was set back: they begin now."""
        kept = tuple((min(at, now), number) for at, number in self.wanted if now - at < LONGEST_WINDOW)
        return Memory(
            wanted=(*kept, (now, replicas)),
            changes=tuple((min(at, now), change) for at, change in self.changes),
            last_scale=None if self.last_scale is None else min(self.last_scale, now),
        )

    def scaled(self, now: datetime, change: int) -> "Memory":
        kept = tuple((at, number) for at, number in self.changes if now - at < LONGEST_WINDOW)
        return replace(self, changes=(*kept, (now, change)), last_scale=now)

    @classmethod
    def begun(cls, now: datetime, current: int, last_scale: datetime | None) -> "Memory":
        """Of somebody who sees the target for the first time: what is there was wanted for some reason."""
        return cls(wanted=((now, current),), last_scale=last_scale)


@dataclass(frozen=True, slots=True)
class Behavior:
    up: ScalingBehavior
    down: ScalingBehavior


def stabilized(current: int, memory: Memory, behavior: Behavior, now: datetime) -> int:
    """Up to the least that was wanted in the window for up, down to the most in the window for down.

    The newest entry of `memory.wanted` is what is wanted now.
    """

    def within(window_s: int) -> list[int]:
        since = now - timedelta(seconds=window_s)
        return [memory.wanted[-1][1], *(number for at, number in memory.wanted if at > since)]

    least, most = min(within(behavior.up.stabilization_s)), max(within(behavior.down.stabilization_s))
    return min(max(current, least), most)


def limited(current: int, wanted: int, memory: Memory, behavior: Behavior, now: datetime) -> int:
    """As near to what is wanted as the limits allow now; of several the one that allows most counts."""
    if wanted > current and behavior.up.limits:
        highest = max(_highest(current, one, memory.changes, now) for one in behavior.up.limits)
        return min(wanted, max(current, highest))
    if wanted < current and behavior.down.limits:
        lowest = min(_lowest(current, one, memory.changes, now) for one in behavior.down.limits)
        return max(wanted, min(current, lowest))
    return wanted


def cooldown_left_s(memory: Memory, cooldown_s: float, now: datetime) -> float:
    if memory.last_scale is None:
        return 0.0
    return max(0.0, cooldown_s - (now - memory.last_scale).total_seconds())


def _highest(
    current: int, limit: ScalingLimit, changes: Sequence[tuple[datetime, int]], now: datetime
) -> int:
    start = _at_period_start(current, limit, changes, now)
    if limit.unit is ScalingUnit.PODS:
        return start + limit.value
    return math.ceil(start * (100 + limit.value) / 100)


def _lowest(current: int, limit: ScalingLimit, changes: Sequence[tuple[datetime, int]], now: datetime) -> int:
    start = _at_period_start(current, limit, changes, now)
    if limit.unit is ScalingUnit.PODS:
        return max(0, start - limit.value)
    return max(0, start * (100 - limit.value) // 100)


def _at_period_start(
    current: int, limit: ScalingLimit, changes: Sequence[tuple[datetime, int]], now: datetime
) -> int:
    since = now - timedelta(seconds=limit.period_s)
    return current - sum(change for at, change in changes if at > since)
