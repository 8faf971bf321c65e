"""Settings of inference autoscaling and of the metrics that others scale by."""

from dataclasses import dataclass

from gpuloom.roster import ROSTER
from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import boolean, port, seconds, text


@dataclass(frozen=True)
class InferenceConfig:
    enabled: bool = setting(
        "GPULOOM_AUTOSCALER_INFERENCE",
        default=True,
        parse=boolean,
        help="Whether AIInferenceAutoscalerPolicies are acted on; it needs GPULOOM_PROMETHEUS_URL",
    )
    interval_s: float = setting(
        "GPULOOM_AUTOSCALER_INFERENCE_INTERVAL",
        default=15.0,
        parse=seconds,
        help="How often the number of replicas of every target is decided",
    )
    freshness_s: float = setting(
        "GPULOOM_AUTOSCALER_INFERENCE_FRESHNESS",
        default=60.0,
        parse=seconds,
        help="A sample that is older counts as missing, and what is missing holds the number of replicas",
    )
    metrics_url: str | None = setting(
        "GPULOOM_AUTOSCALER_INFERENCE_METRICS_URL",
        default=None,
        parse=text,
        help="Where there is no Prometheus: an exposition of gauges of inference servers with labels "
        "namespace and pod; only queue depth and what runs can be had from it",
    )
    cold_start_s: float = setting(
        "GPULOOM_AUTOSCALER_INFERENCE_COLD_START",
        default=180.0,
        parse=seconds,
        help="From a new replica to its first answer, until it is learned from the target's pods",
    )


@dataclass(frozen=True)
class MetricsApiConfig:
    enabled: bool = setting(
        "GPULOOM_AUTOSCALER_METRICS_API",
        default=False,
        parse=boolean,
        help="Whether custom.metrics.k8s.io and external.metrics.k8s.io are served; it needs certificates",
    )
    host: str = setting(
        "GPULOOM_AUTOSCALER_METRICS_API_HOST",
        default="0.0.0.0",  # noqa: S104 - the API server comes from outside the pod
        parse=text,
        help="Address to serve them on",
    )
    port: int = setting(
        "GPULOOM_AUTOSCALER_METRICS_API_PORT",
        default=ROSTER["autoscaler"].port("metrics-api").number,
        parse=port,
        help="Port to serve them on (HTTPS)",
    )
    service: str | None = setting(
        "GPULOOM_AUTOSCALER_METRICS_API_SERVICE",
        default=None,
        parse=text,
        help="Name of the Service in the namespace of the pod by which APIServices lead here; their CA is "
        "kept true to GPULOOM_TLS_CA_FILE",
    )


@dataclass(frozen=True)
class KedaConfig:
    host: str = setting(
        "GPULOOM_AUTOSCALER_KEDA_HOST",
        default="0.0.0.0",  # noqa: S104 - KEDA comes from outside the pod
        parse=text,
        help="Address to serve KEDA's external scaler on",
    )
    port: int = setting(
        "GPULOOM_AUTOSCALER_KEDA_PORT",
        default=ROSTER["autoscaler"].port("keda").number,
        parse=port,
        help="Port to serve it on (gRPC)",
    )
