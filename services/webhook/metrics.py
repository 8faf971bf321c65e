"""What the webhook tells Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Histogram

_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class WebhookMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.reviews = Counter(
            "gpuloom_webhook_reviews",
            "Reviews by path and how they were answered: unchanged, changed, warned, denied, invalid, failed",
            ["path", "result"],
            registry=registry,
        )
        self.duration = Histogram(
            "gpuloom_webhook_review_duration_seconds",
            "Time from a review's last byte to its answer",
            ["path"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.advice = Counter(
            "gpuloom_webhook_advice",
            "Pods for which advice was wanted, by what came of it: advised, none, failed; late: not within "
            "the deadline; shed: not waited for, as too much was asked or the optimizer failed just before",
            ["result"],
            registry=registry,
        )
        self.ca_bundles = Counter(
            "gpuloom_webhook_ca_bundle_writes",
            "CA bundles written to webhook configurations, by outcome",
            ["outcome"],
            registry=registry,
        )
