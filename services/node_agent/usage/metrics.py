"""What usage windows tell Prometheus. Agents of one process share one set of metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.node_agent.usage.spools import Spools


class UsageMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._spools: list[Spools] = []
        self.windows = Counter(
            "gpuloom_node_agent_usage_windows_total", "Usage windows that were closed", registry=registry
        )
        self._dropped = Counter(
            "gpuloom_node_agent_usage_windows_dropped_total",
            "Usage windows that went before they were read by all or had their age, for want of space",
            registry=registry,
        )
        self.readers = Gauge(
            "gpuloom_node_agent_usage_readers", "Open streams of usage windows", registry=registry
        )
        degraded = Gauge(
            "gpuloom_node_agent_usage_spool_degraded",
            "Nodes whose usage windows are not on a disk, so that they would be lost with the agent",
            registry=registry,
        )
        degraded.set_function(lambda: sum(bool(spools.problem) for spools in self._spools))
        size = Gauge("gpuloom_node_agent_usage_spool_bytes", "Disk space of usage windows", registry=registry)
        size.set_function(lambda: sum(spools.kept_bytes for spools in self._spools))

    def watch(self, spools: Spools) -> None:
        """Count this node's spools from now on."""
        self._spools.append(spools)

    def count_dropped(self, windows: int) -> None:
        self._dropped.inc(windows)
