"""What windows that come later say of a pod that was gone when the engine came back.

Its end was assumed where it was last known to be there. An agent's spool tells the rest: as long as windows
show the pod it was there, and the first one without it shows that it had gone. Nothing here reads a clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from services.cost_engine.core.intervals import NANOSECONDS_PER_SECOND

CONTIGUOUS_NS = NANOSECONDS_PER_SECOND
"""Windows that are not further apart follow on each other."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One window of the pod's node. `held_until_ns`: until when in it the pod held something, if it did."""

    start_ns: int
    end_ns: int
    held_until_ns: int | None


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Until when the pod was there, and the stretch of which that is still not known."""

    end_ns: int
    gap: tuple[int, int] | None


def narrow(gap: tuple[int, int], read_until_ns: int, sights: Iterable[Sight]) -> Narrowed:
    """`sights` are in the order of time.

    `gap`: from the assumed end to when the pod was known to be gone. `read_until_ns`: where the windows
    before these ended.
    """
    last_ns, gone_ns = gap
    for sight in sights:
        if sight.start_ns >= gone_ns:
            break
        if sight.held_until_ns is not None:
            last_ns = min(gone_ns, max(last_ns, sight.held_until_ns))
        elif sight.end_ns > last_ns:
            without_hole = sight.start_ns <= max(read_until_ns, last_ns) + CONTIGUOUS_NS
            return Narrowed(last_ns, None if without_hole else (last_ns, sight.start_ns))
        read_until_ns = max(read_until_ns, sight.end_ns)
    return Narrowed(last_ns, (last_ns, gone_ns) if last_ns < gone_ns else None)
