"""Who decides: our two modes by our own code, Kubernetes' HPA, a queue scaler as KEDA's, and foresight."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

from gpuloom.model.policies import (
    InferenceMetrics,
    InferenceMode,
    InferencePolicySpec,
    ScaleTarget,
    TargetMetric,
)
from services.autoscaler.inference.core.adaptive import Demand, Learned, work_need
from services.autoscaler.inference.core.decision import Situation, decide
from services.autoscaler.inference.core.foresight import NeedHistory, highest_ahead
from services.autoscaler.inference.core.pace import Memory
from services.autoscaler.inference.core.readings import Reading
from tests.bench.inference.simulator import MOST, PLACES, SYNC_S, Policy, Seen
from tests.bench.inference.trace import Arrivals

START = datetime(2026, 1, 1, tzinfo=UTC)
TOLERANCE = 0.1
BUSY_AT = 0.5
"""A GPU is busy all the time from half of its places on: that is what a duty cycle shows."""


def utilization(seen: Seen) -> float:
    return min(100.0, 100.0 * seen.running / max(1, seen.ready * PLACES) / BUSY_AT)


@dataclass
class Ours:
    """Both modes. `parameter`: cooldown of ratio; how much a missing replica costs for adaptive."""

    mode: InferenceMode
    parameter: float
    cold_start_s: int
    memory: Memory = field(default_factory=Memory)
    history: NeedHistory = field(default_factory=lambda: NeedHistory(float(SYNC_S)))

    def __post_init__(self) -> None:
        self.spec = InferencePolicySpec(
            target=ScaleTarget("Deployment", "llm"),
            max_replicas=MOST,
            metrics=InferenceMetrics(queue_depth=TargetMetric(target=1)),
            mode=self.mode,
            cooldown_s=int(self.parameter) if self.mode is InferenceMode.RATIO else 300,
        )
        if self.mode is InferenceMode.ADAPTIVE:
            self.history.missing_costs = self.parameter

    def wanted(self, seen: Seen) -> int:
        now = START + timedelta(seconds=seen.at_s)
        demand = Demand(
            rate=seen.rate,
            service_s=seen.service_s,
            running=float(seen.running),
            waiting=float(seen.waiting),
            places=float(PLACES),
            ready=seen.ready,
            starting=seen.starting,
            settled=seen.settled,
        )
        queue = Reading("request-queue-depth", 1.0, seen.waiting / seen.replicas)
        readings = [queue]
        learned = Learned()
        if self.mode is InferenceMode.ADAPTIVE:
            need = work_need(demand)
            self.history.add(0.0 if need is None else need[0])
            learned = self.history.learned(float(self.cold_start_s))
            readings = []
        else:
            readings.append(Reading("gpu-utilization", 80.0, utilization(seen), saturates=True))
        situation = Situation(self.spec, seen.replicas, readings, demand, learned, self.memory, now)
        decision, self.memory = decide(situation)
        if decision.changes:
            self.memory = self.memory.scaled(now, decision.replicas - decision.current)
        return decision.replicas


@dataclass
class Hpa:
    """`value`: of all ready pods together. As replica_calculator.go has it for pods metrics."""

    value: Callable[[Seen], float]
    target: float
    window_s: float = 300.0
    wanted_lately: deque[tuple[int, int]] = field(default_factory=deque)

    def wanted(self, seen: Seen) -> int:
        raw = self._raw(seen)
        self.wanted_lately.append((seen.at_s, raw))
        while seen.at_s - self.wanted_lately[0][0] > self.window_s:
            self.wanted_lately.popleft()
        if raw > seen.replicas:
            return min(raw, max(2 * seen.replicas, seen.replicas + 4))
        return min(seen.replicas, max(number for _, number in self.wanted_lately))

    def _raw(self, seen: Seen) -> int:
        total, ready = self.value(seen), max(1, seen.ready)
        ratio = total / ready / self.target
        if abs(ratio - 1.0) <= TOLERANCE:
            return seen.replicas
        if ratio > 1.0 and seen.starting:
            # Pods that are not ready count as 0 on the way up.
            ratio = total / seen.replicas / self.target
            if ratio <= 1.0 + TOLERANCE:
                return seen.replicas
            return math.ceil(ratio * seen.replicas)
        return math.ceil(ratio * ready)


@dataclass
class Foresight:
    """As many as will be needed until a replica that is asked for now would be ready."""

    needs: list[int]

    def wanted(self, seen: Seen) -> int:
        return self.needs[seen.at_s]


def hpa_utilization(target: float) -> Policy:
    return Hpa(lambda seen: utilization(seen) * max(1, seen.ready), target)


def hpa_in_flight(target: float, window_s: float = 300.0) -> Policy:
    return Hpa(lambda seen: float(seen.running + seen.waiting), target * PLACES, window_s)


def keda_queue(target: float) -> Policy:
    return Hpa(lambda seen: float(seen.waiting), target)


def foresight(arrivals: Arrivals, cold_start_s: int) -> Policy:
    """Of requests that never wait."""
    changes = np.zeros(arrivals.seconds + 4096)
    for at_s, coming in enumerate(arrivals.work_s):
        for work_s in coming:
            changes[at_s] += 1
            changes[at_s + min(work_s, 4095)] -= 1
    needs = np.ceil(np.cumsum(changes) / PLACES)
    ahead = highest_ahead(needs, cold_start_s + 2 * SYNC_S)
    kept = np.maximum(needs[: len(ahead)], ahead)
    return Foresight([int(one) for one in kept[: arrivals.seconds]])
