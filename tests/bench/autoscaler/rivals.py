"""How two widely used autoscalers choose, on the same pods, machines and fit. Our own code after their rules.

cluster-autoscaler, least-waste: every machine type takes as many pods as it can, sorted by CPU and memory,
with as many machines as that needs; the type that wastes the least share of CPU and memory is bought; the
rest waits for the next round. Karpenter: pods by CPU, then memory; each goes onto the virtual node with the
fewest pods that can still take it, where a node keeps every machine type that could hold its sum; at the end
the cheapest such type is bought.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.autoscaler.core.buying.filling import MachineForm, Stencils
from services.autoscaler.core.buying.offerings import Offering
from services.autoscaler.core.buying.pending import PendingPod
from services.autoscaler.core.buying.simulation import SimulatedNode


def least_waste(pods: Sequence[PendingPod], offerings: Sequence[Offering]) -> int:
    stencils = Stencils(MachineForm())
    left = sorted(pods, key=lambda pod: (-pod.request.cpu_milli, -pod.request.memory_bytes, pod.ref))
    spent = 0
    while left:
        best: tuple[float, int, str] | None = None
        chosen: tuple[int, list[PendingPod]] | None = None
        for offering in offerings:
            nodes, taken = _first_fit(left, offering, stencils)
            if not taken:
                continue
            score = (_waste(nodes), len(nodes), offering.instance.name)
            if best is None or score < best:
                best, chosen = score, (len(nodes) * offering.nano_usd_per_hour, taken)
        if chosen is None:
            break
        spent += chosen[0]
        done = {pod.ref.uid for pod in chosen[1]}
        left = [pod for pod in left if pod.ref.uid not in done]
    return spent


def karpenter(pods: Sequence[PendingPod], offerings: Sequence[Offering]) -> int:
    stencils = Stencils(MachineForm())
    nodes: list[_VirtualNode] = []
    for pod in sorted(pods, key=lambda pod: (-pod.request.cpu_milli, -pod.request.memory_bytes, pod.ref)):
        if any(node.take(pod) for node in sorted(nodes, key=lambda node: node.count)):
            continue
        fresh = _VirtualNode([(one, stencils.sample(one)) for one in offerings])
        if fresh.take(pod):
            nodes.append(fresh)
    return sum(min(one.nano_usd_per_hour for one, _ in node.kinds) for node in nodes)


@dataclass
class _VirtualNode:
    kinds: list[tuple[Offering, SimulatedNode]]
    count: int = field(default=0)

    def take(self, pod: PendingPod) -> bool:
        left = [
            (one, node)
            for one, node in ((one, kind.copy()) for one, kind in self.kinds)
            if not node.take(pod)
        ]
        if not left:
            return False
        self.kinds, self.count = left, self.count + 1
        return True


def _first_fit(
    pods: Sequence[PendingPod], offering: Offering, stencils: Stencils
) -> tuple[list[SimulatedNode], list[PendingPod]]:
    nodes: list[SimulatedNode] = []
    taken: list[PendingPod] = []
    for pod in pods:
        if any(not node.take(pod) for node in nodes):
            taken.append(pod)
            continue
        fresh = stencils.sample(offering)
        if not fresh.take(pod):
            nodes.append(fresh)
            taken.append(pod)
    return nodes, taken


def _waste(nodes: Sequence[SimulatedNode]) -> float:
    def wasted(resource: str) -> float:
        total = sum(node.node.allocatable[resource] for node in nodes)
        used = sum(node.use.requested.get(resource, 0) for node in nodes)
        return 1.0 - used / total

    return wasted("cpu") + wasted("memory")
