"""The autoscaler's metrics under their public names. Labels come from policies and closed sets."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpuloom.model.policies import CapacityType

_BUCKETS_S = (5, 15, 30, 60, 120, 180, 300, 600, 900, 1800, 3600)


class AutoscalerMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.actions = self._counter(
            "scaling_actions_total", "Scaling actions by outcome", "action", "pool", "result"
        )
        self.interruptions = self._counter(
            "spot_interruptions_total", "Spot nodes that were given notice or lost", "pool"
        )
        self.errors = self._counter("reconcile_errors_total", "Rounds and steps that failed")
        self.duration = Histogram(
            "gpu_autoscaler_scaling_duration_seconds",
            "From the decision to a ready node, or to the end of its machine",
            ["action"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.nodes = self._gauge("node_count", "GPU nodes by tier", "capacity_type")
        self.desired = self._gauge("desired_node_count", "Nodes that there shall be, by pool", "pool")
        self.utilization = self._gauge("cluster_utilization", "Mean GPU utilization, 0 to 1")
        self.pending = self._gauge("pending_pods", "GPU pods that wait for a node")
        self.underused = self._gauge("underutilized_nodes", "Nodes below the scale-down threshold")
        self.warnings = self._gauge("spot_termination_warnings", "Nodes with a notice of interruption now")
        self.savings_percentage = self._gauge(
            "spot_savings_percentage", "What spot saves of the on-demand price of the same nodes, 0 to 100"
        )
        self.cost = self._gauge("estimated_monthly_cost_usd", "Price of the nodes a month", "capacity_type")
        self.savings = self._gauge("estimated_monthly_savings_usd", "What the tiers save a month")
        self.predicted = self._gauge("predicted_utilization", "Forecast of the GPU utilization, 0 to 1")
        self.confidence = self._gauge("prediction_confidence", "Backtested confidence of it, 0 to 1")
        self.up_cooldown = self._gauge("scale_up_cooldown_remaining_seconds", "Until nodes may be added")
        self.down_cooldown = self._gauge(
            "scale_down_cooldown_remaining_seconds", "Until nodes may be drained"
        )
        self.cloud_failures = Counter(
            "gpuloom_autoscaler_cloud_failures_total",
            "Requests that a cloud refused or did not answer, by class",
            ["provider", "kind"],
            registry=registry,
        )
        self.round_duration = Histogram(
            "gpuloom_autoscaler_round_duration_seconds",
            "Time of a decision over all policies",
            registry=registry,
        )
        self.estimated_prices = Gauge(
            "gpuloom_autoscaler_estimated_prices",
            "Offerings whose price nobody tells, so that it is estimated",
            registry=registry,
        )

    def scaled(self, action: str, pool: str, result: str) -> None:
        self.actions.labels(action, pool, result).inc()

    def took(self, action: str, seconds: float) -> None:
        self.duration.labels(action).observe(seconds)

    def show_tiers(
        self, nodes: Mapping[CapacityType, int], monthly_usd: Mapping[CapacityType, float]
    ) -> None:
        for tier in CapacityType:
            self.nodes.labels(tier.value).set(nodes.get(tier, 0))
            self.cost.labels(tier.value).set(monthly_usd.get(tier, 0.0))

    def show_pools(self, desired: Mapping[str, int]) -> None:
        """A pool that is no longer any policy's is not shown with its last number."""
        self.desired.clear()
        for pool, count in desired.items():
            self.desired.labels(pool).set(count)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"gpu_autoscaler_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"gpu_autoscaler_{name}", text, labels, registry=self.registry)
