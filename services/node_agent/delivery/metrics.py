"""What delivery tells Prometheus about itself."""

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpuloom.model.node import Delivery

_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)
_WAYS = (Delivery.NRI, Delivery.ENV, Delivery.NONE)


class Outcome(StrEnum):
    """What became of a container that was about to be created."""

    NOTHING = "nothing"
    DELIVERED = "delivered"
    REFUSED = "refused"


class DeliveryMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._containers = Counter(
            "gpuloom_node_agent_delivery_containers_total",
            "Containers that were about to be created, by what they got",
            ["outcome"],
            registry=registry,
        )
        for outcome in Outcome:
            self._containers.labels(outcome)
        self.answer_duration = Histogram(
            "gpuloom_node_agent_delivery_answer_duration_seconds",
            "Time to answer one call of the container runtime",
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.connected = Gauge(
            "gpuloom_node_agent_delivery_connected",
            "1 while the container runtime takes its devices from us",
            registry=registry,
        )
        self.without_devices = Gauge(
            "gpuloom_node_agent_delivery_containers_without_devices",
            "Containers found without the devices of their allocation when the runtime was connected",
            registry=registry,
        )

        self._ways = Gauge(
            "gpuloom_node_agent_delivery_way",
            "1 for the way in which devices reach containers now",
            ["way"],
            registry=registry,
        )

    def set_way(self, delivery: Delivery) -> None:
        for way in _WAYS:
            self._ways.labels(way.value).set(way is delivery)

    def count(self, outcome: Outcome) -> None:
        self._containers.labels(outcome).inc()
