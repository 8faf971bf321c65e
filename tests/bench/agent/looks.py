"""Which looks an agent made, by the NVML calls that the stand-in counted. Pure.

Calls come in bursts with silence between them; a burst is one sample. Nothing of this asks the agent, which
would cost what is being measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

QUIET_S = 0.35
"""So long without a call ends a sample; it is far less than the shortest interval between two."""

# A thread waits for events all the time, whether somebody looks or not.
_WAITING = "nvmlEventSetWait_v2"
_LISTING_PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"
_COMPARING = "nvmlDeviceGetTopologyCommonAncestor"


class Tier(StrEnum):
    """What a sample reads beside what every sample reads, by how often that is read."""

    FAST = "every sample"
    SLOW = "every 10 s"
    LINKS = "every 60 s"
    ALL = "every 10 s and 60 s"


@dataclass(frozen=True, slots=True)
class Sample:
    """One glance at an agent from outside: its processor time, and the calls of each function so far."""

    at_s: float
    cpu_s: float
    calls: Mapping[str, int]

    def total(self) -> int:
        return sum(count for function, count in self.calls.items() if function != _WAITING)


@dataclass(frozen=True, slots=True)
class LookCost:
    """One sample, from the last glance before its first call until the agent is silent again."""

    tier: Tier
    calls: int
    cpu_s: float
    ended: Sample


def looks_of(samples: Sequence[Sample]) -> tuple[LookCost, ...]:
    """Every sample that was seen whole, in order."""
    found: list[LookCost] = []
    # Until the first silence nobody knows whether a sample is under way.
    quiet: Sample | None = None
    changed_at = samples[0] if samples else None
    before = changed_at
    for sample in samples[1:]:
        if before is not None and sample.total() != before.total():
            changed_at = sample
        elif changed_at is not None and sample.at_s - changed_at.at_s >= QUIET_S:
            if quiet is not None and sample.total() != quiet.total():
                found.append(_look(quiet, sample))
            quiet = sample
        before = sample
    return tuple(found)


def calls_between(first: Sample, last: Sample) -> int:
    """Without those of the thread that waits for events."""
    return last.total() - first.total()


def cpu_share(samples: Sequence[Sample], looks: Sequence[LookCost]) -> float:
    """Of one core. From the end of a sample to the end of one, so that no look counts in part."""
    first, last = (looks[0].ended, looks[-1].ended) if len(looks) > 1 else (samples[0], samples[-1])
    return (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s)


def _look(first: Sample, last: Sample) -> LookCost:
    return LookCost(_tier(first, last), calls_between(first, last), last.cpu_s - first.cpu_s, last)


def _tier(first: Sample, last: Sample) -> Tier:
    made = {name for name, count in last.calls.items() if count > first.calls.get(name, 0)}
    if _COMPARING in made:
        return Tier.ALL if _LISTING_PROCESSES in made else Tier.LINKS
    return Tier.SLOW if _LISTING_PROCESSES in made else Tier.FAST
