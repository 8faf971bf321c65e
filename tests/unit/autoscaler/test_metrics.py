"""Names, types and labels that dashboards, alerts and printed queries rely on."""

from prometheus_client import CollectorRegistry

from gpuloom.model.policies import CapacityType
from services.autoscaler.metrics import AutoscalerMetrics

PUBLIC = {
    "scaling_actions_total": ("counter", {"action", "pool", "result"}),
    "spot_interruptions_total": ("counter", {"pool"}),
    "reconcile_errors_total": ("counter", set()),
    "scaling_duration_seconds": ("histogram", {"action"}),
    "node_count": ("gauge", {"capacity_type"}),
    "desired_node_count": ("gauge", {"pool"}),
    "cluster_utilization": ("gauge", set()),
    "pending_pods": ("gauge", set()),
    "underutilized_nodes": ("gauge", set()),
    "spot_termination_warnings": ("gauge", set()),
    "spot_savings_percentage": ("gauge", set()),
    "estimated_monthly_cost_usd": ("gauge", {"capacity_type"}),
    "estimated_monthly_savings_usd": ("gauge", set()),
    "predicted_utilization": ("gauge", set()),
    "prediction_confidence": ("gauge", set()),
    "scale_up_cooldown_remaining_seconds": ("gauge", set()),
    "scale_down_cooldown_remaining_seconds": ("gauge", set()),
}


def exposed() -> dict[str, tuple[str, set[str]]]:
    registry = CollectorRegistry()
    metrics = AutoscalerMetrics(registry)
    metrics.scaled("scale-up", "pool", "requested")
    metrics.took("scale-up", 1.0)
    metrics.interruptions.labels("pool").inc()
    metrics.show_pools({"pool": 1})
    metrics.show_tiers({CapacityType.SPOT: 1}, {})
    found = {}
    for family in registry.collect():
        if family.name.startswith("gpu_autoscaler_"):
            name = family.name.removeprefix("gpu_autoscaler_")
            samples = [one for one in family.samples if not one.name.endswith("_created")]
            labels = {label for one in samples for label in one.labels} - {"le"}
            found[name + ("_total" if family.type == "counter" else "")] = (family.type, labels)
    return found


def test_exactly_the_public_metrics_are_exposed() -> None:
    assert exposed() == PUBLIC


def test_a_pool_that_is_no_longer_there_is_not_shown_with_its_last_number() -> None:
    registry = CollectorRegistry()
    metrics = AutoscalerMetrics(registry)

    metrics.show_pools({"old": 3, "kept": 1})
    metrics.show_pools({"kept": 0})

    assert registry.get_sample_value("gpu_autoscaler_desired_node_count", {"pool": "old"}) is None
    assert registry.get_sample_value("gpu_autoscaler_desired_node_count", {"pool": "kept"}) == 0
