"""Who owns which device, and what was decided about a pod: what the extender shows of itself."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.node import PodRef


class EntryState(StrEnum):
    """Why a device counts as taken."""

    IN_FLIGHT = "in-flight"
    OBSERVED = "observed"
    RELEASING = "releasing"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One owner on one node. `devices` None: it may hold any device of the node, which is closed."""

    pod: PodRef
    node_name: str
    node_uid: str
    state: EntryState
    devices: tuple[AllocatedDevice, ...] | None
    advisory: bool = False


class Verdict(StrEnum):
    BOUND = "bound"
    REFUSED = "refused"
    BIND_FAILED = "bind-failed"


@dataclass(frozen=True, slots=True)
class NodeScore:
    """How good a node was for a pod when it was chosen; all are 0 to 100, and `total` ranks."""

    node_name: str
    total: float
    topology: float
    resource: float
    balance: float


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one pod. `node_name` is empty when every node refused.

    `scores` are of the chosen node, then of the best of those it was preferred to.
    """

    time: datetime
    pod: PodRef
    verdict: Verdict
    node_name: str = ""
    devices: tuple[AllocatedDevice, ...] = ()
    reason: str = ""
    scores: tuple[NodeScore, ...] = ()
