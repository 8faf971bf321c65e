"""What the scheduler believes runs where: pods it sees on nodes, and pods it assumes there while they bind.

Pure. An assumed pod counts like a bound one until it is seen bound, is gone, or its bind failed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuloom.placement.constraints.neighbours import Neighbours
from gpuloom.placement.constraints.objects import NodeUse, SchedulableNode, SchedulablePod


@dataclass(frozen=True, slots=True)
class _Placement:
    node: str
    pod: SchedulablePod
    assumed: bool


@dataclass(slots=True)
class _Totals:
    requested: dict[str, int] = field(default_factory=dict)
    pods: dict[str, SchedulablePod] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterCache:
    _nodes: dict[str, SchedulableNode] = field(default_factory=dict)
    _placements: dict[str, _Placement] = field(default_factory=dict)
    _totals: dict[str, _Totals] = field(default_factory=dict)
    _apart: int = 0
    """How many placed pods have anti-affinity."""

    def set_node(self, node: SchedulableNode) -> None:
        self._nodes[node.name] = node

    def remove_node(self, name: str) -> None:
        self._nodes.pop(name, None)

    def nodes(self) -> Iterator[tuple[SchedulableNode, NodeUse]]:
        for name, node in sorted(self._nodes.items()):
            yield node, self.use_of(name)

    def node_count(self) -> int:
        return len(self._nodes)

    def node(self, name: str) -> SchedulableNode | None:
        return self._nodes.get(name)

    def use_of(self, node: str) -> NodeUse:
        totals = self._totals.get(node, _Totals())
        return NodeUse(dict(totals.requested), len(totals.pods))

    def neighbours(self, pod: SchedulablePod) -> Neighbours | None:
        """The pods of all nodes as they matter to this one; None if none does."""
        if not pod.minds_neighbours and not self._apart:
            return None
        nodes = (
            (node, tuple(self._totals[name].pods.values()) if name in self._totals else ())
            for name, node in sorted(self._nodes.items())
        )
        return Neighbours(pod, nodes)

    def assume(self, pod: SchedulablePod, node: str) -> None:
        self._place(pod.uid, _Placement(node, pod, assumed=True))

    def observe(self, pod: SchedulablePod, node: str) -> None:
        """Seen on a node: the truth, wherever it was assumed."""
        self._place(pod.uid, _Placement(node, pod, assumed=False))

    def forget_assumed(self, uid: str) -> bool:
        """The bind failed. A pod that was meanwhile seen bound stays; False says so."""
        placement = self._placements.get(uid)
        if placement is None or not placement.assumed:
            return False
        self.remove(uid)
        return True

    def remove(self, uid: str) -> None:
        placement = self._placements.pop(uid, None)
        if placement is not None:
            self._count(placement, -1)

    def _place(self, uid: str, placement: _Placement) -> None:
        self.remove(uid)
        self._placements[uid] = placement
        self._count(placement, 1)

    def _count(self, placement: _Placement, sign: int) -> None:
        totals = self._totals.setdefault(placement.node, _Totals())
        if sign > 0:
            totals.pods[placement.pod.uid] = placement.pod
        else:
            del totals.pods[placement.pod.uid]
        self._apart += sign * bool(placement.pod.anti_affinity)
        for name, amount in placement.pod.requests.items():
            totals.requested[name] = totals.requested.get(name, 0) + sign * amount
        if not totals.pods:
            del self._totals[placement.node]
