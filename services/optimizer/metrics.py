"""What the optimizer tells Prometheus."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpuloom.model.optimization import PodWaste, WorkloadClass

_HINT_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05)


class OptimizerMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.windows = Counter(
            "gpuloom_optimizer_usage_windows_total", "Usage windows that were taken", registry=registry
        )
        self.missed = Counter(
            "gpuloom_optimizer_usage_windows_missed_total",
            "Usage windows that left their spool before they were read",
            registry=registry,
        )
        self.unknown_pods = Counter(
            "gpuloom_optimizer_unknown_pods_total",
            "Rows of usage windows whose pod Kubernetes does not show",
            registry=registry,
        )
        self.behind = Gauge(
            "gpuloom_optimizer_usage_windows_behind",
            "Usage windows that agents have and that were not taken yet",
            registry=registry,
        )
        self.running = Gauge("gpuloom_optimizer_running_pods", "Pods that are observed", registry=registry)
        self.signatures = Gauge(
            "gpuloom_optimizer_signatures", "Kinds of workloads that are known", registry=registry
        )
        self._wasteful = Gauge(
            "gpuloom_optimizer_wasteful_pods", "Pods whose waste score is above 50", registry=registry
        )
        self._score = Gauge(
            "gpuloom_optimizer_waste_score",
            "Waste of a pod, 0 to 100; only of those above 50, the worst hundred",
            ["namespace", "pod"],
            registry=registry,
        )
        self._saving = Gauge(
            "gpuloom_optimizer_saving_usd_per_month",
            "What the recommendations that stand would save",
            registry=registry,
        )
        self.classified = Gauge(
            "gpuloom_optimizer_pods_by_class", "Observed pods by class", ["class"], registry=registry
        )
        for each in WorkloadClass:
            self.classified.labels(each)
        self.trainings = Counter(
            "gpuloom_optimizer_trainings_total", "Trainings of the model", ["result"], registry=registry
        )
        for result in ("kept", "worse", "failed"):
            self.trainings.labels(result)
        self.macro_f1 = Gauge(
            "gpuloom_optimizer_model_macro_f1",
            "Macro-F1 of the model on runs that it had not seen; 0 without a model",
            registry=registry,
        )
        self.hint_duration = Histogram(
            "gpuloom_optimizer_hint_duration_seconds",
            "Time to answer a hint",
            buckets=_HINT_BUCKETS,
            registry=registry,
        )

        self.advice_duration = Histogram(
            "gpuloom_optimizer_advice_duration_seconds",
            "Time to answer what a pod that is about to be created should ask for",
            buckets=_HINT_BUCKETS,
            registry=registry,
        )

    def show_waste(self, pods: Iterable[PodWaste], threshold: float, shown: int) -> None:
        wasteful = [pod for pod in pods if pod.score > threshold]
        self._wasteful.set(len(wasteful))
        self._saving.set(sum(pod.saving_nano_usd or 0 for pod in wasteful) / 1e9)
        self._score.clear()
        for pod in wasteful[:shown]:
            self._score.labels(pod.pod.namespace, pod.pod.name).set(pod.score)
