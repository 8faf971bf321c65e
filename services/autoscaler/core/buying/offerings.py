"""What can be rented, for how much, and what is believed of its availability. Pure.

Belief comes from the claims alone, those that ended too: failed launches back an offering off, longer each
time, a launch that worked forgives them, and interruptions are counted over a day. So a restart forgets
nothing, and two replicas believe the same.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpuloom.catalog.entries import InstanceType
from gpuloom.model.claims import GpuNodeClaim
from gpuloom.model.objects import Condition, ConditionStatus
from gpuloom.model.policies import CapacityType, CloudProvider
from services.autoscaler.core.lifecycle import claims as life

FIRST_BACKOFF_S = 60.0
BACKOFF_CAP_S = 1800.0
GPU_FAILURES_FORGIVEN = 1
"""A node that never shows its GPUs is replaced once; the second says that its offering is bad."""
INTERRUPTION_WINDOW = timedelta(hours=24)
_HALF_LIFE_S = 6 * 3600.0
FORGIVEN_AFTER = timedelta(hours=3)
"""A failure so long after the one before begins a new row."""


@dataclass(frozen=True, slots=True, order=True)
class OfferingKey:
    """`zone` empty: the cloud chooses."""

    instance_type: str
    zone: str
    capacity_type: CapacityType

    def __str__(self) -> str:
        return "/".join(filter(None, (self.instance_type, self.zone, self.capacity_type)))


@dataclass(frozen=True, slots=True)
class Offering:
    """One machine of this kind in this pool. `estimated`: nobody told the price, so it is a guess.

    `nano_usd_per_hour` is what is paid; `risk` raises it for comparisons where machines are hard to get or
    are taken back often.
    """

    pool: str
    key: OfferingKey
    instance: InstanceType
    nano_usd_per_hour: int
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    provider: CloudProvider = CloudProvider.SIMULATED
    estimated: bool = False
    risk: float = 0.0

    @property
    def compared_nano_usd(self) -> float:
        return self.nano_usd_per_hour * (1.0 + self.risk)


@dataclass(frozen=True, slots=True)
class Belief:
    """What the claims of the last day tell of one offering.

    `availability` is the share of launches that worked, weighted by how long ago they were; 1.0 without any.
    """

    backed_off_until: datetime | None = None
    backoff_reason: str = ""
    availability: float = 1.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Book:
    """Beliefs of all offerings, and how often spot nodes are taken back."""

    beliefs: Mapping[OfferingKey, Belief] = field(default_factory=dict)
    interruptions: int = 0
    spot_nodes: int = 0

    def of(self, key: OfferingKey) -> Belief:
        return self.beliefs.get(key, Belief())

    def refusal(self, key: OfferingKey, now: datetime) -> str:
        """Why it is not asked for now; empty if it may be."""
        belief = self.of(key)
        if belief.backed_off_until is None or belief.backed_off_until <= now:
            return ""
        left_s = (belief.backed_off_until - now).total_seconds()
        return f"backed off for {left_s:.0f} s: {belief.backoff_reason}"

    @property
    def interruption_rate(self) -> float:
        """Interruptions for each spot node of the last 24 h; 0 without any such node."""
        return self.interruptions / self.spot_nodes if self.spot_nodes else 0.0


def book_of(claims: Iterable[GpuNodeClaim], now: datetime) -> Book:
    by_key: defaultdict[OfferingKey, list[GpuNodeClaim]] = defaultdict(list)
    spot = interruptions = 0
    for claim in claims:
        by_key[key_of(claim)].append(claim)
        if claim.spec.offering.capacity_type is CapacityType.SPOT and _lived_lately(claim, now):
            spot += 1
            interruptions += is_interrupted(claim, now)
    beliefs = {key: _belief(found, now) for key, found in sorted(by_key.items())}
    return Book(beliefs, interruptions, spot)


def key_of(claim: GpuNodeClaim) -> OfferingKey:
    offering = claim.spec.offering
    return OfferingKey(offering.instance_type, offering.zone or "", offering.capacity_type)


def is_interrupted(claim: GpuNodeClaim, now: datetime) -> bool:
    told = life.condition_of(claim, life.CONDITION_INTERRUPTED)
    return (
        told is not None
        and told.status is ConditionStatus.TRUE
        and now - told.last_transition <= INTERRUPTION_WINDOW
    )


def backoff_s(failures: int) -> float:
    """Doubles with each failure in a row."""
    return min(BACKOFF_CAP_S, FIRST_BACKOFF_S * 2.0 ** (max(1, failures) - 1)) if failures else 0.0


def _belief(claims: list[GpuNodeClaim], now: datetime) -> Belief:
    """Successes and failures in the order of their times; a success forgives what failed before it."""
    events = sorted((event for claim in claims for event in _events(claim)), key=lambda event: event.time)
    failures, gpu_failures, last = 0, 0, None
    good = all_of_them = 0.0
    for event in events:
        weight = 0.5 ** ((now - event.time).total_seconds() / _HALF_LIFE_S)
        all_of_them += weight
        if event.worked:
            good += weight
            failures = 0
            gpu_failures = 0 if event.about_gpus else gpu_failures
            continue
        if event.about_gpus:
            gpu_failures += 1
            if gpu_failures <= GPU_FAILURES_FORGIVEN:
                continue
        decayed = last is not None and event.time - last.time > FORGIVEN_AFTER
        failures, last = (1 if decayed else failures + 1), event
    availability = (good + 1.0) / (all_of_them + 1.0)
    if last is None or not failures:
        return Belief(availability=availability)
    until = last.time + timedelta(seconds=backoff_s(failures))
    return Belief(until, last.text, availability, failures)


@dataclass(frozen=True, slots=True)
class _Event:
    time: datetime
    worked: bool
    about_gpus: bool = False
    text: str = ""


def _events(claim: GpuNodeClaim) -> Iterable[_Event]:
    status, told = claim.status, life.condition_of(claim, life.CONDITION_LAUNCHED)
    # A group lists a machine that it then fails to make: that was no launch.
    if status.launched is not None and not (told is not None and told.status is ConditionStatus.FALSE):
        yield _Event(status.launched, worked=True)
    if status.gpu_ready is not None:
        yield _Event(status.gpu_ready, worked=True, about_gpus=True)
    for condition in status.conditions:
        if condition.status is ConditionStatus.FALSE and _is_failure(condition):
            about_gpus = condition.type == life.CONDITION_GPU_READY
            yield _Event(condition.last_transition, False, about_gpus, condition.message)


def _is_failure(condition: Condition) -> bool:
    return condition.type in {life.CONDITION_LAUNCHED, life.CONDITION_GPU_READY}


def _lived_lately(claim: GpuNodeClaim, now: datetime) -> bool:
    started = claim.status.launched is not None
    return started and (claim.status.gone is None or now - claim.status.gone <= INTERRUPTION_WINDOW)
