"""What is counted about RPCs. Labels come from descriptors and gRPC's codes: closed sets."""

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpuloom.rpc.methods import MethodFacts
from gpuloom.runtime.clock import Clock

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

ReloadOutcome = Literal["loaded", "rejected"]


class RpcMetrics:
    """The RPC metrics of one process; make it once per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.server = CallMetrics("server", registry)
        self.client = CallMetrics("client", registry)
        self.retries = Counter(
            "gpuloom_rpc_client_retries_total",
            "Attempts after the first one, of calls made.",
            ["service", "method"],
            registry=registry,
        )
        self._reloads = Counter(
            "gpuloom_rpc_certificate_reloads_total",
            "Changed certificate files, by whether they could be used.",
            ["outcome"],
            registry=registry,
        )

    def count_reload(self, outcome: ReloadOutcome) -> None:
        self._reloads.labels(outcome).inc()


class CallMetrics:
    """Calls of one side."""

    def __init__(self, side: Literal["server", "client"], registry: CollectorRegistry) -> None:
        what = "served" if side == "server" else "made"
        labels = ["service", "method"]
        self.handled = Counter(
            f"gpuloom_rpc_{side}_handled_total",
            f"Calls {what} to their end, by gRPC code.",
            [*labels, "code"],
            registry=registry,
        )
        self.duration = Histogram(
            f"gpuloom_rpc_{side}_duration_seconds",
            f"Time from start to end of calls {what}.",
            labels,
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.in_flight = Gauge(
            f"gpuloom_rpc_{side}_in_flight", f"Calls {what} right now.", labels, registry=registry
        )

    def begin(self, facts: MethodFacts, clock: Clock) -> "ObservedCall":
        return ObservedCall(self, facts, clock)


class ObservedCall:
    """One call, counted from its making to the first `end`."""

    def __init__(self, metrics: CallMetrics, facts: MethodFacts, clock: Clock) -> None:
        self._metrics = metrics
        self._labels = (facts.service, facts.method)
        self._clock = clock
        self._began_s = clock.monotonic()
        self._ended = False
        metrics.in_flight.labels(*self._labels).inc()

    def end(self, code: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._metrics.in_flight.labels(*self._labels).dec()
        self._metrics.handled.labels(*self._labels, code).inc()
        self._metrics.duration.labels(*self._labels).observe(self._clock.monotonic() - self._began_s)
