"""How many of the waiting pods one fresh machine of an offering takes, and what they are worth. Pure.

A pod is worth what the cheapest machine for it would cost, in proportion to the part of it that the pod uses.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuloom.catalog.entries import InstanceType, LinkShape
from gpuloom.model.node import NodeMode
from gpuloom.model.snapshot import Taint
from gpuloom.model.topology import MAX_GPUS_PER_NODE, PcieLevel, Topology, pair_count
from gpuloom.placement.constraints.objects import SchedulablePod
from gpuloom.placement.template import NodeTemplate, expected_node
from services.autoscaler.core.buying.offerings import Offering
from services.autoscaler.core.buying.pending import PendingPod
from services.autoscaler.core.buying.simulation import SimulatedNode, upcoming

LABEL_ZONE = "topology.kubernetes.io/zone"
LABEL_CAPACITY_TYPE = "gpu-autoscaler.io/capacity-type"
LABEL_POOL = "gpuloom.dev/pool"
LABEL_REPLICAS = "nvidia.com/gpu.replicas"


@dataclass(frozen=True, slots=True)
class MachineForm:
    """What every new node has, whatever its type."""

    mode: NodeMode = NodeMode.GPULOOM
    taints: tuple[Taint, ...] = ()
    daemons: tuple[SchedulablePod, ...] = ()


class Stencils:
    """Fresh nodes of offerings, made once each."""

    def __init__(self, form: MachineForm) -> None:
        self._form = form
        self._made: dict[Hashable, SimulatedNode] = {}
        self._shapes: dict[Hashable, int] = {}
        self._shape_of: dict[str, int] = {}
        self._too_small: set[Hashable] = set()

    def node(self, offering: Offering, name: str) -> SimulatedNode:
        return self._make(offering, name)

    def sample(self, offering: Offering) -> SimulatedNode:
        """A node to fill and throw away."""
        key = (offering.pool, offering.key)
        if key not in self._made:
            self._made[key] = self._make(offering, f"new-{offering.pool}")
        return self._made[key].copy()

    def filled(self, offering: Offering, pods: Sequence[PendingPod]) -> "Purchase | None":
        """A fresh machine with all of them, if it takes them all. What did not fit is remembered."""
        key = (offering.pool, offering.key, tuple(self._shape(pod) for pod in pods))
        if key in self._too_small:
            return None
        purchase = Purchase(offering, self.sample(offering))
        if purchase.has_room(pods) and all(purchase.put(pod) for pod in pods):
            return purchase
        self._too_small.add(key)
        return None

    def _shape(self, pod: PendingPod) -> int:
        if pod.ref.uid not in self._shape_of:
            self._shape_of[pod.ref.uid] = self._shapes.setdefault(shape_of(pod), len(self._shapes))
        return self._shape_of[pod.ref.uid]

    def _make(self, offering: Offering, name: str) -> SimulatedNode:
        labels = {
            LABEL_POOL: offering.pool,
            LABEL_CAPACITY_TYPE: offering.key.capacity_type.value,
            **({LABEL_ZONE: offering.key.zone} if offering.key.zone else {}),
            **offering.labels,
        }
        template = NodeTemplate(
            _shared_by_time(offering), self._form.mode, labels=labels, taints=self._form.taints
        )
        return upcoming(expected_node(template, name, self._form.daemons))


def _shared_by_time(offering: Offering) -> InstanceType:
    """A pool that says how NVIDIA's plugin shares its GPUs by time is planned with that many of them.

    Otherwise a node would be bought for every pod, and most of them would stay empty.
    """
    instance = offering.instance
    replicas = offering.labels.get(LABEL_REPLICAS, "")
    if not replicas.isdecimal() or int(replicas) < 2:
        return instance
    count = min(MAX_GPUS_PER_NODE, instance.gpu_count * int(replicas))
    pairs = pair_count(count)
    links = Topology(count, (PcieLevel.UNKNOWN,) * pairs, (0,) * pairs)
    return replace(instance, gpu_count=count, shape=LinkShape("shared by time", links, (None,) * count))


@dataclass(slots=True)
class Purchase:
    """A machine that a plan has so far, and the pods it is for.

    `fixed`: part of a gang's plan, or bound by neighbours; it is not moved about afterwards.
    """

    offering: Offering
    node: SimulatedNode
    pods: list[PendingPod] = field(default_factory=list)
    fixed: bool = False

    def copy(self) -> "Purchase":
        return Purchase(self.offering, self.node.copy(), list(self.pods), self.fixed)

    def has_room(self, pods: Sequence[PendingPod]) -> bool:
        """Whether what they ask for in all is there, wherever on the machine that is."""
        wanted: Counter[str] = Counter(self.node.use.requested)
        for pod in pods:
            wanted.update(pod.pod.requests)
        there = self.node.node.allocatable
        return all(amount <= there.get(resource, 0) for resource, amount in wanted.items() if amount)

    def put(self, pod: PendingPod) -> bool:
        """Place the pod here, if it fits; neighbours are not asked."""
        if self.node.take(pod):
            return False
        self.pods.append(pod)
        return True


@dataclass(frozen=True, slots=True)
class Fill:
    """The pods that one machine takes, by their places in the list, and what they are worth."""

    taken: tuple[int, ...]
    value: float


class PodQueue:
    """Pods that wait, the most valuable first, and what machines would take of them.

    A machine takes whatever still fits, in that order. What it takes stays the same until one of those pods
    is gone: pods that it refused don't matter to it. So most answers are given from memory.
    """

    def __init__(self, pods: Sequence[PendingPod], values: Sequence[float]) -> None:
        self.pods = pods
        self.particular = is_particular(pods)
        self._values = values
        known: dict[Hashable, int] = {}
        self._shapes = [known.setdefault(shape_of(pod), len(known)) for pod in pods]
        self.left = sorted(range(len(pods)), key=lambda place: (-values[place], pods[place].ref))
        self._fills: dict[Hashable, Fill] = {}

    def fill(self, look: Hashable, machine: Callable[[], SimulatedNode]) -> Fill:
        """What a fresh machine that looks so takes of the pods that are left."""
        if look not in self._fills:
            self._fills[look] = self._fill(machine())
        return self._fills[look]

    def remove(self, places: Iterable[int]) -> None:
        gone = set(places)
        self.left = [place for place in self.left if place not in gone]
        self._fills = {look: fill for look, fill in self._fills.items() if gone.isdisjoint(fill.taken)}

    def _fill(self, node: SimulatedNode) -> Fill:
        """Capacity only shrinks: what was refused stays refused."""
        refused: set[int] = set()
        taken: list[int] = []
        for place in self.left:
            shape = self._shapes[place]
            if shape in refused:
                continue
            if node.take(self.pods[place]):
                refused.add(shape)
            else:
                taken.append(place)
        return Fill(tuple(taken), sum(self._values[place] for place in taken))


def shape_of(pod: PendingPod) -> Hashable:
    """Everything by which a fit is decided."""
    one = pod.pod
    return (
        pod.request,
        one.namespace,
        tuple(sorted(one.requests.items())),
        tuple(sorted(one.node_selector.items())),
        one.required_terms,
        one.tolerations,
        one.minds_neighbours and one.uid,
    )


def is_particular(pods: Iterable[PendingPod]) -> bool:
    """Whether a pod cares for labels of its node, so that zones and tiers must be told apart."""
    return any(
        one.pod.node_selector or one.pod.required_terms is not None or one.pod.minds_neighbours
        for one in pods
    )


def dominant_share(pod: PendingPod, allocatable: Mapping[str, int]) -> float:
    return max(
        (
            amount / allocatable[resource]
            for resource, amount in pod.pod.requests.items()
            if allocatable.get(resource)
        ),
        default=0.0,
    )
