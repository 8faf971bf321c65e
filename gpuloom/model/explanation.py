"""Why a pod is where it is, and where replicas of it would go: what `explain` and `whatif` answer."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.ledger import Decision
from gpuloom.model.node import PodRef


class PodStanding(StrEnum):
    """FITS and REFUSED: it has no node yet, and one or none would take it.

    OTHER_SCHEDULER: it has none yet, and the scheduler that it names does not ask us.
    """

    UNMANAGED = "unmanaged"
    BOUND = "bound"
    ENDED = "ended"
    FITS = "fits"
    REFUSED = "refused"
    OTHER_SCHEDULER = "other-scheduler"


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """`resolvable`: evicting pods could change it."""

    reason: str
    node_count: int
    resolvable: bool


@dataclass(frozen=True, slots=True)
class NearMiss:
    """`has` says what the node has of what is asked for."""

    node_name: str
    has: str


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the pod with which that many nodes would take it; `node_name` is the best of them."""

    change: str
    node_count: int
    node_name: str


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node would give, and how good it is. Scores are 0 to 100; `total` is what ranks nodes."""

    node_name: str
    devices: tuple[AllocatedDevice, ...]
    total: float
    topology: float
    resource: float
    balance: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """What all nodes say about one request. `near_misses` and `changes` are empty if one would take it."""

    node_count: int
    fitting_count: int
    offers: tuple[Offer, ...] = ()
    reasons: tuple[ReasonCount, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class QuarantineNotice:
    """Until when a workload is not tried, after how many failed binds in a row."""

    until: datetime
    failures: int
    whole_controller: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """`problem`: why no node may have the pod, whatever its devices; `warnings`: what is odd about it.

    `keeping`: how a bound pod's part of its devices is kept.

    There is a judgement for a pod that waits for a node, unless its request has no meaning.
    """

    pod: PodRef
    standing: PodStanding
    request: str = ""
    problem: str = ""
    node_name: str = ""
    devices: tuple[AllocatedDevice, ...] = ()
    judgement: Judgement | None = None
    quarantine: QuarantineNotice | None = None
    decisions: tuple[Decision, ...] = ()
    note: str = ""
    warnings: tuple[str, ...] = ()
    keeping: str = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Where replicas would go, one after the other. `judgement` is of the first that does not fit.

    `request` is empty for a pod that asks for nothing that we manage.
    """

    replicas: int
    request: str = ""
    problem: str = ""
    placed: tuple[Offer, ...] = ()
    judgement: Judgement | None = None
    note: str = ""
