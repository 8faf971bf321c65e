"""A copy of the cluster on which pods are placed to see what would fit: nodes, upcoming nodes, new nodes.

Asks the same functions as the scheduler: `fit` for devices, kube-scheduler's own filters for the rest. Only
what a machine of the catalogue will look like is expected rather than seen. Nothing here is ever bound.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpuloom.catalog import load_catalog
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.request import RequestKind
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.constraints.filters import refusals
from gpuloom.placement.constraints.neighbours import Neighbours
from gpuloom.placement.constraints.objects import NodeUse, SchedulableNode, SchedulablePod
from gpuloom.placement.devices import GpuView, NodeView
from gpuloom.placement.occupancy.taken import with_taken
from gpuloom.placement.reasons import Refusal
from gpuloom.placement.template import ExpectedNode
from services.autoscaler.core.buying.pending import PendingPod, Unit


@dataclass(slots=True)
class SimulatedNode:
    """`view` and `use` change as pods are placed. `expected`: it is not there yet, so it may still be cut."""

    view: NodeView
    node: SchedulableNode
    use: NodeUse
    pods: list[SchedulablePod] = field(default_factory=list)
    expected: bool = False

    @property
    def name(self) -> str:
        return self.node.name

    def copy(self) -> "SimulatedNode":
        return SimulatedNode(self.view, self.node, self.use, list(self.pods), self.expected)

    def take(self, pod: PendingPod) -> str:
        """Place the pod here, or say why not; neighbours on other nodes are not asked."""
        told = refusals(pod.pod, self.node, self.use)
        if told:
            return told[0]
        view = self.view
        if self.expected and pod.request.gpu.kind is RequestKind.MIG:
            view = cut_for(view, pod)
        devices = choose_devices(pod.request, view)
        if isinstance(devices, Refusal):
            return devices.reason
        self.view = with_taken(view, pod.request, devices)
        self.use = _with_pod(self.use, pod.pod)
        self.pods.append(pod.pod)
        return ""


class Simulation:
    """All nodes of the copy; `place` puts a unit down whole or leaves everything as it was."""

    def __init__(self, nodes: Iterable[SimulatedNode]) -> None:
        self.nodes = [node.copy() for node in nodes]

    def place(self, unit: Unit) -> dict[str, str] | None:
        """Node by pod UID, or None if it does not fit as a whole."""
        before = [(node.view, node.use, len(node.pods)) for node in self.nodes]
        placed: dict[str, str] = {}
        for pod in unit.pods:
            node = self.find(pod)
            if node is None:
                for kept, (view, use, count) in zip(self.nodes, before, strict=True):
                    kept.view, kept.use = view, use
                    del kept.pods[count:]
                return None
            placed[pod.ref.uid] = node.name
        return placed

    def find(self, pod: PendingPod) -> SimulatedNode | None:
        """The first node that takes the pod; the fullest ones come first, so that others stay empty."""
        neighbours = self.neighbours(pod)
        for node in self.nodes:
            if neighbours is not None and neighbours.refusals(node.node):
                continue
            if not node.take(pod):
                return node
        return None

    def neighbours(self, pod: PendingPod, more: Sequence[SimulatedNode] = ()) -> Neighbours | None:
        """What other pods say of where this one may go; None if they say nothing."""
        listed = (*self.nodes, *more)
        if not pod.pod.minds_neighbours and not any(
            other.anti_affinity for node in listed for other in node.pods
        ):
            return None
        return Neighbours(pod.pod, ((node.node, node.pods) for node in listed))


def upcoming(expected: ExpectedNode) -> SimulatedNode:
    return SimulatedNode(expected.view, expected.node, expected.use, expected=True)


def cut_for(view: NodeView, pod: PendingPod) -> NodeView:
    """The node with one more untouched GPU cut into the pod's MIG profile, if what is cut does not do.

    That is what the MIG controller makes of an idle GPU when a pod asks for a slice.
    """
    if not isinstance(choose_devices(pod.request, view), Refusal):
        return view
    gpus = list(view.gpus)
    for place, card in enumerate(gpus):
        if card.untouched and not card.gpu.mig_enabled:
            cut = _cut(card, pod.request.gpu.mig_profile or "")
            if cut is not None:
                gpus[place] = cut
                return replace(view, gpus=tuple(gpus))
    return view


def _cut(card: GpuView, profile_name: str) -> GpuView | None:
    model = load_catalog().find_gpu(card.gpu.model)
    profiles = model.mig_profiles if model is not None else ()
    profile = next((one for one in profiles if one.name == profile_name), None)
    if profile is None:
        return None
    instances: list[MigInstance] = []
    end = 0
    for start in profile.starts:
        if start >= end and len(instances) < profile.max_count:
            placement = MigPlacement(start, profile.name)
            instances.append(
                MigInstance(placement, slices=profile.memory_slices, memory_mib=profile.memory_mib)
            )
            end = start + profile.memory_slices
    gpu = replace(card.gpu, mig_enabled=True, mig_instances=tuple(instances))
    return replace(card, gpu=gpu, free_mig=tuple(instances))


def _with_pod(use: NodeUse, pod: SchedulablePod) -> NodeUse:
    requested = dict(use.requested)
    for resource, amount in pod.requests.items():
        requested[resource] = requested.get(resource, 0) + amount
    return NodeUse(requested, use.pods + 1)
