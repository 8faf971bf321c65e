"""One claim's way from a wish to a machine and its end: which state comes next, and when to give up.

Requested → Launched (the cloud shows a machine) → Registered (the node is there) → GPUReady (it offers its
GPUs) → Draining → Gone. A state never goes back, unless a machine that was given up turns out to be a node:
its claim begins again. Everything that a later decision needs is on the claim itself, so that a crash at any
step forgets nothing.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuloom.model.claims import ClaimState, GpuNodeClaim, GpuNodeClaimStatus
from gpuloom.model.objects import Condition, ConditionStatus
from gpuloom.model.policies import CapacityType
from services.autoscaler.core.lifecycle.machines import FailureKind, Instance

CONDITION_LAUNCHED = "Launched"
CONDITION_GPU_READY = "GPUReady"
CONDITION_INTERRUPTED = "Interrupted"
CONDITION_DRAINED = "Drained"
CONDITION_LISTED = "Listed"
"""False since a cloud's list left the machine out, so that one such list ends nothing. Unknown while nobody
lists the machines of its pool."""

REASON_OF_FAILURE = {
    FailureKind.CAPACITY: "NoCapacity",
    FailureKind.QUOTA: "QuotaExceeded",
    FailureKind.CONFIGURATION: "Misconfigured",
    FailureKind.THROTTLED: "Throttled",
    FailureKind.UNKNOWN: "NotAnswered",
}
REASON_NOT_LAUNCHED = "NotLaunchedInTime"
REASON_NOT_REGISTERED = "NotRegisteredInTime"
REASON_NO_GPUS = "NoGPUsInTime"
REASON_LOST = "MachineLost"

LIVE = frozenset(
    {None, ClaimState.REQUESTED, ClaimState.LAUNCHED, ClaimState.REGISTERED, ClaimState.GPU_READY}
)
"""States in which a claim's GPUs count as there or upcoming."""
UPCOMING = LIVE - {ClaimState.GPU_READY}


@dataclass(frozen=True, slots=True)
class Timeouts:
    launch_s: float = 300.0
    """A request without a machine. A cloud that does not say why is taken to have no capacity."""
    register_s: float = 900.0
    """A machine without a node."""
    gpu_s: float = 600.0
    """A node without its GPUs: a driver takes minutes, a missing one for ever."""
    missing_s: float = 60.0
    """A machine that the cloud has not listed for so long is gone: one list may leave it out."""
    keep_gone_s: float = 86_400.0
    """How long an ended claim tells what became of it: interruptions are counted over a day."""


@dataclass(frozen=True, slots=True)
class NodeFact:
    """What is known of a machine's node. `gpus`: how many it offers now; 0 while its driver loads, and while
    nobody tells. `busy`: pods with GPUs are on it all the same."""

    name: str
    provider_id: str
    ready: bool
    gpus: int
    uid: str = ""
    busy: bool = False


def claim_name(pool: str, suffix: str) -> str:
    """Of at most 63 characters, because other claims name it in a label."""
    return f"{pool[: 62 - len(suffix)].rstrip('-')}-{suffix}"


def state_of(claim: GpuNodeClaim) -> ClaimState:
    return claim.status.state or ClaimState.REQUESTED


def is_live(claim: GpuNodeClaim) -> bool:
    return claim.status.state in LIVE


def next_status(
    claim: GpuNodeClaim, instance: Instance, node: NodeFact | None, now: datetime, timeouts: Timeouts
) -> GpuNodeClaimStatus | None:
    """What to record of a claim that has a machine, given what is seen of it; None: nothing new."""
    status, listed = claim.status, condition_of(claim, CONDITION_LISTED)
    if listed is not None and listed.status is not ConditionStatus.TRUE:
        return with_condition(status, CONDITION_LISTED, True, "ListedAgain", instance.provider_id, now=now)
    if status.state is ClaimState.LAUNCHED:
        return _of_launched(status, node, now, timeouts)
    if status.state is ClaimState.REGISTERED:
        return _of_registered(claim, node, now, timeouts)
    return None


def requested(now: datetime, price_nano_usd_per_hour: int | None = None) -> GpuNodeClaimStatus:
    return GpuNodeClaimStatus(
        state=ClaimState.REQUESTED, requested=now, price_nano_usd_per_hour=price_nano_usd_per_hour
    )


def launched(status: GpuNodeClaimStatus, instance: Instance, now: datetime) -> GpuNodeClaimStatus:
    changed = replace(
        status,
        state=ClaimState.LAUNCHED,
        instance_id=instance.instance_id,
        launched=now,
        requested=status.requested or now,
    )
    return with_condition(changed, CONDITION_LAUNCHED, True, "Launched", instance.provider_id, now=now)


def draining(status: GpuNodeClaimStatus, reason: str, message: str, now: datetime) -> GpuNodeClaimStatus:
    changed = replace(status, state=ClaimState.DRAINING, draining=status.draining or now)
    return with_condition(changed, CONDITION_DRAINED, False, reason, message, now=now)


def gone(status: GpuNodeClaimStatus, now: datetime) -> GpuNodeClaimStatus:
    return replace(status, state=ClaimState.GONE, gone=now)


def drained(status: GpuNodeClaimStatus, now: datetime) -> GpuNodeClaimStatus:
    """Gone as it was meant to be. Of a node that was never known nobody can say that it was drained."""
    told = next((one for one in status.conditions if one.type == CONDITION_DRAINED), None)
    if told is not None and status.node_name is not None:
        status = with_condition(status, CONDITION_DRAINED, True, told.reason, told.message, now=now)
    return gone(status, now)


def was_drained(claim: GpuNodeClaim) -> bool:
    told = condition_of(claim, CONDITION_DRAINED)
    return told is not None and told.status is ConditionStatus.TRUE


def begun_again(status: GpuNodeClaimStatus, instance: Instance, now: datetime) -> GpuNodeClaimStatus:
    """As of a machine that is adopted: what its claim said before was wrong."""
    return launched(requested(now, status.price_nano_usd_per_hour), instance, now)


def failed(
    status: GpuNodeClaimStatus, condition: str, reason: str, message: str, now: datetime
) -> GpuNodeClaimStatus:
    """It is given up: without a machine at once, else by draining what may never have run anything."""
    told = with_condition(status, condition, False, reason, message, now=now)
    return gone(told, now) if status.instance_id is None else draining(told, reason, message, now)


def with_condition(
    status: GpuNodeClaimStatus, kind: str, holds: bool | None, reason: str, message: str, *, now: datetime
) -> GpuNodeClaimStatus:
    """`holds` None: it is not known."""
    values = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}
    value = values[holds]
    before = next((one for one in status.conditions if one.type == kind), None)
    since = before.last_transition if before is not None and before.status is value else now
    condition = Condition(kind, value, reason, message[:1024], since)
    others = tuple(one for one in status.conditions if one.type != kind)
    return replace(status, conditions=tuple(sorted((*others, condition), key=lambda one: one.type)))


def condition_of(claim: GpuNodeClaim, kind: str) -> Condition | None:
    return next((one for one in claim.status.conditions if one.type == kind), None)


def has_notice(claim: GpuNodeClaim) -> bool:
    """Whether its cloud said that it takes the machine back, and did not think better of it."""
    told = condition_of(claim, CONDITION_INTERRUPTED)
    return told is not None and told.status is ConditionStatus.TRUE


def without_machine(claim: GpuNodeClaim, now: datetime, timeouts: Timeouts) -> GpuNodeClaimStatus | None:
    """At first it is merely not listed; one that the cloud said it takes back is gone at once."""
    status, told = claim.status, condition_of(claim, CONDITION_LISTED)
    if not has_notice(claim):
        if told is None or told.status is not ConditionStatus.FALSE:
            text = "the cloud does not list the machine"
            return with_condition(status, CONDITION_LISTED, False, "NotListed", text, now=now)
        if not _is_over(told.last_transition, timeouts.missing_s, now):
            return None
    text = "the cloud no longer has the machine"
    # Taken back without a notice, or before anybody read it, is an interruption like any other.
    if claim.spec.offering.capacity_type is CapacityType.SPOT and is_live(claim) and not has_notice(claim):
        status = with_condition(status, CONDITION_INTERRUPTED, True, REASON_LOST, text, now=now)
    return gone(with_condition(status, CONDITION_DRAINED, False, REASON_LOST, text, now=now), now)


def not_known(claim: GpuNodeClaim, why: str, now: datetime) -> GpuNodeClaimStatus | None:
    """Nobody tells whether its machine is there, which is not that it is gone."""
    told = condition_of(claim, CONDITION_LISTED)
    if told is not None and told.status is ConditionStatus.UNKNOWN:
        return None
    return with_condition(claim.status, CONDITION_LISTED, None, "NotKnown", why, now=now)


def _of_launched(
    status: GpuNodeClaimStatus, node: NodeFact | None, now: datetime, timeouts: Timeouts
) -> GpuNodeClaimStatus | None:
    if node is not None:
        return replace(status, state=ClaimState.REGISTERED, node_name=node.name, registered=now)
    if not _is_over(status.launched, timeouts.register_s, now):
        return None
    text = f"the machine did not become a node within {timeouts.register_s:g} s"
    return failed(status, CONDITION_GPU_READY, REASON_NOT_REGISTERED, text, now)


def _of_registered(
    claim: GpuNodeClaim, node: NodeFact | None, now: datetime, timeouts: Timeouts
) -> GpuNodeClaimStatus | None:
    status, expected = claim.status, claim.spec.gpu_count
    if node is not None and node.ready and node.gpus >= expected:
        changed = replace(status, state=ClaimState.GPU_READY, gpu_ready=now)
        text = f"{node.gpus} GPUs"
        return with_condition(changed, CONDITION_GPU_READY, True, "GPUsOffered", text, now=now)
    # Where pods use them there are GPUs, and merely nobody who tells: nobody is evicted because of that.
    if not _is_over(status.registered, timeouts.gpu_s, now) or (node is not None and node.busy):
        return None
    offered = 0 if node is None else node.gpus
    text = f"the node offers {offered} of {expected} GPUs after {timeouts.gpu_s:g} s"
    return failed(status, CONDITION_GPU_READY, REASON_NO_GPUS, text, now)


def _is_over(since: datetime | None, after_s: float, now: datetime) -> bool:
    return since is not None and now - since >= timedelta(seconds=after_s)
