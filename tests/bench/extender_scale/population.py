"""What the cluster is made of: machines of both modes, and who runs on them already. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuloom.kube.objects import JsonObject, key_of, metadata_of, uid_of
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.node import Holder, HolderSource, NodeMode, PodRef
from gpuloom.model.snapshot import NodeFacts, PodAllocation
from gpuloom.names import ANNOTATION_ALLOCATION, RESOURCE_GPU_MEMORY_MIB, RESOURCE_GPU_MILLI
from gpuloom.sim.machines.hardware import Hardware
from tests.bench.audit import PlacedPod
from tests.bench.discovery_scale.population import CONTAINER, pod_object, shares
from tests.bench.workload import PodPlan, node_facts, plan_pods

MODES = (NodeMode.GPULOOM, NodeMode.NVIDIA)

_SEED = 1
_MOST_MILLI = 4 * MILLI_PER_GPU


@dataclass(frozen=True, slots=True)
class Size:
    """`residents` run when the extender starts, `pods` come one after the other."""

    nodes: int
    residents: int
    pods: int

    def residents_on(self, index: int) -> int:
        """Of the node with that number; as even as can be."""
        return self.residents // self.nodes + (index < self.residents % self.nodes)


@dataclass(frozen=True, slots=True)
class Resident:
    """A pod that runs, and what it has of a card where GPULoom gives them out."""

    pod: JsonObject
    share: AllocatedDevice | None


def plan_residents(machine: Hardware, count: int) -> list[Resident]:
    """As their owners wrote them. They share one card, so that most of the machine has room."""
    node = machine.spec.node
    gives = machine.spec.mode is NodeMode.GPULOOM
    return [
        Resident(_resident_pod(f"{node}-{number}", node, share, gives), share if gives else None)
        for number, share in enumerate(shares(machine.gpus[:1], count))
    ]


def plan_arrivals(count: int) -> tuple[PodPlan, ...]:
    """None asks for all cards of a machine, one of which the residents share."""
    return tuple(
        replace(plan, milli=min(plan.milli, _MOST_MILLI)) if plan.mode is NodeMode.GPULOOM else plan
        for plan in plan_pods(count, MODES, _SEED)
    )


def offered(machine: Hardware) -> dict[str, str]:
    """What discovery writes to a node whose GPUs GPULoom gives out."""
    if machine.spec.mode is not NodeMode.GPULOOM:
        return {}
    return {
        RESOURCE_GPU_MILLI: str(MILLI_PER_GPU * len(machine.gpus)),
        RESOURCE_GPU_MEMORY_MIB: str(machine.memory_mib),
    }


def inhabited_facts(machine: Hardware, node_uid: str, residents: Sequence[Resident]) -> NodeFacts:
    """As discovery tells it of a healthy node, with everybody who holds something there."""
    facts = node_facts(machine, node_uid)
    held = [(_ref(resident.pod), resident.share) for resident in residents if resident.share is not None]
    holders = tuple(Holder(ref, CONTAINER, (share.device,), HolderSource.RUNTIME) for ref, share in held)
    allocations = tuple(PodAllocation(ref, CONTAINER, (share,)) for ref, share in held)
    return replace(facts, state=replace(facts.state, holders=holders), allocations=allocations)


def placed_residents(residents: Sequence[Resident]) -> list[PlacedPod]:
    """Those who hold something, for the audit."""
    return [
        PlacedPod(
            PodPlan(key_of(resident.pod)[1], NodeMode.GPULOOM, resident.share.milli),
            uid_of(resident.pod),
            resident.pod["spec"]["nodeName"],
            metadata_of(resident.pod)["annotations"][ANNOTATION_ALLOCATION],
        )
        for resident in residents
        if resident.share is not None
    ]


def _resident_pod(name: str, node: str, share: AllocatedDevice, gives: bool) -> JsonObject:
    """Where NVIDIA's plugin gives out the cards, it has none: which one would be the kubelet's to say."""
    pod = pod_object(name, node, share)
    if not gives:
        container = pod["spec"]["containers"][0]
        amounts = {key: text for key, text in container["resources"]["limits"].items() if "/" not in key}
        container["resources"] = {"limits": amounts, "requests": amounts}
    return pod


def _ref(pod: JsonObject) -> PodRef:
    return PodRef(*key_of(pod), uid_of(pod))
