"""Pods that were promised a node before they are bound, and what a node has left beside them. Pure.

kube-scheduler nominates a pod to the node where it had others evicted for it; whoever plans ahead may do so
too. Until such a pod is bound it counts there as if it were, for every pod of at most its priority:
  - What it gets is chosen as a bind would choose it. The higher priority chooses first, then the older pod,
    then the lower UID.
  - While it does not fit, because others have yet to leave, whatever is free there is kept for it.
  - Where it could not fit even if they all left, it keeps nothing.
A pod that is nominated to the same node is held back only by those that come before it in that order. The
order is total, so the first of them is held back by none, and once it is bound or gone the next one is first:
nominated pods never keep each other out.
"""

import sys
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from gpuloom.model.request import PodRequest
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Refusal
from gpuloom.placement.occupancy.taken import with_taken
from gpuloom.placement.potential import Prices
from gpuloom.placement.reasons import KEPT

NOT_CREATED = "~"
"""In the place of the time when Kubernetes created a pod, for one that it has not: after any time."""

Place = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class Asker:
    """A pod that wants a node. `created` is as Kubernetes writes it, which sorts by time."""

    uid: str
    priority: int = 0
    created: str = NOT_CREATED
    nominated_node: str = ""
    name: str = field(default="", compare=False)
    """Namespace and name, with a slash between them."""
    gang: str = field(default="", compare=False)
    """That it is a member of, as namespace/name; empty if of none."""
    reservations: tuple[str, ...] = field(default=(), compare=False)
    """GPUReservations that it may use, as namespace/name."""
    insists: bool = field(default=False, compare=False)
    """Whether it goes nowhere else than to what is reserved for it."""

    @property
    def place(self) -> Place:
        """Where it comes among pods that are nominated to one node: smaller is earlier."""
        return -self.priority, self.created, self.uid


NOBODY = Asker("", priority=sys.maxsize)
"""Whoever looks without wanting anything: no nomination is kept from it."""


@dataclass(frozen=True, slots=True)
class Nomination:
    asker: Asker
    request: PodRequest

    @property
    def node_name(self) -> str:
        return self.asker.nominated_node


class Nominations:
    """All of them, by pod and by node."""

    def __init__(self) -> None:
        self._by_uid: dict[str, Nomination] = {}
        self._by_node: dict[str, list[Nomination]] = {}
        self._priorities: Counter[int] = Counter()
        self._changed: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._by_uid)

    def nodes(self) -> Collection[str]:
        """Names of the nodes that pods are nominated to."""
        return self._by_node.keys()

    def note(self, pod_uid: str, nomination: Nomination | None) -> str:
        """What this pod is promised now; returns the name of the node that it no longer is, if any."""
        before = self._by_uid.pop(pod_uid, None)
        if before is not None:
            self._drop(before)
        if nomination is not None:
            self._by_uid[pod_uid] = nomination
            insort(self._by_node.setdefault(nomination.node_name, []), nomination, key=_place)
            self._priorities[nomination.asker.priority] += 1
            self._changed.add(nomination.node_name)
        if before is None or (nomination is not None and nomination.node_name == before.node_name):
            return ""
        return before.node_name

    def take_changed(self) -> set[str]:
        """Names of nodes where something was promised, or no longer is, since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def threshold(self, priority: int) -> int | None:
        """The lowest priority that keeps room from pods of this one; None if no nomination does.

        Pods with the same threshold leave room for the same nominations, wherever they are not nominated.
        """
        known = sorted(self._priorities)
        place = bisect_left(known, priority)
        return known[place] if place < len(known) else None

    def node_of(self, pod_uid: str) -> str:
        """The node that this pod is observed to be nominated to; empty if it is to none."""
        known = self._by_uid.get(pod_uid)
        return "" if known is None else known.node_name

    def asker(self, pod_uid: str) -> Asker:
        """Of a pod that is nominated all is known by its UID; another has the priority of most pods."""
        known = self._by_uid.get(pod_uid)
        if known is not None:
            return known.asker
        return Asker(pod_uid) if pod_uid else NOBODY

    def ahead_of(self, asker: Asker, node_name: str) -> tuple[Nomination, ...]:
        """Those that this pod must leave room for on this node, the first one first."""
        others = [entry for entry in self._by_node.get(node_name, ()) if entry.asker.uid != asker.uid]
        if self._is_nominated(asker, node_name):
            return tuple(entry for entry in others if _place(entry) < asker.place)
        return tuple(entry for entry in others if entry.asker.priority >= asker.priority)

    def _is_nominated(self, asker: Asker, node_name: str) -> bool:
        """By what it says of itself or by what was observed: either of them may be the newer one."""
        return node_name in (asker.nominated_node, self.node_of(asker.uid))

    def _drop(self, nomination: Nomination) -> None:
        self._changed.add(nomination.node_name)
        priority = nomination.asker.priority
        self._priorities[priority] -= 1
        if not self._priorities[priority]:
            del self._priorities[priority]
        promised = self._by_node[nomination.node_name]
        promised.remove(nomination)
        if not promised:
            del self._by_node[nomination.node_name]


def beside(view: NodeView, ahead: Sequence[Nomination], prices: Prices) -> NodeView:
    """The node for a pod that comes after these."""
    for nomination in ahead:
        devices = choose_devices(nomination.request, view, prices)
        if not isinstance(devices, Refusal):
            view = with_taken(view, nomination.request, devices)
        elif devices.resolvable:
            return replace(view, closed_reason=KEPT)
    return view


@dataclass(frozen=True, slots=True)
class _Remainder:
    view: NodeView
    ahead: tuple[Nomination, ...]
    prices: Prices
    left: NodeView


class Remainders:
    """The newest answer of `beside` for every node: a crowd of pods is held back by the same few."""

    def __init__(self) -> None:
        self._known: dict[str, _Remainder] = {}

    def beside(self, view: NodeView, ahead: tuple[Nomination, ...], prices: Prices) -> NodeView:
        known = self._known.get(view.name)
        if known is None or known.view is not view or known.ahead != ahead or known.prices is not prices:
            known = _Remainder(view, ahead, prices, beside(view, ahead, prices))
            self._known[view.name] = known
        return known.left

    def forget(self, node_name: str) -> None:
        self._known.pop(node_name, None)


def _place(nomination: Nomination) -> Place:
    return nomination.asker.place
