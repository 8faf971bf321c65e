"""GPUWorkload: GPU work by the name of its model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuloom.model.objects import Condition, ObjectMeta
from gpuloom.model.request import TopologyPreference


class WorkloadPriority(StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class WorkloadSharing(StrEnum):
    """ENABLED: in any way that the cluster offers."""

    DISABLED = "disabled"
    ENABLED = "enabled"
    MIG = "mig"
    MPS = "mps"
    TIMESLICING = "timeslicing"


class WorkloadPhase(StrEnum):
    PENDING = "Pending"
    SCHEDULING = "Scheduling"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    max_retries: int = 3
    backoff_s: int = 30
    """Before the first retry; doubles with each further one."""


@dataclass(frozen=True, slots=True)
class WorkloadGang:
    size: int
    topology: str | None = None
    """Node label whose value all pods should share; None: any nodes."""


@dataclass(frozen=True, slots=True)
class GpuWorkloadSpec:
    """`gpu_count` is for each pod, and counts MIG instances where `mig_profile` is set."""

    model_name: str
    gpu_count: int
    priority: WorkloadPriority = WorkloadPriority.MEDIUM
    strategy: str = "leastLoaded"
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    image: str | None = None
    """None: what the controller has configured for the model."""
    pod_template: Mapping[str, object] | None = None
    """A PodTemplateSpec as it was written; only its being an object is checked."""
    gpu_memory_mib: int | None = None
    architecture: str | None = None
    mig_profile: str | None = None
    topology: TopologyPreference = TopologyPreference.NONE
    gang: WorkloadGang | None = None
    sharing: WorkloadSharing | None = None
    """None: what the namespace and its policies say."""


@dataclass(frozen=True, slots=True)
class GpuWorkloadStatus:
    phase: WorkloadPhase | None = None
    assigned_node: str | None = None
    job_name: str | None = None
    message: str | None = None
    retries: int | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuWorkload:
    meta: ObjectMeta
    spec: GpuWorkloadSpec
    status: GpuWorkloadStatus = field(default_factory=GpuWorkloadStatus)
