"""What the writer tells Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class WriterMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        """For the recorder of Events, which counts there what it drops."""
        self.elected = Gauge(
            "gpuloom_discovery_elected", "1 on the replica that writes to nodes, else 0", registry=registry
        )
        self.writes = Counter(
            "gpuloom_discovery_node_writes_total",
            "Writes to nodes by outcome: written, conflict, gone, failed",
            ["outcome"],
            registry=registry,
        )
