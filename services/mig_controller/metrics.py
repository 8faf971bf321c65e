"""What the controller counts."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from gpuloom.model.sharing import MigStage
from services.mig_controller.core.cards import Card
from services.mig_controller.core.stages import stage_counts

STEERED = ("asked", "done", "failed")
EVICTIONS = ("asked", "refused", "kept")
OUTCOMES = ("done", "rolled-back", "stuck", "unknown", "not-begun")


class MigMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._changes = Counter(
            "gpuloom_mig_controller_changes",
            "Changes of layouts, by how they ended",
            ["outcome"],
            registry=registry,
        )
        self._evictions = Counter(
            "gpuloom_mig_controller_evictions",
            "Pods to leave a slice: asked, refused by a budget or the API server, or kept by their own word",
            ["outcome"],
            registry=registry,
        )
        self._steered = Counter(
            "gpuloom_mig_controller_steered_nodes",
            "Nodes that NVIDIA's MIG manager was asked to cut otherwise, and how that ended",
            ["outcome"],
            registry=registry,
        )
        self._stages = Gauge(
            "gpuloom_mig_controller_devices",
            "GPUs and slices of gpuloom nodes by state, in the words of the status",
            ["state"],
            registry=registry,
        )
        self.waiting = Gauge(
            "gpuloom_mig_controller_waiting_pods", "Pods that wait for a slice", registry=registry
        )
        self.unmet = Gauge(
            "gpuloom_mig_controller_unmet_pods", "Pods for which no slice can be made now", registry=registry
        )
        self.open_changes = Gauge(
            "gpuloom_mig_controller_open_changes", "Changes of layouts under way", registry=registry
        )
        self.leader = Gauge(
            "gpuloom_mig_controller_leader", "Whether this replica decides", registry=registry
        )
        for outcome in OUTCOMES:
            self._changes.labels(outcome)
        for outcome in EVICTIONS:
            self._evictions.labels(outcome)

        for outcome in STEERED:
            self._steered.labels(outcome)

    def count_steered(self, outcome: str) -> None:
        self._steered.labels(outcome).inc()

    def count_eviction(self, outcome: str) -> None:
        self._evictions.labels(outcome).inc()

    def count(self, outcome: str) -> None:
        self._changes.labels(outcome).inc()

    def show(self, cards: Iterable[Card], destroying: Mapping[str, frozenset[object]]) -> None:
        counts = stage_counts(cards, destroying)
        for stage in MigStage:
            self._stages.labels(stage.value).set(counts[stage])
