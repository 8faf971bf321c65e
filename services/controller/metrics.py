"""What the controller tells Prometheus, under the names that its users' dashboards have."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from math import nan

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gpuloom.errors import GpuloomError
from gpuloom.model.money import usd

_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class RoundResult(StrEnum):
    """How a round over wasteful pods ended."""

    DONE = "done"
    CUT_OFF = "cut-off"
    """Time was up; the next round goes on."""
    NOT_MEASURED = "not-measured"
    """Prometheus or the optimizer can't say, so nothing was called waste."""
    FAILED = "failed"


class _CounterType(str):
    """The word `counter`, not equal to the library's own, for which it would add `_total` to the name."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


class PlainCounter(Collector):
    """A counter whose exposed name has no `_total`, because published dashboards ask for it so."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        self._name, self._documentation = name, documentation
        self.value = 0.0
        registry.register(self)

    def inc(self) -> None:
        self.value += 1.0

    def collect(self) -> Iterable[Metric]:
        metric = Metric(self._name, self._documentation, "unknown")
        metric.type = _CounterType("counter")
        metric.add_sample(self._name, {}, self.value)
        yield metric


class ControllerMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.scheduled = Counter(
            "warp_gpuworkload_scheduled", "Workloads that got a node", ["strategy"], registry=registry
        )
        self.failed = Counter(
            "warp_gpuworkload_failed", "Attempts that failed, by why", ["reason"], registry=registry
        )
        self.retries = Counter("warp_gpuworkload_retries", "Attempts after the first one", registry=registry)
        self.workload_duration = Histogram(
            "warp_gpuworkload_reconcile_duration_seconds",
            "Time of one step for a workload",
            ["result"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.errors = PlainCounter("controller_reconcile_errors", "Steps that failed", registry)
        self.duration = Histogram(
            "controller_reconcile_duration",
            "Time of a step in seconds",
            buckets=_BUCKETS_S,
            registry=registry,
        )

        self._add_waste(registry)

    def _add_waste(self, registry: CollectorRegistry) -> None:
        self.waste_rounds = Counter(
            "gpuloom_controller_waste_rounds",
            "Rounds over wasteful pods, by how they ended",
            ["result"],
            registry=registry,
        )
        self.waste_round_duration = Histogram(
            "gpuloom_controller_waste_round_duration_seconds",
            "Time of a round over wasteful pods",
            buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0),
            registry=registry,
        )
        self.wasteful_pods = Gauge(
            "gpuloom_controller_wasteful_pods",
            "Pods above the threshold of waste; NaN while that is not known",
            registry=registry,
        )
        self.waste_events = Counter(
            "gpuloom_controller_waste_events", "Pods that were told of for the first time", registry=registry
        )
        self.followed = Gauge(
            "gpuloom_controller_followed_recommendations",
            "Recommendations that running pods follow",
            registry=registry,
        )
        self._saved = Gauge(
            "gpuloom_controller_saved_usd_per_month",
            "What pods that follow recommendations save, by the prices when it was recommended",
            registry=registry,
        )

    def forget_waste(self) -> None:
        """What is not known is not zero."""
        self.wasteful_pods.set(nan)

    def saved_nano_usd(self, amount: int) -> None:
        self._saved.set(float(usd(amount)))

    @contextmanager
    def reconciling(self) -> Iterator[None]:
        began_s = time.perf_counter()
        result = "success"
        try:
            yield
        except GpuloomError:
            result = "error"
            self.errors.inc()
            raise
        finally:
            took_s = time.perf_counter() - began_s
            self.duration.observe(took_s)
            self.workload_duration.labels(result).observe(took_s)
