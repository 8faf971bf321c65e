"""What the cost engine tells Prometheus about itself and about costs."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class CostMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.windows = Counter(
            "gpuloom_cost_engine_usage_rows_total", "Rows of usage that were kept", registry=registry
        )
        self.lost_windows = Counter(
            "gpuloom_cost_engine_lost_windows_total",
            "Usage windows that will never be counted, by why",
            ["cause"],
            registry=registry,
        )
        for cause in ("missed", "late"):
            self.lost_windows.labels(cause)
        self.moved_windows = Counter(
            "gpuloom_cost_engine_moved_windows_total",
            "Usage windows whose time was wrong, because a node's clock was set",
            registry=registry,
        )
        self.lagging_nodes = Gauge(
            "gpuloom_cost_engine_lagging_nodes",
            "Nodes whose usage windows are not read up to the newest",
            registry=registry,
        )
        self.computed = Counter(
            "gpuloom_cost_engine_node_hours_total", "Hours of nodes that were computed", registry=registry
        )
        self.compute_duration = Histogram(
            "gpuloom_cost_engine_compute_duration_seconds",
            "Time to bring costs up to date",
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.computed_until = Gauge(
            "gpuloom_cost_engine_computed_timestamp_seconds",
            "Up to when costs are computed",
            registry=registry,
        )
        self.rate = Gauge(
            "gpuloom_cost_engine_usd_per_hour",
            "What nodes cost now, by how they are paid for",
            ["capacity_type"],
            registry=registry,
        )
        self.unpriced_nodes = Gauge(
            "gpuloom_cost_engine_unpriced_nodes", "GPU nodes without any known price", registry=registry
        )
        self.priced_nodes = Gauge(
            "gpuloom_cost_engine_priced_nodes",
            "GPU nodes by how well their price is known",
            ["quality"],
            registry=registry,
        )
        self.price_age = Gauge(
            "gpuloom_cost_engine_price_fetch_timestamp_seconds",
            "When a source of prices last answered",
            ["source"],
            registry=registry,
        )
        self.price_failures = Counter(
            "gpuloom_cost_engine_price_fetch_failures_total",
            "Times that a source of prices did not answer",
            ["source"],
            registry=registry,
        )
        self.today = Gauge(
            "gpuloom_cost_engine_today_usd", "Cost since midnight UTC, by part", ["part"], registry=registry
        )
        self.budget_spend = Gauge(
            "gpuloom_cost_engine_budget_spend_ratio",
            "Spend of the present period by its limit",
            ["budget"],
            registry=registry,
        )
        self.budget_forecast = Gauge(
            "gpuloom_cost_engine_budget_forecast_ratio",
            "Forecast for the end of the present period by its limit",
            ["budget"],
            registry=registry,
        )
        self.alerts = Counter(
            "gpuloom_cost_engine_alerts_total", "Alerts by how they went", ["result"], registry=registry
        )
        self.leader = Gauge("gpuloom_cost_engine_leader", "Whether this replica leads", registry=registry)


class OpenCostMetrics:
    """Under the names that dashboards of OpenCost ask for."""

    LABELS = ("instance", "node", "instance_type", "region", "provider_id")

    def __init__(self, registry: CollectorRegistry) -> None:
        self.gpu_hourly = Gauge(
            "node_gpu_hourly_cost", "Cost of one GPU of the node for an hour", self.LABELS, registry=registry
        )
        self.gpu_count = Gauge("node_gpu_count", "GPUs of the node", self.LABELS, registry=registry)
        self.total_hourly = Gauge(
            "node_total_hourly_cost", "Cost of the node for an hour", self.LABELS, registry=registry
        )
        self.is_spot = Gauge(
            "kubecost_node_is_spot", "1 if the node is a spot machine", self.LABELS, registry=registry
        )
        self.gpu_allocation = Gauge(
            "container_gpu_allocation",
            "GPUs that a pod holds",
            ("namespace", "pod", "node", "container", "instance"),
            registry=registry,
        )
