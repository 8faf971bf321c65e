"""What the autoscaler tells of itself: how policies and claims stand, what it would do, what it did."""

from dataclasses import dataclass
from datetime import datetime

from gpuloom.model.node import PodRef


@dataclass(frozen=True, slots=True)
class PoolStanding:
    name: str
    nodes: int
    min_nodes: int
    max_nodes: int | None
    priority: int
    problem: str


@dataclass(frozen=True, slots=True)
class PolicyStanding:
    """None: not known."""

    name: str
    provider: str
    enabled: bool
    dry_run: bool
    ready_nodes: int
    desired_nodes: int
    max_nodes: int
    pending_pods: int
    utilization: float | None
    message: str
    scale_up_wait_s: float
    scale_down_wait_s: float
    predicted_utilization: float | None
    prediction_confidence: float | None
    pools: tuple[PoolStanding, ...]


@dataclass(frozen=True, slots=True)
class InferenceStanding:
    """None: not known, or not considered. `metrics` are name, target and value."""

    namespace: str
    name: str
    target: str
    mode: str
    min_replicas: int
    max_replicas: int
    current_replicas: int | None
    desired_replicas: int | None
    ready_replicas: int
    starting_replicas: int
    obstacle: str
    message: str
    last_scale: datetime | None
    hold_s: float | None
    cold_start_s: float | None
    metrics: tuple[tuple[str, float, float | None], ...]


@dataclass(frozen=True, slots=True)
class ClaimStanding:
    name: str
    pool: str
    instance_type: str
    zone: str
    capacity_type: str
    state: str
    node_name: str
    gpus: int
    nano_usd_per_hour: int | None
    requested: datetime | None
    message: str


@dataclass(frozen=True, slots=True)
class AutoscalerStanding:
    policies: tuple[PolicyStanding, ...]
    claims: tuple[ClaimStanding, ...]
    interruption_rate: float


@dataclass(frozen=True, slots=True)
class PlannedMachine:
    pool: str
    instance_type: str
    zone: str
    capacity_type: str
    nano_usd_per_hour: int
    price_estimated: bool
    pods: tuple[PodRef, ...]


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """`placed`: node by pod UID; `unplaced` and `rejected` with the reason."""

    policy: str
    machines: tuple[PlannedMachine, ...]
    placed: tuple[tuple[str, str], ...]
    unplaced: tuple[tuple[PodRef, str], ...]
    rejected: tuple[tuple[str, str], ...]
    scale_up_reason: str
    scale_up_held: str
    drained_claim: str
    scale_down_reason: str


@dataclass(frozen=True, slots=True)
class ScalingRecord:
    time: datetime
    policy: str
    type: str
    pool: str
    count: int
    reason: str
    claims: tuple[str, ...]
    nano_usd_per_hour: int
