"""How far a gang is, from what is seen of its pods and of what is held for them. Pure.

Everything is derived from objects in Kubernetes, so that a new leader comes to the same answer.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpuloom.codec.pod import bound_node, is_terminal
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.model.ledger import Hold
from gpuloom.model.request import PodRequest
from services.scheduler_extender.core.gangs.membership import Membership, membership_of, together

LABEL_JOB_SET = "jobset.sigs.k8s.io/jobset-name"
"""On pods of a JobSet, whose Jobs are each a controller of their own."""


class Phase(StrEnum):
    UNREADABLE = "unreadable"
    """A member says what can't be read, or nobody says how many there are."""
    INCOMPLETE = "incomplete"
    """Some of its pods do not exist yet."""
    GATED = "gated"
    """Somebody else, such as a queue, has not let all of its pods go yet."""
    WAITING = "waiting"
    """It wants places."""
    RESERVED = "reserved"
    """Every pod that is not bound has its place."""
    OVERDUE = "overdue"
    """Its time is over and pods are still not bound: what is bound must leave, unless it is enough."""
    PLACED = "placed"
    """All of its pods are bound, or have done their work, or those that were not are gone."""


@dataclass(slots=True)
class Gang:
    """Its pods by how far they are. `in_flight`: they may be bound or not; `done`: they ended well."""

    name: str
    membership: Membership
    waiting: list[JsonObject] = field(default_factory=list)
    in_flight: list[JsonObject] = field(default_factory=list)
    placed: list[JsonObject] = field(default_factory=list)
    leaving: list[JsonObject] = field(default_factory=list)
    done: list[JsonObject] = field(default_factory=list)

    @property
    def problem(self) -> str:
        return self.membership.problem

    @property
    def size(self) -> int:
        return self.membership.size or 0

    @property
    def present(self) -> int:
        """Pods that ended well count beside those that run, and for pods that replace others of the same run.

        Those that an earlier gang of the same name left behind do not.
        """
        runs = {run_of(pod) for pod in self.waiting} - {""}
        done = [pod for pod in self.done if self.has_begun or run_of(pod) in runs]
        return len(self.alive) + len(done)

    @property
    def unsettled(self) -> list[JsonObject]:
        """Those that have not been seen to be bound."""
        return [*self.waiting, *self.in_flight]

    @property
    def alive(self) -> list[JsonObject]:
        return [*self.waiting, *self.in_flight, *self.placed]

    @property
    def has_begun(self) -> bool:
        """Whether some of it is bound, or may be."""
        return bool(self.placed or self.in_flight)

    @property
    def is_whole(self) -> bool:
        """Whether as many of it are bound, or have done their work, as it needs: others are too many."""
        return 0 < self.size <= self.present - len(self.unsettled)

    @property
    def priority(self) -> int:
        return max((priority_of(pod) for pod in self.alive), default=0)

    @property
    def created(self) -> str:
        """When its last waiting pod came: before, it could not have been placed."""
        return max((str(metadata_of(pod).get("creationTimestamp") or "") for pod in self.waiting), default="")


def gangs_of(pods: Iterable[JsonObject], is_in_flight: Callable[[str], bool]) -> dict[str, Gang]:
    """By name. Pods that ended badly are nobody's members: others are made in their place."""
    gangs: dict[str, Gang] = {}
    said: defaultdict[str, list[Membership]] = defaultdict(list)
    for pod in pods:
        member = membership_of(pod)
        if member is None:
            continue
        gang = gangs.setdefault(member.gang, Gang(member.gang, member))
        # What ended, or leaves, may be of an earlier gang of this name.
        if not is_terminal(pod) and not metadata_of(pod).get("deletionTimestamp"):
            said[member.gang].append(member)
        _sort_in(gang, pod, is_in_flight)
    for name, members in said.items():
        gangs[name].membership = together(name, members)
    return gangs


def run_of(pod: JsonObject) -> str:
    """What made the pod, so that pods of one run are known; empty if nobody did."""
    metadata = metadata_of(pod)
    labels, owners = metadata.get("labels"), metadata.get("ownerReferences")
    job_set = labels.get(LABEL_JOB_SET) if isinstance(labels, dict) else None
    if job_set:
        return f"jobset {job_set}"
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict) and owner.get("controller") is True:
            return str(owner.get("uid") or "")
    return ""


def phase_of(gang: Gang, promised: frozenset[str], overdue: bool) -> Phase:
    """`promised` are UIDs of waiting pods that have all they need."""
    if not gang.unsettled and not (overdue and gang.has_begun):
        return Phase.PLACED
    if overdue and (promised or (gang.has_begun and not gang.is_whole)):
        return Phase.OVERDUE
    return _phase_in_time(gang, promised) if gang.waiting else Phase.RESERVED


def _phase_in_time(gang: Gang, promised: frozenset[str]) -> Phase:
    if gang.problem or not gang.size:
        return Phase.UNREADABLE
    if gang.present < gang.size:
        return Phase.INCOMPLETE
    if any(is_gated(pod) for pod in gang.waiting):
        return Phase.GATED
    return Phase.RESERVED if all(uid_of(pod) in promised for pod in gang.waiting) else Phase.WAITING


def standing_reason(gang: Gang, phase: Phase) -> str:
    """Why its pods may not be bound now; empty if they may."""
    match phase:
        case Phase.UNREADABLE:
            return gang.problem or (
                "nobody says how many pods it has; set gpuloom.dev/gang-size on its pods, or let an indexed "
                "Job or another owner that says so make them"
            )
        case Phase.INCOMPLETE:
            return f"{gang.present} of {gang.size} pods exist"
        case Phase.GATED:
            return "some of its pods have scheduling gates"
        case Phase.WAITING:
            return "it is being planned"
        case Phase.OVERDUE:
            return "it was not bound whole in time; all of it leaves"
        case _:
            return ""


def is_covered(request: PodRequest, holds: Sequence[Hold]) -> bool:
    """Whether these holds, which are one pod's, are all that it needs; a crash may have left a part."""
    if not holds or len({hold.node_name for hold in holds}) > 1:
        return False
    return any(hold.device is None for hold in holds) or len(holds) >= request.gpu.count


def is_gated(pod: JsonObject) -> bool:
    spec = pod.get("spec")
    return isinstance(spec, dict) and bool(spec.get("schedulingGates"))


def priority_of(pod: JsonObject) -> int:
    spec = pod.get("spec")
    priority = spec.get("priority") if isinstance(spec, dict) else None
    return priority if isinstance(priority, int) else 0


def _sort_in(gang: Gang, pod: JsonObject, is_in_flight: Callable[[str], bool]) -> None:
    status = pod.get("status")
    phase = status.get("phase") if isinstance(status, dict) else None
    if is_terminal(pod):
        if phase == "Succeeded":
            gang.done.append(pod)
    elif metadata_of(pod).get("deletionTimestamp"):
        gang.leaving.append(pod)
    elif bound_node(pod):
        gang.placed.append(pod)
    elif is_in_flight(uid_of(pod)):
        gang.in_flight.append(pod)
    else:
        gang.waiting.append(pod)
