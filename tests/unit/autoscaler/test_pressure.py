"""Why nodes are wanted though nothing waits: triggers, and what is known of the last days."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from zoneinfo import ZoneInfo

from prometheus_client import CollectorRegistry

from gpuloom.clients.prometheus import Range, Series
from gpuloom.errors import UnavailableError
from gpuloom.model.policies import NodeMetric
from gpuloom.runtime.clock import FakeClock
from services.autoscaler.core.forecasting.series import Sample
from services.autoscaler.core.scaling.policies import Effective
from services.autoscaler.core.scaling.scale_up import decide_scale_up
from services.autoscaler.metrics import AutoscalerMetrics
from services.autoscaler.nodes.cluster import Snapshot
from services.autoscaler.nodes.pressure import DEMAND, UTILIZATION, PressureSource
from tests.unit.autoscaler.builders import NOW
from tests.unit.autoscaler.test_scale_down import a_policy, a_situation

BERLIN = ZoneInfo("Europe/Berlin")
MONDAY = datetime(2026, 11, 16, 8, 30, tzinfo=BERLIN)
QUEUE = NodeMetric("queue", "sum(queue_length)", 10.0)


class MemoryHistory:
    def __init__(self, samples: Sequence[Sample] = ()) -> None:
        self.samples = list(samples)
        self.broken = False

    async def append(self, samples: Sequence[Sample]) -> None:
        if self.broken:
            raise UnavailableError("no database")
        self.samples.extend(samples)

    async def read(self, name: str, since: datetime) -> list[Sample]:
        return [one for one in self.samples if one.name == name and one.time >= since]

    async def forget(self, before: datetime) -> int:
        kept = [one for one in self.samples if one.time >= before]
        gone, self.samples = len(self.samples) - len(kept), kept
        return gone


class Answers:
    """Prometheus: a value, nothing, or an error."""

    def __init__(self, value: float | Exception | None = None) -> None:
        self.answer = value
        self.ranges: dict[str, Range] = {}

    async def value(self, query: str, *, max_age_s: float) -> float | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def range(self, query: str, over: Range, *, max_age_s: float) -> tuple[Series, ...]:
        self.ranges[query] = over
        return (Series({}, ((over.start, 0.5), (over.end, 0.75))),)


class Wanted:
    def __init__(
        self,
        policy: Effective,
        history: MemoryHistory | None = None,
        prometheus: Answers | None = None,
        now: datetime = NOW,
    ) -> None:
        self.policy = policy
        self.snapshot = Snapshot()
        self.registry = CollectorRegistry()
        self.clock = FakeClock(now)
        policies = SimpleNamespace(effective=lambda: [policy])
        scaler = cast(Any, SimpleNamespace(policies=policies, snapshot=self.snapshot))
        metrics = AutoscalerMetrics(self.registry)
        self.source = PressureSource(scaler, history, cast(Any, prometheus), BERLIN, metrics, self.clock)

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"gpu_autoscaler_{name}")


def office_days(until: datetime, days: float, gpus: float) -> list[Sample]:
    """Nothing runs, and no node is there, but from nine to five on weekdays."""
    samples = []
    moment = until - timedelta(days=days)
    while moment <= until:
        busy = moment.weekday() < 5 and 9 <= moment.hour < 17
        at = moment.astimezone(UTC)
        samples.append(Sample(UTILIZATION, at, 0.85 if busy else 0.0))
        samples.append(Sample(DEMAND, at, gpus if busy else 0.0))
        moment += timedelta(minutes=5)
    return samples


async def test_busy_at_nine_on_weekdays_buys_warm_nodes_at_half_past_eight_after_seven_days() -> None:
    """From an empty cluster, where no GPU could tell its utilization: that nothing is there is known."""
    policy = a_policy(predictive=True)
    wanted = Wanted(policy, MemoryHistory(office_days(MONDAY, 7, 4)), now=MONDAY.astimezone(UTC))

    await wanted.source.step()
    pressure = wanted.source.of(policy, wanted.snapshot)
    up = decide_scale_up(a_situation(policy=policy, pressure=pressure))

    assert 4 <= pressure.floor_gpus <= 6
    assert len(up.nodes) == pressure.floor_gpus
    assert "is expected in 30 min" in up.reason
    assert (wanted.metric("predicted_utilization") or 0) > 0.7
    assert (wanted.metric("prediction_confidence") or 0) > 0.7
    told = wanted.source.prediction(policy)
    assert told is not None
    assert told.horizon_minutes == 30


async def test_at_night_and_when_it_is_not_asked_for_nothing_is_warmed() -> None:
    night = MONDAY.replace(hour=3)
    predicts = Wanted(
        a_policy(predictive=True), MemoryHistory(office_days(night, 7, 4)), now=night.astimezone(UTC)
    )
    plain = Wanted(a_policy(), MemoryHistory(office_days(MONDAY, 7, 4)), now=MONDAY.astimezone(UTC))

    for one in (predicts, plain):
        await one.source.step()
        assert one.source.of(one.policy, one.snapshot).floor_gpus == 0


async def test_f24_a_forecast_that_can_not_be_made_is_told_and_an_old_one_is_forgotten() -> None:
    policy = a_policy(predictive=True)
    history = MemoryHistory(office_days(MONDAY, 7, 4))
    wanted = Wanted(policy, history, now=MONDAY.astimezone(UTC))
    await wanted.source.step()
    history.broken = True

    await wanted.source.step()

    assert wanted.source.of(policy, wanted.snapshot).floor_gpus == 0
    assert wanted.source.prediction(policy) is None
    assert wanted.metric("prediction_confidence") == 0
    assert "no forecast yet" in wanted.source.notes(policy)[0]
    assert "GPULOOM_DATABASE_URL" in Wanted(policy).source.notes(policy)[0]


async def test_a_query_above_its_threshold_is_a_reason_and_one_without_an_answer_is_none() -> None:
    policy = a_policy(custom_metrics=(QUEUE,))
    answers = Answers(12.0)
    wanted = Wanted(policy, prometheus=answers)

    async def triggers() -> dict[str, str]:
        await wanted.source.step()
        return dict(wanted.source.of(policy, wanted.snapshot).triggers)

    assert await triggers() == {"queue": "queue is 12, above 10"}
    assert wanted.source.notes(policy) == ()
    for nothing in (10.0, None, float("nan"), UnavailableError("no Prometheus")):
        answers.answer = nothing
        assert await triggers() == {}
    assert "queue" in wanted.source.notes(policy)[0]
    assert "GPULOOM_PROMETHEUS_URL" in Wanted(policy).source.notes(policy)[0]


async def test_a_trigger_is_asked_though_the_database_is_away() -> None:
    policy = a_policy(custom_metrics=(QUEUE,))
    history = MemoryHistory()
    history.broken = True
    wanted = Wanted(policy, history, Answers(12.0))

    await wanted.source.step()

    assert wanted.source.of(policy, wanted.snapshot).triggers


async def test_what_is_measured_is_kept_as_long_as_a_policy_looks_back() -> None:
    spec = a_policy(predictive=True).policy.spec
    asked = replace(spec.prediction, lookback_days=30)
    history = MemoryHistory([Sample(DEMAND, NOW - timedelta(days=days), 1.0) for days in (20, 32)])
    wanted = Wanted(a_policy(predictive=True, prediction=asked), history)
    wanted.snapshot.gpus_wanted, wanted.snapshot.gpu_nodes = 3.0, 2

    await wanted.source.step()

    ages = sorted((NOW - one.time).days for one in history.samples)
    assert ages == [0, 20], "use is not known while nodes do not tell it, so only demand is kept of now"


async def test_a_new_history_begins_with_what_prometheus_remembers() -> None:
    history, answers = MemoryHistory(), Answers()
    wanted = Wanted(a_policy(predictive=True), history, answers)

    await wanted.source._seed()
    await wanted.source._seed()

    assert {one.name for one in history.samples} == {UTILIZATION, DEMAND}
    assert len(history.samples) == 4, "a history that is there is not seeded again"
    assert all(NOW - over.start >= timedelta(days=14) for over in answers.ranges.values())
