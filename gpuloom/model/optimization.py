"""What the optimizer says of workloads. Every answer carries how sure it is and on what it stands."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuloom.model.node import PodRef


class WorkloadClass(StrEnum):
    UNKNOWN = "unknown"
    TRAINING = "training"
    INFERENCE = "inference"
    INTERACTIVE = "interactive"
    BATCH = "batch"
    IDLE = "idle"


class ClassSource(StrEnum):
    NONE = "none"
    LABEL = "label"
    MODEL = "model"
    RULES = "rules"


@dataclass(frozen=True, slots=True)
class Classification:
    """`confidence` is 0 where no class is likely enough; `probabilities` are by the model alone."""

    workload_class: WorkloadClass = WorkloadClass.UNKNOWN
    confidence: float = 0.0
    source: ClassSource = ClassSource.NONE
    reason: str = ""
    probabilities: tuple[tuple[WorkloadClass, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Quantity:
    """`high` suffices for nine of ten runs."""

    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """`runs` and `basis`: how many runs this stands on, and whose. `reason`: why nothing is predicted."""

    memory_mib: Quantity | None = None
    utilization: Quantity | None = None
    duration_s: Quantity | None = None
    runs: int = 0
    basis: str = "none"
    smallest_fit: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeHints:
    """By node name, from -1 (avoid) to 1 (prefer); a node that is not there is judged as it is."""

    points: tuple[tuple[str, float], ...] = ()
    confidence: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WasteParts:
    idle: float = 0.0
    oversized: float = 0.0
    wrong_kind: float = 0.0
    sharable: float = 0.0

    @property
    def score(self) -> float:
        return min(100.0, self.idle + self.oversized + self.wrong_kind + self.sharable)


@dataclass(frozen=True, slots=True)
class PodWaste:
    """`recommended` is empty if nothing better is known; `saving_nano_usd` (a month) None without a price."""

    pod: PodRef
    owner: str
    parts: WasteParts
    now: str
    workload_class: WorkloadClass = WorkloadClass.UNKNOWN
    utilization_ratio: float | None = None
    recommended: str = ""
    saving_nano_usd: int | None = None
    confidence: float = 0.0
    reason: str = ""
    since: datetime | None = None

    @property
    def score(self) -> float:
        return self.parts.score


@dataclass(frozen=True, slots=True)
class WasteReport:
    """Worst first. `problem`: why nothing can be said now."""

    pods: tuple[PodWaste, ...] = ()
    observed_pods: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AppliedRecommendation:
    applied_at: datetime
    before: str
    after: str
    expected_nano_usd: int | None = None
    actual_nano_usd: int | None = None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """`yaml` is a strategic merge patch of `target`, or the manifest of a new object of that name."""

    waste: PodWaste
    target: str = ""
    is_patch: bool = False
    yaml: str = ""
    hours_per_month: int = 720
    applied: tuple[AppliedRecommendation, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class PodAdvice:
    """What a pod that is about to be created should ask for: what is empty or 0 is not advised.

    `utilization_ratio` is the mean of its kind, of a whole GPU. `mig_profile` is of our own nodes,
    `plugin_resource` of NVIDIA's plugin; `milli` with `memory_mib` is a share.
    """

    utilization_ratio: float | None = None
    mig_profile: str = ""
    plugin_resource: str = ""
    milli: int = 0
    memory_mib: int = 0
    confidence: float = 0.0
    runs: int = 0
    basis: str = "none"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ProfileSummary:
    signature: str
    namespace: str
    owner_kind: str
    name_stem: str
    image: str
    request: str
    runs: int
    running: int
    utilization_median: float | None = None
    memory_mib_high: float | None = None
    duration_s_median: float | None = None
    power_w_median: float | None = None
    workload_class: WorkloadClass = WorkloadClass.UNKNOWN
