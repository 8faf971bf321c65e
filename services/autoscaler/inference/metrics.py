"""Metrics of inference autoscaling. Labels are policies' names and closed sets."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.autoscaler.inference.core.standing import Standing

_PREFIX = "gpuloom_autoscaler_inference"


class InferenceMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("namespace", "policy")
        self.current = Gauge(
            f"{_PREFIX}_current_replicas", "Replicas of the target now", labels, registry=registry
        )
        self.desired = Gauge(
            f"{_PREFIX}_desired_replicas", "Replicas that are wanted", labels, registry=registry
        )
        self.acting = Gauge(
            f"{_PREFIX}_acting",
            "Whether the policy decides: 1, or 0 where something is in its way",
            labels,
            registry=registry,
        )
        self.missing = Gauge(
            f"{_PREFIX}_missing_metrics",
            "Metrics of the policy that could not be read",
            labels,
            registry=registry,
        )
        self.changes = Counter(
            f"{_PREFIX}_changes",
            "Changes of the number of replicas",
            [*labels, "direction"],
            registry=registry,
        )
        self.failures = Counter(f"{_PREFIX}_failures", "Steps of policies that failed", registry=registry)
        self.round = Histogram(
            f"{_PREFIX}_round_duration_seconds", "Time of a round over all policies", registry=registry
        )
        self._shown: set[tuple[str, str]] = set()

    def show(self, standings: list[Standing]) -> None:
        """The gauges of exactly these; those of policies that are gone disappear."""
        now = {(one.namespace, one.name) for one in standings}
        for key in self._shown - now:
            for gauge in (self.current, self.desired, self.acting, self.missing):
                gauge.remove(*key)
        self._shown = now
        for one in standings:
            key = one.namespace, one.name
            self.acting.labels(*key).set(one.decision is not None)
            self.missing.labels(*key).set(sum(reading.value is None for reading in one.readings))
            if one.current is not None:
                self.current.labels(*key).set(one.current)
            if one.decision is not None:
                self.desired.labels(*key).set(one.decision.wanted)
