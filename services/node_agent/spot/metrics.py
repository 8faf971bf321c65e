"""What the spot watcher tells Prometheus. Agents of one process share one set of metrics."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from services.node_agent.node import Node
from services.node_agent.spot.core.clouds import Cloud
from services.node_agent.spot.core.problem import Problem

NO_NOTICE = "none"


class SpotMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._nodes: list[Node] = []
        self._polls = Counter(
            "gpuloom_node_agent_spot_polls_total",
            "Questions to the cloud for a notice, by the notice that stands there or the problem",
            ["cloud", "result"],
            registry=registry,
        )
        notices = Gauge(
            "gpuloom_node_agent_spot_notices", "Standing notices of the cloud", ["kind"], registry=registry
        )
        for kind in SpotNoticeKind:
            notices.labels(kind).set_function(partial(self._count_notices, kind))

    def watch(self, node: Node) -> None:
        """Count this node's notice from now on."""
        self._nodes.append(node)

    def count_answer(self, cloud: Cloud, notice: SpotNotice | None) -> None:
        self._polls.labels(cloud, NO_NOTICE if notice is None else notice.kind).inc()

    def count_problem(self, cloud: Cloud, problem: Problem) -> None:
        self._polls.labels(cloud, problem).inc()

    def _count_notices(self, kind: SpotNoticeKind) -> int:
        return sum(node.state.spot is not None and node.state.spot.kind is kind for node in self._nodes)
