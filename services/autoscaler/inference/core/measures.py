"""From what Prometheus answers to readings and demand: which metric says what, and what silence means.

Silence is never zero. One exception, because it is no silence: where counters and gauges are fresh and say
that nothing came, runs or waits, there is no latency to keep.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuloom.model.policies import InferenceMetrics, InferencePolicySpec, TargetMetric
from services.autoscaler.inference.core import queries
from services.autoscaler.inference.core.adaptive import Demand
from services.autoscaler.inference.core.queries import Pods
from services.autoscaler.inference.core.readings import LEAST_COVERAGE, Combination, Reading, combined

LATENCY_P99, LATENCY_P95 = "latency-p99", "latency-p95"
GPU_UTILIZATION, GPU_MEMORY, QUEUE_DEPTH = "gpu-utilization", "gpu-memory", "request-queue-depth"


@dataclass(frozen=True, slots=True)
class Question:
    """`by_pod`: the answer has a value for each pod; else it must be one value.

    `gauges` of `pods`: what the query sums by pod, for whoever reads gauges and no PromQL. Empty: it is more.
    """

    query: str
    by_pod: bool = False
    gauges: tuple[str, ...] = ()
    pods: Pods | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """`value` of a question with one value, `pods` of one by pod; `problem` why there is neither."""

    value: float | None = None
    pods: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""


Answers = Mapping[str, Answer]


@dataclass(frozen=True, slots=True)
class Replicas:
    """Of the target. `current` is spec.replicas, `ready` and `names` are pods, the others are counts."""

    current: int
    ready: tuple[str, ...] = ()
    starting: int = 0
    settled: int = 0
    names: tuple[str, ...] = ()


def questions(spec: InferencePolicySpec, pods: Pods) -> dict[str, Question]:
    """Everything to ask in one round, by name. An empty built-in query is not asked."""
    metrics, server, own = spec.metrics, spec.metrics.server, spec.adaptive
    asked = dict(_enabled(metrics, pods))
    if own.activation_query is not None:
        asked["activation"] = Question(own.activation_query)
    if pods.names:
        asked["waiting"] = _waiting(metrics, pods)
        running = queries.running_by_pod(server, pods)
        asked["running"] = Question(running, True, queries.running_names(server), pods)
        asked["rate"] = Question(own.arrival_rate_query or queries.arrival_rate(server, pods))
        asked["latency pods"] = Question(queries.latency_pods(server, pods))
        asked["service"] = Question(own.service_time_query or queries.service_time_s(server, pods))
    if own.in_flight_query is not None:
        asked["in flight"] = Question(own.in_flight_query)
    return {name: one for name, one in asked.items() if one.query}


def _enabled(metrics: InferenceMetrics, pods: Pods) -> Iterator[tuple[str, Question]]:
    latency = metrics.latency
    if latency is not None and latency.enabled:
        for name, target, quantile in (
            (LATENCY_P99, latency.p99_ms, 0.99),
            (LATENCY_P95, latency.p95_ms, 0.95),
        ):
            if target is not None:
                yield (
                    name,
                    Question(latency.query or queries.latency_ms(metrics.server, quantile, pods)),
                )
    for name, one, built_in in (
        (GPU_UTILIZATION, metrics.gpu_utilization, Question(queries.gpu_utilization_by_pod(pods), True)),
        (GPU_MEMORY, metrics.gpu_memory, Question(queries.gpu_memory_by_pod(pods), True)),
        (QUEUE_DEPTH, metrics.queue_depth, _waiting(metrics, pods)),
    ):
        if one is not None and one.enabled and one.target is not None:
            yield name, built_in if one.query is None else Question(one.query)
    for custom in metrics.custom:
        yield f"custom {custom.name}", Question(custom.query)


def _waiting(metrics: InferenceMetrics, pods: Pods) -> Question:
    query = queries.waiting_by_pod(metrics.server, pods)
    return Question(query, True, queries.waiting_names(metrics.server), pods)


def readings(spec: InferencePolicySpec, replicas: Replicas, answers: Answers) -> list[Reading]:
    """One for each enabled metric, in a fixed order. Without a replica there is nothing to read."""
    if replicas.current == 0:
        return []
    metrics = spec.metrics
    found: list[Reading] = []
    if metrics.latency is not None and metrics.latency.enabled:
        for name, target in ((LATENCY_P99, metrics.latency.p99_ms), (LATENCY_P95, metrics.latency.p95_ms)):
            if target is not None:
                value, why = _latency(name, metrics.latency.query is None, replicas, answers)
                found.append(Reading(name, float(target), value, why))
    for name, one in ((GPU_UTILIZATION, metrics.gpu_utilization), (GPU_MEMORY, metrics.gpu_memory)):
        if one is not None and one.enabled and one.target is not None:
            value, why = _gauge(name, one.query is None, replicas, answers, Combination.MEAN)
            found.append(Reading(name, float(one.target), value, why, saturates=True))
    if metrics.queue_depth is not None and metrics.queue_depth.enabled:
        found.extend(_queue(metrics.queue_depth, replicas, answers))
    built_in = {one.name for one in found}
    for custom in metrics.custom:
        asked = f"custom {custom.name}"
        value, why = _single(asked, answers)
        # A status may have each name once.
        name = asked if custom.name in built_in else custom.name
        found.append(Reading(name, custom.target, value, why))
    return found


def demand(
    spec: InferencePolicySpec, replicas: Replicas, answers: Answers, learned_places: float | None
) -> Demand:
    own = spec.adaptive
    running = _gauge("running", True, replicas, answers, Combination.SUM)[0]
    waiting = _gauge("waiting", True, replicas, answers, Combination.SUM)[0]
    in_flight = _single("in flight", answers)[0] if own.in_flight_query else None
    if own.in_flight_query is not None:
        # What waits is told apart only by a server that we know.
        running, waiting = (
            (None, None) if in_flight is None else (in_flight - (waiting or 0.0), waiting or 0.0)
        )
    return Demand(
        rate=_single("rate", answers)[0],
        service_s=_single("service", answers)[0],
        running=running,
        waiting=waiting,
        places=float(own.requests_per_replica) if own.requests_per_replica else learned_places,
        ready=len(replicas.ready),
        starting=replicas.starting,
        settled=replicas.settled,
        activation=_single("activation", answers)[0],
    )


def places_seen(replicas: Replicas, answers: Answers) -> float | None:
    """Requests that a replica works on at once, as full ones show it: those that have requests waiting."""
    running, waiting = answers.get("running", Answer()).pods, answers.get("waiting", Answer()).pods
    full = [
        running[pod] for pod in replicas.ready if waiting.get(pod, 0.0) > 0.0 and running.get(pod, 0.0) > 0.0
    ]
    return sum(full) / len(full) if full else None


def _latency(name: str, built_in: bool, replicas: Replicas, answers: Answers) -> tuple[float | None, str]:
    value, why = _single(name, answers)
    if not built_in:
        return value, why
    if value is None:
        in_flight = [
            _gauge(one, True, replicas, answers, Combination.SUM)[0] for one in ("running", "waiting")
        ]
        if _single("rate", answers)[0] == 0.0 and in_flight == [0.0, 0.0]:
            return 0.0, ""
        return None, why
    told = _single("latency pods", answers)[0]
    if told is not None and told < LEAST_COVERAGE * len(replicas.ready):
        return None, f"{told:.0f} of {len(replicas.ready)} ready replicas told a fresh value"
    return value, ""


def _queue(metric: TargetMetric, replicas: Replicas, answers: Answers) -> Iterator[Reading]:
    if metric.target is None:
        return
    total, why = _gauge(QUEUE_DEPTH, metric.query is None, replicas, answers, Combination.SUM)
    value = None if total is None else total / max(replicas.current, 1)
    yield Reading(QUEUE_DEPTH, float(metric.target), value, why)


def _gauge(
    name: str, by_pod: bool, replicas: Replicas, answers: Answers, how: Combination
) -> tuple[float | None, str]:
    answer = answers.get(name)
    if not by_pod or answer is None or answer.problem:
        return _single(name, answers)
    return combined(answer.pods, replicas.ready, how)


def _single(name: str, answers: Answers) -> tuple[float | None, str]:
    answer = answers.get(name)
    if answer is None:
        return None, "there is nothing to ask for it"
    if answer.problem:
        return None, answer.problem
    return answer.value, "" if answer.value is not None else "Prometheus has no fresh value"
