"""Nodes as planners see them: the ledger's views beside what kube-scheduler's own filters look at.

Read from the informers only when somebody plans, in short steps; a pod or node that did not change is parsed
once. Pods that were promised a place, or that are being bound, count where they are about to be.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gpuloom.codec.pod import bound_node, is_terminal
from gpuloom.codec.scheduling import schedulable_node, schedulable_pod
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, resource_version_of, uid_of
from gpuloom.model.ledger import Hold
from gpuloom.placement.constraints.objects import NodeUse, SchedulableNode, SchedulablePod
from gpuloom.placement.devices import NodeView
from gpuloom.placement.gangs.sites import Site, Steps
from gpuloom.placement.occupancy.nominations import Asker
from services.scheduler_extender.core.gangs.guard import (
    NO_RESERVATION,
    NOTHING,
    SELF,
    Entitlement,
    only_held,
)
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.objects.pods import asker_of
from services.scheduler_extender.core.views.views import Views

A_STEP, VIEWS_A_STEP = 50, 8


class Observed(Protocol):
    """Objects of one kind as Kubernetes last showed them; an informer is one."""

    def get(self, name: str, namespace: str = "") -> JsonObject | None: ...

    def by_uid(self, uid: str) -> JsonObject | None: ...

    def objects(self) -> Sequence[JsonObject]: ...

    def by_index(self, index: str, value: str) -> Sequence[JsonObject]: ...


@dataclass(frozen=True, slots=True)
class Grounds:
    """All nodes at about one moment, as this pod sees them."""

    sites: dict[str, Site]
    pods: dict[str, tuple[SchedulablePod, ...]]
    asker: Asker

    def without(self, views: Views, name: str, uids: frozenset[str] | None) -> Site | None:
        """A node without the pods of these UIDs, or, None, with nobody on it."""
        site = self.sites.get(name)
        view = None if site is None else views.view_without(name, uids, self.asker)
        if site is None or view is None:
            return None
        left = [pod for pod in self.pods.get(name, ()) if uids is not None and pod.uid not in uids]
        return _site(site.node, view, left)


@dataclass(frozen=True, slots=True)
class KeptFor:
    """A gang that something is kept free for, as namespace/label, and its priority."""

    gang: str
    priority: int


class SiteBook:
    """`entitlement_of`: what of reservations a pod may use."""

    def __init__(
        self,
        views: Views,
        ledger: Ledger,
        nodes: Observed,
        pods: Observed,
        entitlement_of: Callable[[JsonObject], Entitlement] = lambda _: NOTHING,
    ) -> None:
        self._entitlement_of = entitlement_of
        self.kept_for: KeptFor | None = None
        self._views = views
        self._ledger = ledger
        self._nodes = nodes
        self._pods = pods
        self._read_pods: dict[str, tuple[str, SchedulablePod]] = {}
        self._read_nodes: dict[str, tuple[str, SchedulableNode]] = {}

    def asker(self, pods: Sequence[JsonObject], priority: int) -> Asker:
        """The first of these pods, which are planned together: it may use what all of them may."""
        found = [self._entitlement_of(pod) for pod in pods]
        names = (name for name in found[0].names if all(name in each.names for each in found))
        insists = any(each.insists for each in found)
        gang = self._sees_as(pods[0], priority)
        return Asker(uid_of(pods[0]), priority, gang=gang, reservations=tuple(names), insists=insists)

    def _sees_as(self, pod: JsonObject, priority: int) -> str:
        """The gang that something is kept free for, if this pod is of it, or more important."""
        kept = self.kept_for
        if kept is None:
            return ""
        return kept.gang if priority > kept.priority or asker_of(pod).gang == kept.gang else ""

    def beside(self, asker: Asker) -> frozenset[str]:
        """Names of holds that what is promised to it may overlap."""
        holds = self._ledger.holds.for_asker(asker)
        kept = (hold for hold in holds if hold.taken_by == SELF and hold.is_for_gang(asker.gang))
        return frozenset(hold.name for hold in (*self.reserved(asker), *kept))

    def view(self, node_name: str, asker: Asker) -> NodeView | None:
        return self._views.view(node_name, asker)

    def reserved(self, asker: Asker) -> list[Hold]:
        """What of reservations is open to it."""
        holds = self._ledger.holds.for_asker(asker)
        return [hold for hold in holds if hold.is_for_reservation(asker.reservations)]

    def within_reservations(self, grounds: Grounds) -> list[Site]:
        """The same nodes with nothing but what is reserved for it; empty if nothing is."""
        held: defaultdict[str, list[Hold]] = defaultdict(list)
        for hold in self.reserved(grounds.asker):
            held[hold.node_name].append(hold)
        if not held:
            return []
        return [
            replace(site, view=only_held(site.view, held[name]))
            if name in held
            else replace(site, view=replace(site.view, closed_reason=NO_RESERVATION))
            for name, site in grounds.sites.items()
        ]

    def grounds(self, asker: Asker) -> Steps[Grounds]:
        """As this pod sees the nodes."""
        by_node: defaultdict[str, list[SchedulablePod]] = defaultdict(list)
        for count, (name, pod) in enumerate(self._placed(), 1):
            if pod.uid != asker.uid:
                by_node[name].append(pod)
            if count % A_STEP == 0:
                yield
        sites: dict[str, Site] = {}
        view_of = self._views.viewer(asker)
        for count, raw in enumerate(self._nodes.objects(), 1):
            node = self._node(raw)
            view = None if node is None else view_of(node.name)
            if node is not None and view is not None:
                sites[node.name] = _site(node, view, by_node.get(node.name, []))
            if count % A_STEP == 0:
                yield
        pods = {name: tuple(found) for name, found in by_node.items()}
        return Grounds(dict(sorted(sites.items())), pods, asker)

    def emptied(self, grounds: Grounds) -> Steps[Grounds]:
        """The same nodes with nobody on them."""
        sites: dict[str, Site] = {}
        for count, name in enumerate(grounds.sites, 1):
            site = grounds.without(self._views, name, None)
            if site is not None:
                sites[name] = site
            if count % VIEWS_A_STEP == 0:
                yield
        return Grounds(sites, {}, grounds.asker)

    def without(self, grounds: Grounds, name: str, uids: frozenset[str]) -> Site | None:
        return grounds.without(self._views, name, uids)

    def pod(self, raw: JsonObject) -> SchedulablePod | None:
        """None for one that can't be read."""
        uid, version = uid_of(raw), resource_version_of(raw)
        known = self._read_pods.get(uid)
        if known is not None and known[0] == version:
            return known[1]
        try:
            read = schedulable_pod(raw)
        except InvalidRequestError:
            return None
        self._read_pods[uid] = version, read
        return read

    def _placed(self) -> Iterator[tuple[str, SchedulablePod]]:
        """Pods by where they are, or are about to be."""
        present: set[str] = set()
        for raw in self._pods.objects():
            uid = uid_of(raw)
            present.add(uid)
            name = "" if is_terminal(raw) else bound_node(raw) or self._destination(uid)
            read = self.pod(raw) if name else None
            if read is not None:
                yield name, read
        for uid in self._read_pods.keys() - present:
            del self._read_pods[uid]

    def _destination(self, uid: str) -> str:
        for attempt in self._ledger.attempts_of(uid):
            return attempt.node_name
        promised = (hold.node_name for hold in self._ledger.holds.of_pod(uid) if hold.taken_by == SELF)
        return next(promised, "")

    def _node(self, raw: JsonObject) -> SchedulableNode | None:
        uid, version = uid_of(raw), resource_version_of(raw)
        known = self._read_nodes.get(uid)
        if known is not None and known[0] == version:
            return known[1]
        try:
            read = schedulable_node(raw)
        except InvalidRequestError:
            return None
        self._read_nodes[uid] = version, read
        return read


def _site(node: SchedulableNode, view: NodeView, pods: Sequence[SchedulablePod]) -> Site:
    requested: dict[str, Any] = {}
    for pod in pods:
        for name, amount in pod.requests.items():
            requested[name] = requested.get(name, 0) + amount
    return Site(node, view, NodeUse(requested, len(pods)), tuple(pods))
