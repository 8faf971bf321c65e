"""What the agent tells Prometheus about itself. Agents of one process share one set of metrics."""

from collections.abc import Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpuloom.model.gpu import GpuHealth
from services.node_agent.core.plausibility import Quantity
from services.node_agent.node import Node


class AgentMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._nodes: list[Node] = []
        self.looks = Counter(
            "gpuloom_node_agent_samples_total",
            "Samples of the node, by the part that could not be read",
            ["problem"],
            registry=registry,
        )
        self.look_duration = Histogram(
            "gpuloom_node_agent_sample_duration_seconds", "Time to sample the node once", registry=registry
        )
        self._implausible = Counter(
            "gpuloom_node_agent_implausible_values_total",
            "Values that the driver gave and that can't be true, so they were left out",
            ["quantity"],
            registry=registry,
        )
        for quantity in Quantity:
            self._implausible.labels(quantity)
        self.readers = Gauge("gpuloom_node_agent_readers", "Open state streams", registry=registry)
        gpus = Gauge("gpuloom_node_agent_gpus", "GPUs by health", ["health"], registry=registry)
        for health in GpuHealth:
            gpus.labels(health).set_function(partial(self._count_gpus, health))
        holders = Gauge("gpuloom_node_agent_holders", "Who holds devices", registry=registry)
        holders.set_function(lambda: sum(len(node.state.holders) for node in self._nodes))
        foreign = Gauge(
            "gpuloom_node_agent_foreign_processes",
            "Processes of no pod that compute on GPUs",
            registry=registry,
        )
        foreign.set_function(self._count_foreign)

    def count_implausible(self, rejected: Mapping[Quantity, int]) -> None:
        for quantity, count in rejected.items():
            self._implausible.labels(quantity).inc(count)

    def watch(self, node: Node) -> None:
        """Count this node from now on."""
        self._nodes.append(node)

    def _count_foreign(self) -> int:
        """A process on two devices is one."""
        return sum(
            len({pid for holder in node.state.holders if not holder.pod.uid for pid in holder.pids})
            for node in self._nodes
        )

    def _count_gpus(self, health: GpuHealth) -> int:
        return sum(gpu.health is health for node in self._nodes for gpu in node.state.gpus)
