"""Settings of inference autoscaling and of the metrics that others scale by."""

from dataclasses import dataclass

from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import boolean, seconds


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
    cold_start_s: float = setting(
        "GPULOOM_AUTOSCALER_INFERENCE_COLD_START",
        default=180.0,
        parse=seconds,
        help="From a new replica to its first answer, until it is learned from the target's pods",
    )
