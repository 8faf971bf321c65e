"""AutoscalingPolicy (how many nodes) and AIInferenceAutoscalerPolicy (how many replicas)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuloom.model.objects import Condition, ObjectMeta


class CloudProvider(StrEnum):
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    SIMULATED = "simulated"


class CapacityType(StrEnum):
    SPOT = "spot"
    ON_DEMAND = "on-demand"
    RESERVED = "reserved"


@dataclass(frozen=True, slots=True)
class NodePool:
    """`priority`: a higher number is used first.

    What None means: of `max_size`, only the policy limits it; of `capacity_type`, all tiers; of `spot_share`,
    the policy's; of `gpu_type`, what the instance types have.
    """

    name: str
    min_size: int = 0
    max_size: int | None = None
    gpu_type: str | None = None
    instance_types: tuple[str, ...] = ()
    capacity_type: CapacityType | None = None
    spot_share: float | None = None
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    zones: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeMetric:
    """A PromQL query whose value above the threshold adds nodes."""

    name: str
    query: str
    threshold: float


@dataclass(frozen=True, slots=True)
class PredictionSettings:
    lookback_days: int = 7
    horizon_minutes: int = 30
    confidence_threshold: float = 0.7
    prewarm_threshold: float = 0.7


@dataclass(frozen=True, slots=True)
class AutoscalingPolicySpec:
    """Thresholds and shares are 0 to 1. On-demand and reserved divide what spot leaves, in proportion."""

    provider: CloudProvider
    enabled: bool = True
    scale_up_threshold: float = 0.8
    scale_down_threshold: float = 0.2
    scale_up_cooldown_s: int = 180
    scale_down_cooldown_s: int = 600
    pending_pod_timeout_s: int = 120
    min_nodes: int = 0
    max_nodes: int = 100
    spot_share: float = 0.6
    on_demand_share: float = 0.35
    reserved_share: float = 0.05
    spot: bool = True
    multi_tier: bool = True
    predictive: bool = False
    prediction: PredictionSettings = field(default_factory=PredictionSettings)
    graceful_eviction: bool = True
    diversify: bool = True
    dry_run: bool = False
    custom_metrics: tuple[NodeMetric, ...] = ()
    pools: tuple[NodePool, ...] = ()


class ScaleDirection(StrEnum):
    UP = "scale-up"
    DOWN = "scale-down"


@dataclass(frozen=True, slots=True)
class ScalingAction:
    type: ScaleDirection
    time: datetime
    pool: str | None = None
    count: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Both 0 to 1."""

    utilization: float
    confidence: float
    horizon_minutes: int


@dataclass(frozen=True, slots=True)
class AutoscalingPolicyStatus:
    """None: not known; that is not zero."""

    current_nodes: int | None = None
    desired_nodes: int | None = None
    nodes_by_tier: Mapping[CapacityType, int] = field(default_factory=dict)
    utilization: float | None = None
    pending_pods: int | None = None
    last_scale_up: datetime | None = None
    last_scale_down: datetime | None = None
    last_action: ScalingAction | None = None
    prediction: Prediction | None = None
    message: str | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class AutoscalingPolicy:
    meta: ObjectMeta
    spec: AutoscalingPolicySpec
    status: AutoscalingPolicyStatus = field(default_factory=AutoscalingPolicyStatus)


@dataclass(frozen=True, slots=True)
class ScaleTarget:
    """Anything with a scale subresource."""

    kind: str
    name: str
    api_version: str = "apps/v1"


class InferenceMode(StrEnum):
    """RATIO: the current number times the largest ratio of value to target, rounded up."""

    RATIO = "ratio"
    ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True)
class LatencyMetric:
    """`query` None: the built-in one. A percentile that is None is not considered."""

    enabled: bool = True
    p99_ms: int | None = None
    p95_ms: int | None = None
    query: str | None = None


@dataclass(frozen=True, slots=True)
class TargetMetric:
    """A metric with one target: percent of the GPU or of its memory, or waiting requests for each replica."""

    enabled: bool = True
    target: int | None = None
    query: str | None = None


@dataclass(frozen=True, slots=True)
class CustomMetric:
    name: str
    query: str
    target: float


class InferenceServer(StrEnum):
    """Whose metric names the built-in queries use. AUTO: of whichever is there."""

    AUTO = "auto"
    VLLM = "vllm"
    TGI = "tgi"
    TRITON = "triton"
    SGLANG = "sglang"
    KSERVE = "kserve"


@dataclass(frozen=True, slots=True)
class AdaptiveSettings:
    """What mode adaptive is told; what is None it learns, or asks by the built-in query.

    Without `activation_query` a target never goes to 0: nothing would wake it.
    """

    requests_per_replica: int | None = None
    cold_start_s: int | None = None
    arrival_rate_query: str | None = None
    in_flight_query: str | None = None
    service_time_query: str | None = None
    activation_query: str | None = None


@dataclass(frozen=True, slots=True)
class InferenceMetrics:
    """A metric that is None is not considered."""

    server: InferenceServer = InferenceServer.AUTO
    latency: LatencyMetric | None = None
    gpu_utilization: TargetMetric | None = None
    gpu_memory: TargetMetric | None = None
    queue_depth: TargetMetric | None = None
    custom: tuple[CustomMetric, ...] = ()


class ScalingUnit(StrEnum):
    PODS = "Pods"
    PERCENT = "Percent"


@dataclass(frozen=True, slots=True)
class ScalingLimit:
    unit: ScalingUnit
    value: int
    period_s: int


@dataclass(frozen=True, slots=True)
class ScalingBehavior:
    """How fast the number may change; without limits at once."""

    stabilization_s: int = 0
    limits: tuple[ScalingLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class InferencePolicySpec:
    target: ScaleTarget
    max_replicas: int
    metrics: InferenceMetrics
    min_replicas: int = 1
    cooldown_s: int = 300
    mode: InferenceMode = InferenceMode.RATIO
    scale_up: ScalingBehavior = field(default_factory=ScalingBehavior)
    scale_down: ScalingBehavior = field(default_factory=ScalingBehavior)
    adaptive: AdaptiveSettings = field(default_factory=AdaptiveSettings)


@dataclass(frozen=True, slots=True)
class MetricReading:
    """`value` and `ratio` None: it could not be read."""

    name: str
    target: float
    value: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class InferencePolicyStatus:
    current_replicas: int | None = None
    desired_replicas: int | None = None
    last_scale: datetime | None = None
    current_metrics: tuple[MetricReading, ...] = ()
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class InferencePolicy:
    meta: ObjectMeta
    spec: InferencePolicySpec
    status: InferencePolicyStatus = field(default_factory=InferencePolicyStatus)
