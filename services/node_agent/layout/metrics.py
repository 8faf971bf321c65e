"""What is counted of layouts."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from gpuloom.model.layout import ChangeState


class LayoutMetrics:
    """Agents of one process share them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._changes = Counter(
            "gpuloom_node_agent_layout_changes",
            "Changes of layouts that ended, by how; refused ones were not begun",
            ["outcome"],
            registry=registry,
        )
        self._restored = Counter(
            "gpuloom_node_agent_layout_restored",
            "Layouts of GPUs that were made again after a boot or a reset",
            registry=registry,
        )
        self._unpublished = Counter(
            "gpuloom_node_agent_layout_publish_failures",
            "Times that device files of MIG instances could not be made",
            registry=registry,
        )
        self._changing = Gauge(
            "gpuloom_node_agent_layout_changing_gpus",
            "GPUs whose layout is being changed or restored",
            registry=registry,
        )
        self._mps_deaths = Counter(
            "gpuloom_node_agent_mps_deaths",
            "MPS daemons that died and took the work of their clients with them",
            registry=registry,
        )
        for outcome in ("done", "rolled-back", "stuck", "refused"):
            self._changes.labels(outcome)

    def count_ended(self, state: ChangeState) -> None:
        self._changes.labels(state.value).inc()

    def count_refused(self) -> None:
        self._changes.labels("refused").inc()

    def count_restored(self) -> None:
        self._restored.inc()

    def count_unpublished(self) -> None:
        self._unpublished.inc()

    def set_changing(self, count: int) -> None:
        self._changing.set(count)

    def count_mps_deaths(self, count: int) -> None:
        self._mps_deaths.inc(count)
