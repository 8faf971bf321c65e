"""GPUSharingPolicy (which pods share GPUs, and how) and GPUNodeConfig (how one node's GPUs are divided)."""

from dataclasses import dataclass, field
from enum import StrEnum

from gpuloom.model.objects import Condition, LabelSelector, ObjectMeta


class SharingStrategy(StrEnum):
    MIG = "mig"
    MPS = "mps"
    TIMESLICING = "timeslicing"


@dataclass(frozen=True, slots=True)
class MpsSettings:
    """For each pod, of one GPU. None: as the node and the pod's request say."""

    max_clients: int | None = None
    thread_percentage: int | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class GpuSharingPolicySpec:
    """`mig_profile` None: the smallest that is enough. `replicas_per_gpu` belongs to time slicing."""

    strategy: SharingStrategy
    pods: LabelSelector = field(default_factory=LabelSelector)
    namespaces: LabelSelector = field(default_factory=LabelSelector)
    priority: int = 0
    mig_profile: str | None = None
    mps: MpsSettings = field(default_factory=MpsSettings)
    replicas_per_gpu: int | None = None


@dataclass(frozen=True, slots=True)
class GpuSharingPolicyStatus:
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuSharingPolicy:
    meta: ObjectMeta
    spec: GpuSharingPolicySpec
    status: GpuSharingPolicyStatus = field(default_factory=GpuSharingPolicyStatus)


class MigStage(StrEnum):
    GPU_DISCOVERED = "GPUDiscovered"
    MIG_ENABLED = "MIGEnabled"
    PARTITION_CREATED = "PartitionCreated"
    AVAILABLE = "Available"
    ALLOCATED = "Allocated"
    IN_USE = "InUse"
    PARTITION_DESTROYED = "PartitionDestroyed"


STAGES_OF_INSTANCES = (
    MigStage.PARTITION_CREATED,
    MigStage.AVAILABLE,
    MigStage.ALLOCATED,
    MigStage.IN_USE,
    MigStage.PARTITION_DESTROYED,
)


@dataclass(frozen=True, slots=True)
class GpuNodeConfigSpec:
    """A switch that is None leaves things as they are; no profiles: as demand asks."""

    node_name: str
    mig_enabled: bool | None = None
    mig_profiles: tuple[str, ...] = ()
    mps_enabled: bool | None = None
    mps_max_clients: int | None = None
    time_slicing_enabled: bool | None = None
    time_slicing_replicas: int | None = None


@dataclass(frozen=True, slots=True)
class InstanceState:
    profile: str
    start: int
    stage: MigStage


@dataclass(frozen=True, slots=True)
class DividedGpu:
    uuid: str
    stage: MigStage
    instances: tuple[InstanceState, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuNodeConfigStatus:
    gpus: tuple[DividedGpu, ...] = ()
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuNodeConfig:
    meta: ObjectMeta
    spec: GpuNodeConfigSpec
    status: GpuNodeConfigStatus = field(default_factory=GpuNodeConfigStatus)
