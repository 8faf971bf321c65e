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
        self.agent_messages = Counter(
            "gpuloom_discovery_agent_messages_total",
            "Messages heard from agents, heartbeats included",
            registry=registry,
        )
        self.nodes = Gauge("gpuloom_discovery_nodes", "GPU nodes that readers are told of", registry=registry)
        self.untrusted_nodes = Gauge(
            "gpuloom_discovery_untrusted_nodes", "GPU nodes whose facts are not trusted", registry=registry
        )
        self.closed_gpus = Gauge(
            "gpuloom_discovery_closed_gpus",
            "GPUs that are closed on nodes that are trusted",
            registry=registry,
        )
        self.distrust = Gauge(
            "gpuloom_discovery_distrust",
            "Reasons, by cause, for which a node or a GPU is not trusted now",
            ["cause"],
            registry=registry,
        )
        self.mismatches = Counter(
            "gpuloom_discovery_allocation_mismatch_total",
            "Times that what was given and what is held were found to differ, by cause",
            ["cause"],
            registry=registry,
        )
        self.version = Gauge(
            "gpuloom_discovery_version", "Number of the newest published change", registry=registry
        )
        self.changes = Counter(
            "gpuloom_discovery_node_changes_total", "Changes of a node that were published", registry=registry
        )
        self.readers = Gauge("gpuloom_discovery_readers", "Open cluster streams", registry=registry)
        self.deltas = Counter(
            "gpuloom_discovery_deltas_total",
            "Messages with changes that were sent to readers",
            registry=registry,
        )
        self.coalesced_changes = Counter(
            "gpuloom_discovery_coalesced_changes_total",
            "Changes that a reader was not sent, because a newer one of the same node took their place",
            registry=registry,
        )
        self.sent_bytes = Counter(
            "gpuloom_discovery_sent_bytes_total", "Bytes of messages sent to readers", registry=registry
        )
