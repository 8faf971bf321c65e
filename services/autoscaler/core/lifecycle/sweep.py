"""Claims against machines: what to record, ask for, end or forget next. The two-way garbage collection.

A sweep reads everything of one cloud at one time and decides bounded steps, each of which may be repeated
after a crash: a machine is asked for by the claim's token, or by a size of the group that is counted from
machines and claims, never by adding one. A machine without a claim is adopted, a claim without a machine is
given up, and a machine of a claim that is over is ended: if it is a node that was not drained, its claim
begins again instead.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuloom.model.claims import ClaimState, GpuNodeClaim, GpuNodeClaimStatus
from services.autoscaler.core.lifecycle import claims as life
from services.autoscaler.core.lifecycle.claims import NodeFact, Timeouts
from services.autoscaler.core.lifecycle.machines import (
    CloudView,
    Group,
    Instance,
    InstanceState,
    LaunchFailure,
    Order,
)


@dataclass(frozen=True, slots=True)
class Record:
    """Write this status to the claim."""

    claim: GpuNodeClaim
    status: GpuNodeClaimStatus


@dataclass(frozen=True, slots=True)
class Ask:
    """Send the order. Where the cloud refuses, `claim` is the one that is given up."""

    claim: GpuNodeClaim
    order: Order


@dataclass(frozen=True, slots=True)
class End:
    claim: GpuNodeClaim
    instance: Instance


@dataclass(frozen=True, slots=True)
class Shrink:
    """The group wants more machines than there are claims for."""

    group: str
    size: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """Make a claim of this name for a machine that nobody asked for here."""

    name: str
    instance: Instance


@dataclass(frozen=True, slots=True)
class Forget:
    """The claim has told its end long enough."""

    claim: GpuNodeClaim


Step = Record | Ask | End | Shrink | Adopt | Forget


@dataclass(frozen=True, slots=True)
class Seen:
    """What a sweep decides on. `drained`: claims whose nodes hold nothing any more that must be moved."""

    view: CloudView
    claims: Sequence[GpuNodeClaim]
    nodes: Mapping[str, NodeFact]
    """By provider id in lower case: Azure spells it in several ways."""
    now: datetime
    drained: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    """Claims that somebody has deleted: their machines go before they do."""
    timeouts: Timeouts = field(default_factory=Timeouts)


def sweep(seen: Seen) -> list[Step]:
    """The next steps, in an order in which each may be the last one that is carried out."""
    pairs = _Pairs(seen)
    steps: list[Step] = []
    for claim in seen.claims:
        step = None if _is_unknown(claim, seen) else _step_of(claim, pairs, seen)
        if step is not None:
            steps.append(step)
    ended = {step.instance.instance_id for step in steps if isinstance(step, End)}
    for group in seen.view.groups:
        steps.extend(_size_steps(group, pairs, seen, ended))
    if not seen.view.groups and not seen.view.unread:
        steps.extend(_asks_by_token(seen))
    steps.extend(Adopt(adopted_name(one), one) for one in pairs.unclaimed)
    return steps


def adopted_name(instance: Instance) -> str:
    """Always the same for one machine, so that it is adopted once."""
    digest = hashlib.sha256(instance.provider_id.lower().encode()).hexdigest()[:8]
    return life.claim_name(instance.pool, digest)


class _Pairs:
    """Which machine is whose. Of a group that keeps no tokens the oldest claim gets the oldest machine."""

    def __init__(self, seen: Seen) -> None:
        self.by_claim: dict[str, Instance] = {}
        self.is_new: set[str] = set()
        self._by_id = {one.instance_id: one for one in seen.view.instances}
        self._by_token = {_token_of(one): one for one in seen.view.instances}
        for claim in seen.claims:
            self._known(claim)
        taken = {one.instance_id for one in self.by_claim.values()}
        free = [one for one in seen.view.instances if one.instance_id not in taken]
        self.unclaimed = [one for one in free if one.state is not InstanceState.ENDING]
        for group in seen.view.groups:
            self._pair_group(group, seen.claims)

    def waiting(self, group: Group, claims: Iterable[GpuNodeClaim]) -> list[GpuNodeClaim]:
        """Claims of this group that have no machine yet, oldest first."""
        found = [
            one
            for one in claims
            if one.spec.pool_name == group.pool
            and one.status.instance_id is None
            and one.status.state in {None, ClaimState.REQUESTED}
            and one.meta.name not in self.by_claim
        ]
        return sorted(found, key=_age)

    def _known(self, claim: GpuNodeClaim) -> None:
        known = self._by_id.get(claim.status.instance_id or "")
        if known is None and claim.status.instance_id is None:
            known = self._by_token.get(claim.spec.token)
            if known is not None and life.is_live(claim):
                self.is_new.add(claim.meta.name)
        if known is not None:
            self.by_claim[claim.meta.name] = known

    def _pair_group(self, group: Group, claims: Sequence[GpuNodeClaim]) -> None:
        free = sorted((one for one in self.unclaimed if one.group == group.name), key=_seniority)
        for claim, instance in zip(self.waiting(group, claims), free, strict=False):
            self.by_claim[claim.meta.name] = instance
            self.is_new.add(claim.meta.name)
            self.unclaimed.remove(instance)


def _step_of(claim: GpuNodeClaim, pairs: _Pairs, seen: Seen) -> Step | None:
    instance = pairs.by_claim.get(claim.meta.name)
    status, now = claim.status, seen.now
    if claim.meta.name in pairs.is_new and instance is not None:
        return Record(claim, life.launched(status, instance, now))
    if status.state is None:
        return Record(claim, life.requested(now, status.price_nano_usd_per_hour))
    if status.state is ClaimState.GONE:
        return _after_the_end(claim, instance, seen)
    if status.state is ClaimState.DRAINING:
        return _draining_step(claim, instance, seen)
    if claim.meta.name in seen.deleted:
        return Record(claim, _deleted(status, now))
    return _growing_step(claim, instance, seen)


def _is_unknown(claim: GpuNodeClaim, seen: Seen) -> bool:
    """Whether only its group could tell of its machine, and can't be read. One that waits for a machine
    times out all the same, and gives way to other pools."""
    has_machine = claim.status.instance_id is not None or claim.status.state is ClaimState.GONE
    return has_machine and claim.spec.pool_name in seen.view.unread


def _growing_step(claim: GpuNodeClaim, instance: Instance | None, seen: Seen) -> Step | None:
    status, now = claim.status, seen.now
    if status.state is ClaimState.REQUESTED:
        return _waiting_step(claim, seen)
    if instance is None:
        return _unlisted_step(claim, seen)
    node, is_launched = seen.nodes.get(instance.provider_id.lower()), status.state is ClaimState.LAUNCHED
    # Of what is a node its kubelet and its GPUs tell, not how its launch went.
    if node is None:
        if is_launched and _may_be_a_node(claim, instance, seen):
            return None
        failure = _failure_of(instance, seen.view.failures) if is_launched else None
        if failure is not None:
            return Record(claim, _given_up(claim, failure, now))
    following = life.next_status(claim, instance, node, now, seen.timeouts)
    return None if following is None else Record(claim, following)


def _may_be_a_node(claim: GpuNodeClaim, instance: Instance, seen: Seen) -> bool:
    """Whether a machine that was there already may serve as a node that does not say so: where no node has
    a provider id of this cloud, none of them can be told from those that never joined."""
    adopted = claim.spec.token == instance.instance_id
    scheme, _, _ = instance.provider_id.lower().partition("://")
    return adopted and not any(known.startswith(f"{scheme}://") for known in seen.nodes)


def _draining_step(claim: GpuNodeClaim, instance: Instance | None, seen: Seen) -> Step | None:
    if instance is None:
        return _unlisted_step(claim, seen)
    if claim.meta.name not in seen.drained or instance.state is InstanceState.ENDING:
        return None
    node = seen.nodes.get(instance.provider_id.lower())
    if node is not None and claim.status.node_name is None:
        # It joined after it was given up, so that nobody has drained it.
        return Record(claim, replace(claim.status, node_name=node.name))
    return End(claim, instance)


def _unlisted_step(claim: GpuNodeClaim, seen: Seen) -> Step | None:
    status, now = claim.status, seen.now
    why = seen.view.why_unknown(claim.spec.pool_name)
    following: GpuNodeClaimStatus | None
    if why and _may_be_there(claim, seen):
        following = life.not_known(claim, why, now)
    elif status.state is ClaimState.DRAINING and (
        status.instance_id is None or claim.meta.name in seen.drained
    ):
        following = life.drained(status, now)
    else:
        following = life.without_machine(claim, now, seen.timeouts)
    return None if following is None else Record(claim, following)


def _may_be_there(claim: GpuNodeClaim, seen: Seen) -> bool:
    """Where no cloud tells, its node does, and what was launched lately may still become one."""
    launched = life.condition_of(claim, life.CONDITION_LAUNCHED)
    known = {claim.status.node_name, None if launched is None else launched.message.lower()}
    if any(node.name in known or provider_id in known for provider_id, node in seen.nodes.items()):
        return True
    is_young = claim.status.launched is not None and (
        (seen.now - claim.status.launched).total_seconds() < seen.timeouts.register_s
    )
    return claim.status.state is ClaimState.LAUNCHED and is_young


def _after_the_end(claim: GpuNodeClaim, instance: Instance | None, seen: Seen) -> Step | None:
    """A machine that came after its claim was given up is nobody's, and costs. One that is a node has pods,
    and goes as any other node: drained."""
    if instance is not None and instance.state is InstanceState.ENDING:
        return None
    if instance is not None:
        is_node = instance.provider_id.lower() in seen.nodes or _may_be_a_node(claim, instance, seen)
        if life.was_drained(claim) or not is_node:
            return End(claim, instance)
        return Record(claim, life.begun_again(claim.status, instance, seen.now))
    ended = claim.status.gone
    if (
        ended is None
        or claim.meta.name in seen.deleted
        or (seen.now - ended).total_seconds() >= seen.timeouts.keep_gone_s
    ):
        return Forget(claim)
    return None


def _deleted(status: GpuNodeClaimStatus, now: datetime) -> GpuNodeClaimStatus:
    text = "the claim was deleted"
    drained = life.draining(status, "Deleted", text, now)
    return life.gone(drained, now) if status.instance_id is None else drained


def _waiting_step(claim: GpuNodeClaim, seen: Seen) -> Record | None:
    group, asked, now = seen.view.group_of_pool(claim.spec.pool_name), claim.status.requested, seen.now
    for failure in seen.view.failures if group is not None else ():
        # One that names no machine tells of the group, and only what came after the request counts.
        told_now = failure.at is None or (asked is not None and failure.at >= asked)
        if group is not None and failure.group == group.name and not failure.instance_id and told_now:
            return Record(claim, _given_up(claim, failure, now))
    timeout_s = seen.timeouts.launch_s
    if asked is None or (now - asked).total_seconds() < timeout_s:
        return None
    text = f"no machine came within {timeout_s:g} s, and the cloud did not say why"
    return Record(
        claim, life.failed(claim.status, life.CONDITION_LAUNCHED, life.REASON_NOT_LAUNCHED, text, now)
    )


def _given_up(claim: GpuNodeClaim, failure: LaunchFailure, now: datetime) -> GpuNodeClaimStatus:
    reason = life.REASON_OF_FAILURE[failure.kind]
    return life.failed(claim.status, life.CONDITION_LAUNCHED, reason, failure.message, now)


def _size_steps(group: Group, pairs: _Pairs, seen: Seen, ended: AbstractSet[str]) -> list[Step]:
    """A size for the group, counted anew from what is there and what waits. `ended`: machines whose end goes
    before, and with each its place in the group."""
    waiting = [
        claim
        for claim in pairs.waiting(group, seen.claims)
        # Recorded as requested first, so that a time-out counts from before the first call.
        if claim.status.state is ClaimState.REQUESTED and _waiting_step(claim, seen) is None
    ]
    machines = [one for one in seen.view.instances if one.group == group.name]
    live = [one for one in machines if one.state is not InstanceState.ENDING and one.instance_id not in ended]
    size = max(len(live) + len(waiting), group.min_size)
    if size > group.desired and waiting:
        return [Ask(waiting[-1], _order(waiting[-1], group.name, size))]
    # While machines end, the cloud itself is lowering the size.
    if size < group.desired and len(live) == len(machines) and not _is_unsettled(group, seen):
        return [Shrink(group.name, size)]
    return []


def _is_unsettled(group: Group, seen: Seen) -> bool:
    """Whether a claim of the group is about to count among those that wait, or no more, or has a machine that
    is not listed: a list may leave one out, also one that has just come, and of a smaller group the cloud
    would choose which machine ends."""
    listed = {one.instance_id for one in seen.view.instances}
    return any(
        claim.status.state is None or _is_missing(claim, listed) or _is_given_up_now(claim, seen)
        for claim in seen.claims
        if claim.spec.pool_name == group.pool
    )


def _is_missing(claim: GpuNodeClaim, listed: AbstractSet[str]) -> bool:
    """One that the cloud said it takes back is gone, not missing."""
    known, is_over = claim.status.instance_id, claim.status.state is ClaimState.GONE
    return known is not None and known not in listed and not is_over and not life.has_notice(claim)


def _is_given_up_now(claim: GpuNodeClaim, seen: Seen) -> bool:
    return claim.status.state is ClaimState.REQUESTED and _waiting_step(claim, seen) is not None


def _asks_by_token(seen: Seen) -> list[Step]:
    known = {_token_of(one) for one in seen.view.instances}
    return [
        Ask(claim, _order(claim, "", 0))
        for claim in seen.claims
        if claim.status.state is ClaimState.REQUESTED
        and claim.status.instance_id is None
        and claim.spec.token not in known
        and _waiting_step(claim, seen) is None
    ]


def _token_of(instance: Instance) -> str:
    """Where its cloud keeps none, that of the claim by which it is adopted."""
    return instance.token or instance.instance_id


def _order(claim: GpuNodeClaim, group: str, size: int) -> Order:
    offering = claim.spec.offering
    return Order(
        token=claim.spec.token,
        pool=claim.spec.pool_name,
        instance_type=offering.instance_type,
        capacity_type=offering.capacity_type,
        zone=offering.zone,
        group=group,
        size=size,
    )


def _failure_of(instance: Instance, failures: Iterable[LaunchFailure]) -> LaunchFailure | None:
    return next((one for one in failures if one.instance_id == instance.instance_id), None)


def _age(claim: GpuNodeClaim) -> tuple[bool, float, str]:
    asked = claim.status.requested
    return (asked is None, 0.0 if asked is None else asked.timestamp(), claim.meta.name)


def _seniority(instance: Instance) -> tuple[float, str]:
    launched = instance.launched_at
    return (0.0 if launched is None else launched.timestamp(), instance.instance_id)
