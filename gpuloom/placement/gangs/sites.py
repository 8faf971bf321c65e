"""What planning works on: nodes with their pods, pods that want a place, and steps between which others run.

Values only; decides nothing but what a node is like once a pod has been placed there.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.request import PodRequest
from gpuloom.placement.constraints.filters import refusals
from gpuloom.placement.constraints.neighbours import Neighbours
from gpuloom.placement.constraints.objects import Amounts, NodeUse, SchedulableNode, SchedulablePod
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Refusal
from gpuloom.placement.occupancy.taken import with_taken
from gpuloom.placement.score import Scored, evaluate

SITES_A_STEP = 32

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""Work that yields after every short piece, so that whoever runs it can let others run in between."""

Judge = Callable[[PodRequest], Callable[[NodeView], Scored | Refusal]]
"""Fit and score of a request on any node."""


@dataclass(frozen=True, slots=True)
class Site:
    """A node as a planner sees it. `pods` are those on it that others may mind."""

    node: SchedulableNode
    view: NodeView
    use: NodeUse
    pods: tuple[SchedulablePod, ...] = ()

    @property
    def name(self) -> str:
        return self.view.name

    def with_pod(self, member: "Member", devices: Sequence[AllocatedDevice]) -> "Site":
        """The node after this pod has come."""
        return replace(
            self,
            view=with_taken(self.view, member.request, devices),
            use=NodeUse(_sum(self.use.requested, member.pod.requests), self.use.pods + 1),
            pods=(*self.pods, member.pod),
        )


@dataclass(frozen=True, slots=True)
class Member:
    """A pod that wants a place. `avoid` are names of nodes that kube-scheduler was seen not to offer it."""

    pod: SchedulablePod
    request: PodRequest
    avoid: frozenset[str] = frozenset()

    @property
    def uid(self) -> str:
        return self.pod.uid

    def is_like(self, other: "Member") -> bool:
        """Whether a node with room for one has it for the other, neighbours and `avoid` aside."""
        mine, theirs = self.pod, other.pod
        return (
            self.request == other.request
            and mine.requests == theirs.requests
            and mine.node_selector == theirs.node_selector
            and mine.required_terms == theirs.required_terms
            and mine.tolerations == theirs.tolerations
        )


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of one pod."""

    uid: str
    node_name: str
    devices: tuple[AllocatedDevice, ...]


def neutral_judge(request: PodRequest) -> Callable[[NodeView], Scored | Refusal]:
    return lambda view: evaluate(request, view)


def in_tree_refusals(member: Member, site: Site) -> tuple[str, ...]:
    """Why kube-scheduler's own filters would not offer this node, apart from the pods of other nodes."""
    return refusals(member.pod, site.node, site.use)


def neighbours_of(pod: SchedulablePod, sites: Sequence[Site]) -> Neighbours:
    return Neighbours(pod, [(site.node, [other for other in site.pods if other != pod]) for site in sites])


def minded(pod: SchedulablePod, sites: Iterable[Site]) -> Steps[list[Site]]:
    """The nodes with those pods alone that this one minds, or that may mind it: mostly few of them."""
    selectors = [rule.selector for rule in pod.spread]
    selectors += [term.selector for term in (*pod.affinity, *pod.anti_affinity)]
    found: list[Site] = []
    for count, site in enumerate(sites, 1):
        if count % SITES_A_STEP == 0:
            yield
        pods = tuple(
            other
            for other in site.pods
            if other.anti_affinity
            or any(each is not None and each.matches(other.labels) for each in selectors)
        )
        found.append(site if len(pods) == len(site.pods) else replace(site, pods=pods))
    return found


def completed(steps: Steps[Result]) -> Result:
    """The result, without letting anybody run in between."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Result = done.value
            return result


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {*one, *other}}
