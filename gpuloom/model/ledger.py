"""Who owns which device, and what was decided about a pod: what the extender shows of itself."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.claims import HoldOwner
from gpuloom.model.node import NodeMode, PodRef


class EntryState(StrEnum):
    """Why a device counts as taken."""

    IN_FLIGHT = "in-flight"
    OBSERVED = "observed"
    RELEASING = "releasing"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Claim:
    """One owner on one node.

    `devices` None: not known which, so it may be any. `wanted` is the number of devices its request asks
    for, None if that is not known. `confirmed`: the node itself shows these devices as held by this owner.
    `mode` is that in which its devices are given, UNKNOWN if nobody knows or it has none. `unlisted` are
    devices beside them that the kubelet keeps for it and never lists, each by its kind: a MIG profile, or
    empty for a whole GPU. `wanted` is without them. `unreserved`: a kubelet that gives out devices no longer
    counts these as given, though they may be in use.
    """

    pod: PodRef
    state: EntryState
    devices: tuple[AllocatedDevice, ...] | None
    wanted: int | None = None
    advisory: bool = False
    confirmed: bool = False
    problem: str = ""
    mode: NodeMode = NodeMode.UNKNOWN
    unlisted: tuple[str, ...] = ()
    unreserved: bool = False

    @property
    def unaccounted(self) -> bool:
        """Whether a pod holds devices of which neither the ledger nor its node knows who gave them."""
        return self.state is EntryState.HELD and self.mode is NodeMode.UNKNOWN and bool(self.pod.uid)


@dataclass(frozen=True, slots=True)
class HostAccount:
    """CPU, memory and number of pods of a node: what it has for pods in all, and what they use."""

    cpu_total_milli: int
    cpu_used_milli: int
    memory_total_bytes: int
    memory_used_bytes: int
    pods_total: int
    pods_used: int


POD_OWNER = "Pod"
GANG_OWNER = "Gang"
RESERVATION_OWNER = "GPUReservation"


@dataclass(frozen=True, slots=True)
class Hold:
    """Something that is taken out of placement: a device or a part of one, or the whole node if it is None.

    `node_uid` empty: any node of that name; `node_name` empty, too: it may be any. `owner` is for whom: a
    Pod, the pods of a Gang and those that a GPUReservation selects are let through, anybody else's hold lets
    no pod through. `taken_by` is the service that took it, empty if somebody else wrote it. `expires` None:
    when it is deleted. `problem` is why it can't be read in full, if so. `uid` and `version` are those of the
    object in Kubernetes.
    """

    name: str
    node_name: str
    owner: HoldOwner
    reason: str
    node_uid: str = ""
    device: AllocatedDevice | None = None
    taken_by: str = ""
    expires: datetime | None = None
    problem: str = ""
    uid: str = field(default="", compare=False)
    version: str = field(default="", compare=False)

    @property
    def lets_pods_through(self) -> bool:
        return bool(self.lets_through)

    @property
    def lets_through(self) -> str:
        """Whom it lets through, as a key to look it up by; empty: nobody."""
        owner = self.owner
        if self.problem or owner.kind not in (POD_OWNER, GANG_OWNER, RESERVATION_OWNER):
            return ""
        if owner.kind == POD_OWNER and owner.uid:
            return f"uid {owner.uid}"
        return f"{owner.kind.lower()} {owner.namespace}/{owner.name}"

    def is_about(self, node_name: str, node_uid: str) -> bool:
        return self.node_name in ("", node_name) and self.node_uid in ("", node_uid)

    def is_for_pod(self, uid: str, name: str) -> bool:
        """`name` is namespace/name. A hold that names a UID is for that very pod."""
        owner = self.owner
        if self.problem or owner.kind != POD_OWNER:
            return False
        return owner.uid == uid if owner.uid else f"{owner.namespace}/{owner.name}" == name

    def is_for_gang(self, gang: str) -> bool:
        """`gang` is namespace/name, empty for a pod that is in none."""
        owner = self.owner
        is_gang = not self.problem and owner.kind == GANG_OWNER
        return is_gang and bool(gang) and f"{owner.namespace}/{owner.name}" == gang

    def is_for_reservation(self, names: tuple[str, ...]) -> bool:
        """`names` are namespace/name of those that a pod may use."""
        owner = self.owner
        is_reserved = not self.problem and owner.kind == RESERVATION_OWNER
        return is_reserved and f"{owner.namespace}/{owner.name}" in names


@dataclass(frozen=True, slots=True)
class NodeLedger:
    """All that the ledger says of one node: with the node's facts, all that a view of it is made of.

    `vanished` are pods that hold devices there, and that Kubernetes does not have. `account` is None while
    the node's capacity is not known. `closed_reason` is why its owner gives nothing out there, if so.
    """

    node_name: str
    node_uid: str
    claims: tuple[Claim, ...] = ()
    vanished: tuple[PodRef, ...] = ()
    account: HostAccount | None = None
    closed_reason: str = ""
    holds: tuple[Hold, ...] = ()


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
    """How good a node was for a pod when it was chosen; all are 0 to 100, and `total` ranks.

    `hint` are the points in `total` that the optimizer's advice gave or took.
    """

    node_name: str
    total: float
    topology: float
    resource: float
    balance: float
    hint: float = 0.0


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
