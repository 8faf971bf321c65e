"""Mode adaptive: as many replicas as the work needs, replicas that start counted as capacity.

need = the most of: requests per second x service time, running + waiting, a guard for latency and queue, a
guard for utilization; then the highest of the hold window, and a floor for what comes while a replica starts.
A guard is relative to the replicas that are ready, never to those that were asked for: load that new replicas
will take is not answered twice. Never less than now while something is not known or while requests pile up.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuloom.model.policies import InferencePolicySpec
from services.autoscaler.inference.core.ratio import Proposal
from services.autoscaler.inference.core.readings import Reading, not_known

OCCUPANCY = 0.8
"""Of a replica's places, so many are filled on average; the rest is for requests that come together."""
GUARD_STEP = 2.0
"""A guard asks for at most so many times the replicas that are ready: latency is no measure of how much is
missing, and there is another round in seconds."""
WORTH_TAKING = 0.1
"""A smaller share of the replicas is not taken away: it would soon be asked for again."""
WORTH_TAKING_AT_ONCE = 0.25
"""A smaller share is taken away only once it was not needed for an hour: most such dips are followed by a
rise, and each of those costs a cold start."""
SATURATED = 99.0
"""Percent from which on a share tells nothing but that it is full."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Of all replicas together; None: not known. `ready` and `starting` are counts of replicas, `settled` of
    those that were ready long enough for what is measured to show it.

    `service_s`: mean seconds of work on a request, without its wait. `places`: requests that a replica works
    on at once and still keeps its targets. `activation` > 0: somebody asks though there may be no replica.
    """

    rate: float | None = None
    service_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    places: float | None = None
    ready: int = 0
    starting: int = 0
    settled: int = 0
    activation: float | None = None

    @property
    def in_flight(self) -> float | None:
        if self.running is None or self.waiting is None:
            return None
        return self.running + self.waiting

    @property
    def is_known(self) -> bool:
        return bool(self.by_work()) or self.activation is not None

    def by_work(self) -> list[tuple[float, str]]:
        """Replicas that the work fills, with the reason of each; empty if none can be told."""
        if self.places is None:
            return []
        per_replica = self.places * OCCUPANCY
        found = []
        if self.rate is not None and self.service_s is not None:
            text = f"{self.rate:.4g} requests/s x {self.service_s:.3g} s"
            found.append((self.rate * self.service_s / per_replica, text))
        if self.in_flight is not None:
            text = f"{self.running:.4g} running + {self.waiting:.4g} waiting"
            found.append((self.in_flight / per_replica, text))
        # Answers that are numbers each may have a product that is none.
        return [one for one in found if math.isfinite(one[0])]

    @property
    def saturated(self) -> bool:
        return bool(self.waiting) or (self.ready == 0 and bool(self.starting))


@dataclass(frozen=True, slots=True)
class Learned:
    """Replicas that were needed in the hold window, and that what comes during a cold start may need.

    `lately`: those that were needed within an hour.
    """

    held: float = 0.0
    floor: float = 0.0
    hold_s: float = 0.0
    cold_start_s: float = 0.0
    lately: float = 0.0


def work_need(demand: Demand) -> tuple[float, str] | None:
    """What the work itself needs, as a fraction of replicas; what is learned is learned of this."""
    return max(demand.by_work(), default=None)


def propose_adaptive(
    spec: InferencePolicySpec,
    current: int,
    readings: Sequence[Reading],
    demand: Demand,
    learned: Learned,
) -> Proposal:
    if current == 0:
        return _from_zero(demand)
    work = work_need(demand)
    options = list(_options(work, readings, demand, learned))
    missing = not_known(readings)
    if not options:
        return Proposal(current, missing or "nothing tells what is needed", "no metric is known")
    need, reason = max(options, key=lambda one: one[0])
    wanted = max(math.ceil(need - 1e-9), 1)
    if wanted <= 1 and _is_idle(spec, need, demand):
        wanted = 0
    if wanted >= current:
        return Proposal(wanted, reason)
    if wanted >= spec.min_replicas and _is_little(current, wanted, learned):
        return Proposal(current, reason, f"{wanted} would do, which is too little less to take any away")
    kept = _why_kept(missing, readings, demand)
    return Proposal(current, reason, kept) if kept else Proposal(wanted, reason)


def _options(
    work: tuple[float, str] | None, readings: Sequence[Reading], demand: Demand, learned: Learned
) -> Iterator[tuple[float, str]]:
    if work is not None:
        need, text = work
        yield need, f"{text}, {demand.places:.4g} at once in a replica, need {need:.2f} replicas"
        if learned.floor > need:
            yield learned.floor, f"{learned.floor:.2f} may be needed in {learned.cold_start_s:.0f} s"
        if learned.held > need:
            yield learned.held, f"{learned.held:.2f} were needed within {learned.hold_s:.0f} s"
    settled = max(demand.settled, 1)
    for one in readings:
        if one.ratio is None:
            continue
        if work is None or one.ratio > 1.0:
            # Where nothing else tells what is needed, guards do, in both directions.
            yield settled * _step(one, one.ratio), f"{one}, on {settled} replicas"


def _step(reading: Reading, ratio: float) -> float:
    """What is at its maximum only says "at least": 100 % may be twice what is wanted, or ten times."""
    if reading.saturates and reading.value is not None and reading.value >= SATURATED:
        return GUARD_STEP
    return min(ratio, GUARD_STEP)


def _is_little(current: int, wanted: int, learned: Learned) -> bool:
    less = current - wanted
    soon = less < WORTH_TAKING_AT_ONCE * current and learned.lately > wanted
    return less < WORTH_TAKING * current or soon


def _why_kept(missing: str, readings: Sequence[Reading], demand: Demand) -> str:
    if missing:
        return f"nothing is taken away while {missing}"
    if demand.saturated:
        return "nothing is taken away while requests wait"
    above = next((one for one in readings if one.ratio is not None and one.ratio > 1.0), None)
    return "" if above is None else f"nothing is taken away while {above}"


def _is_idle(spec: InferencePolicySpec, need: float, demand: Demand) -> bool:
    """Whether the target may go to nothing: it does nothing, and something would wake it."""
    if spec.min_replicas > 0 or spec.adaptive.activation_query is None:
        return False
    idle = demand.in_flight == 0.0 or (demand.in_flight is None and demand.rate == 0.0)
    return idle and need <= 0.0 and demand.activation == 0.0


def _from_zero(demand: Demand) -> Proposal:
    """There are no metrics of replicas that are not there; only the activation signal counts."""
    if demand.activation is None:
        return Proposal(0, "there is no replica, and the activation signal is not known", "no signal")
    if demand.activation <= 0.0:
        return Proposal(0, "there is no replica, and nobody asks for one")
    reason = f"the activation signal is {demand.activation:.4g}"
    return Proposal(1, reason)
