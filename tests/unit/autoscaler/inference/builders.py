"""Policies, readings and situations of tests, with what most tests don't care about filled in."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpuloom.model.policies import (
    InferenceMetrics,
    InferenceMode,
    InferencePolicySpec,
    ScaleTarget,
    ScalingBehavior,
    TargetMetric,
)
from services.autoscaler.inference.core.adaptive import Demand, Learned
from services.autoscaler.inference.core.decision import Decision, Situation, decide
from services.autoscaler.inference.core.pace import Memory
from services.autoscaler.inference.core.readings import Reading

START = datetime(2026, 1, 1, tzinfo=UTC)


def a_spec(mode: InferenceMode = InferenceMode.RATIO, **changes: object) -> InferencePolicySpec:
    spec = InferencePolicySpec(
        target=ScaleTarget("Deployment", "llm-server"),
        max_replicas=10,
        metrics=InferenceMetrics(queue_depth=TargetMetric(target=10)),
        mode=mode,
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def a_reading(value: float | None, target: float = 100.0, name: str = "latency-p99") -> Reading:
    return Reading(name, target, value, "" if value is not None else "Prometheus has no fresh value")


def a_situation(spec: InferencePolicySpec, current: int, *readings: Reading, **changes: object) -> Situation:
    situation = Situation(
        spec=spec,
        current=current,
        readings=readings,
        demand=Demand(ready=current, settled=current),
        learned=Learned(),
        memory=Memory(),
        now=START,
    )
    return replace(situation, **changes)  # type: ignore[arg-type]


def decided(spec: InferencePolicySpec, current: int, *readings: Reading, **changes: object) -> Decision:
    return decide(a_situation(spec, current, *readings, **changes))[0]


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def a_window(seconds: int) -> ScalingBehavior:
    return ScalingBehavior(stabilization_s=seconds)
