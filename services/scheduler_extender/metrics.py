"""What the extender tells Prometheus about itself."""

from collections import Counter as Counted
from collections.abc import Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpuloom.model.ledger import EntryState
from services.scheduler_extender.core.gangs.phases import Phase
from services.scheduler_extender.state.cluster import ClusterState

_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class ExtenderMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Counter(
            "gpuloom_scheduler_extender_calls_total",
            "Calls of kube-scheduler by verb and outcome",
            ["verb", "outcome"],
            registry=registry,
        )
        self.call_duration = Histogram(
            "gpuloom_scheduler_extender_call_duration_seconds",
            "Time to answer kube-scheduler",
            ["verb"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._entries = Gauge(
            "gpuloom_scheduler_extender_ledger_entries",
            "Owners of devices on the ledger, by state",
            ["state"],
            registry=registry,
        )
        self._closed_nodes = _gauge(
            registry, "gpuloom_scheduler_extender_closed_nodes", "GPU nodes that nothing is given out on"
        )
        self._holds = _gauge(
            registry, "gpuloom_scheduler_extender_holds", "Holds that take capacity out of placement"
        )
        self.wake_ups = Counter(
            "gpuloom_scheduler_extender_wake_ups_total",
            "Capacity epochs written to wake pending pods",
            registry=registry,
        )
        self.takeover_duration = _gauge(
            registry,
            "gpuloom_scheduler_extender_takeover_duration_seconds",
            "Time from becoming the leader until serving",
        )
        self.unstamped_pods = _gauge(
            registry,
            "gpuloom_scheduler_extender_unstamped_pods",
            "Unbound pods that the last takeover could not write its epoch on",
        )
        self.leader = _gauge(
            registry,
            "gpuloom_scheduler_extender_leader",
            "1 while this replica serves kube-scheduler as the leader",
        )
        self.quarantined = _gauge(
            registry,
            "gpuloom_scheduler_extender_quarantined",
            "Pods and controllers that are not tried for a while because their binds keep failing",
        )

        self.planning_duration = Histogram(
            "gpuloom_scheduler_extender_planning_duration_seconds",
            "Time of a turn of planning: gangs, reservations or preemptions",
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.evictions = Counter(
            "gpuloom_scheduler_extender_evictions_total",
            "Pods that were asked to leave for others, or with their gang",
            registry=registry,
        )
        self._gangs = Gauge(
            "gpuloom_scheduler_extender_gangs", "Gangs by how far they are", ["phase"], registry=registry
        )

        self._policies = Gauge(
            "gpuloom_scheduler_extender_admission_policy_installed",
            "1 while this admission policy is in force, 0 if it is not; absent while that is not known",
            ["policy"],
            registry=registry,
        )

    def set_policy_installed(self, policy: str, installed: bool | None) -> None:
        self._policies.labels(policy).set(bool(installed))
        if installed is None:
            self._policies.remove(policy)

    def show_gangs(self, phases: Iterable[Phase]) -> None:
        counts = Counted(phases)
        for phase in Phase:
            self._gangs.labels(phase).set(counts[phase])

    def watch(self, state: ClusterState) -> None:
        """Read the gauges from the state at every scrape."""
        for entry_state in EntryState:
            self._entries.labels(entry_state).set_function(partial(_count, state, entry_state))
        self._closed_nodes.set_function(state.closed_nodes)
        self._holds.set_function(lambda: len(state.ledger.holds))


def _gauge(registry: CollectorRegistry, name: str, documentation: str) -> Gauge:
    return Gauge(name, documentation, registry=registry)


def _count(state: ClusterState, entry_state: EntryState) -> int:
    return state.entry_counts()[entry_state]
