"""What the exporter tells Prometheus about itself, on the service's own endpoint."""

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.2, 1.0)


class Outcome(StrEnum):
    """How asking dcgm-exporter ended."""

    READ = "read"
    UNREACHABLE = "unreachable"
    UNREADABLE = "unreadable"


class ExporterMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.scrapes = Counter(
            "gpuloom_node_agent_scrapes_total", "Scrapes of the GPU metrics", registry=registry
        )
        self.exposition_bytes = Gauge(
            "gpuloom_node_agent_exposition_bytes",
            "Size of the GPU metrics as last written",
            registry=registry,
        )
        self.exposition_duration = Histogram(
            "gpuloom_node_agent_exposition_duration_seconds",
            "Time to write the GPU metrics once",
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.listening = Gauge(
            "gpuloom_node_agent_exporter_listening",
            "1 while the GPU metrics are served; 0 if another process has the port",
            registry=registry,
        )
        self._dcgm_reads = Counter(
            "gpuloom_node_agent_dcgm_reads_total",
            "Reads of NVIDIA's dcgm-exporter, by how they ended",
            ["outcome"],
            registry=registry,
        )
        for outcome in Outcome:
            self._dcgm_reads.labels(outcome)

    def count_read(self, outcome: Outcome) -> None:
        self._dcgm_reads.labels(outcome).inc()
