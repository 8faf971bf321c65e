"""What the console tells Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class ConsoleMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.reads = Counter(
            "gpuloom_console_source_reads",
            "Reads of sources by outcome: ok, failed",
            ["source", "outcome"],
            registry=registry,
        )
        self.read_duration = Histogram(
            "gpuloom_console_source_read_duration_seconds",
            "Time that one read of a source took",
            ["source"],
            registry=registry,
        )
        self.version = Gauge(
            "gpuloom_console_state_version", "Number of changes of what is shown", registry=registry
        )
        self.clients = Gauge("gpuloom_console_clients", "Pages that watch for changes", registry=registry)
        self.sent_bytes = Counter("gpuloom_console_sent_bytes", "Bytes of changes sent", registry=registry)
        self.streams = Counter(
            "gpuloom_console_streams",
            "Streams of changes by how they ended: left, slow, refused, full",
            ["end"],
            registry=registry,
        )
        self.requests = Counter(
            "gpuloom_console_requests", "HTTP requests by status class", ["status"], registry=registry
        )
        self.logins = Counter(
            "gpuloom_console_logins",
            "Attempts to log in: accepted, refused, failed",
            ["outcome"],
            registry=registry,
        )
