"""Nodes with whole cards, the pods on them, and pods that want a place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuloom.model.request import PodRequest
from gpuloom.names import RESOURCE_GPU_MILLI
from gpuloom.placement.constraints.objects import (
    CPU,
    PODS,
    NodeUse,
    SchedulableNode,
    SchedulablePod,
)
from gpuloom.placement.gangs.sites import Member, Site
from gpuloom.placement.gangs.victims import Victim
from tests.unit.placement.builders import a_card, a_node, whole

MILLI_A_CARD = 1000


def a_wanting_pod(
    name: str, cards: int = 1, *, priority: int = 0, labels: Mapping[str, str] | None = None, cpu: int = 100
) -> SchedulablePod:
    return SchedulablePod(
        uid=f"uid-{name}",
        namespace="default",
        name=name,
        priority=priority,
        requests={RESOURCE_GPU_MILLI: cards * MILLI_A_CARD, CPU: cpu},
        node_selector={},
        required_terms=None,
        tolerations=(),
        labels=dict(labels or {}),
    )


def a_member(name: str, cards: int = 1, request: PodRequest | None = None, **pod: object) -> Member:
    return Member(a_wanting_pod(name, cards, **pod), request or whole(cards))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Tenancy:
    """A pod on a node: how many of its cards it has."""

    victim: Victim
    cards: int


def a_tenant(
    name: str,
    node: str,
    cards: int = 1,
    *,
    priority: int = 0,
    gang: str = "",
    usd: int = 0,
    labels: Mapping[str, str] | None = None,
) -> Tenancy:
    pod = a_wanting_pod(name, cards, priority=priority, labels=labels)
    return Tenancy(Victim(pod, node, lost_nano_usd=usd, gang=gang), cards)


def a_site(
    name: str,
    cards: int = 8,
    tenants: Sequence[Tenancy] = (),
    *,
    labels: Mapping[str, str] | None = None,
    cpu: int = 64_000,
) -> Site:
    """The tenants have its first cards."""
    used = sum(tenant.cards for tenant in tenants)
    view = a_node(*(a_card(i, 0 if i < used else 1000) for i in range(cards)), name=name)
    pods = tuple(tenant.victim.pod for tenant in tenants)
    requested = {
        RESOURCE_GPU_MILLI: used * MILLI_A_CARD,
        CPU: sum(pod.requests.get(CPU, 0) for pod in pods),
    }
    node = SchedulableNode(
        name, dict(labels or {}), (), False, {RESOURCE_GPU_MILLI: cards * MILLI_A_CARD, CPU: cpu, PODS: 110}
    )
    return Site(node, view, NodeUse(requested, len(pods)), pods)


class Cluster:
    """Nodes by name with their tenants, and what they are like without some of them."""

    def __init__(self, cards: Mapping[str, int], tenants: Sequence[Tenancy]) -> None:
        self.cards = cards
        self.tenants = tenants

    @property
    def sites(self) -> dict[str, Site]:
        return {name: self._site(name, frozenset()) for name in self.cards}

    def without(self, name: str, uids: frozenset[str]) -> Site | None:
        return self._site(name, uids)

    def _site(self, name: str, uids: frozenset[str]) -> Site:
        there = [
            each for each in self.tenants if each.victim.node_name == name and each.victim.uid not in uids
        ]
        return a_site(name, self.cards[name], there)


def tainted(site: Site) -> Site:
    return replace(site, node=replace(site.node, unschedulable=True))
