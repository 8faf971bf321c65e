"""What discovery tells Prometheus about itself."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class DiscoveryMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.agents_expected = Gauge(
            "gpuloom_discovery_agents_expected", "Agents that should be there", registry=registry
        )
        self.agents_heard = Gauge(
            "gpuloom_discovery_agents_heard", "Agents heard within their TTL", registry=registry
        )
        self.untrusted_nodes = Gauge(
            "gpuloom_discovery_untrusted_nodes", "GPU nodes whose facts are not trusted", registry=registry
        )
        self.changes = Counter(
            "gpuloom_discovery_node_changes_total", "Changes of a node that were published", registry=registry
        )
        self.readers = Gauge("gpuloom_discovery_readers", "Open cluster streams", registry=registry)
