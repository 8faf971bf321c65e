"""How a policy stands: its conditions, in the words of a HorizontalPodAutoscaler."""

from dataclasses import dataclass
from datetime import datetime

from gpuloom.kube.conditions import Condition
from gpuloom.model.policies import MetricReading
from services.autoscaler.inference.core.decision import Decision

ABLE, ACTIVE, LIMITED = "AbleToScale", "ScalingActive", "ScalingLimited"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why nothing is decided: a reason for programs and one for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one policy, as status, gRPC and metrics tell it. `decision` None: there was an obstacle."""

    namespace: str
    name: str
    target: str
    mode: str
    min_replicas: int
    max_replicas: int
    current: int | None
    decision: Decision | None
    obstacle: Obstacle | None = None
    readings: tuple[MetricReading, ...] = ()
    ready: int = 0
    starting: int = 0
    last_scale: datetime | None = None
    hold_s: float | None = None
    cold_start_s: float | None = None
    note: str = ""

    @property
    def message(self) -> str:
        if self.obstacle is not None:
            return self.obstacle.message
        told = "" if self.decision is None else self.decision.explain()
        return f"{told}; {self.note}" if self.note else told


def conditions_of(standing: Standing) -> list[Condition]:
    obstacle, decision = standing.obstacle, standing.decision
    if obstacle is not None or decision is None:
        reason, message = (obstacle.reason, obstacle.message) if obstacle else ("NotDecided", "")
        return [
            Condition(ABLE, False, reason, message),
            Condition(ACTIVE, False, reason, message),
        ]
    return [
        Condition(ABLE, True, "ReadyForNewScale", standing.note),
        Condition(ACTIVE, not decision.none_known, *_activity(decision)),
        Condition(LIMITED, *_limit(decision)),
    ]


def _activity(decision: Decision) -> tuple[str, str]:
    if decision.none_known:
        return "MetricsMissing", f"replicas stay as they are: {decision.missing or decision.reason}"
    if decision.missing:
        return "SomeMetricsMissing", f"nothing is taken away: {decision.missing}"
    return "ValidMetricsFound", decision.reason


def _limit(decision: Decision) -> tuple[bool, str, str]:
    if decision.limit:
        at_most = "maxReplicas" in decision.limit
        return True, "TooManyReplicas" if at_most else "TooFewReplicas", decision.limit
    if decision.replicas != decision.wanted and decision.held:
        return True, "Held", decision.held
    return False, "DesiredWithinRange", ""
