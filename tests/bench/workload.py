"""The cluster and the burst: machines with 8 GPUs of both modes, and a mix of pods. Pure.

The same seed gives the same pods in every round of every variant.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuloom.catalog import load_catalog
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.gpu import MILLI_PER_GPU, GpuHealth
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.model.snapshot import NodeFacts
from gpuloom.names import RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU
from gpuloom.sim.machines.hardware import Hardware, MachineSpec, assemble

NAMESPACE = "bench"
GPUS_PER_NODE = 8
# Above this a burst is about finding the last free GPUs, and a pod may be left that fits nowhere.
MOST_DEMAND = 0.5

_DELIVERY = {NodeMode.NVIDIA: Delivery.DEVICE_PLUGIN, NodeMode.GPULOOM: Delivery.NRI}
_RESOURCE = {NodeMode.NVIDIA: RESOURCE_NVIDIA_GPU, NodeMode.GPULOOM: RESOURCE_GPU_MILLI}
# Amounts in milli of a GPU, and how often they come.
_MIX = {
    NodeMode.NVIDIA: {1000: 50, 2000: 20, 4000: 15, 8000: 15},
    NodeMode.GPULOOM: {250: 20, 500: 30, 1000: 25, 2000: 10, 4000: 10, 8000: 5},
}


@dataclass(frozen=True, slots=True)
class PodPlan:
    name: str
    mode: NodeMode
    milli: int

    @property
    def resource(self) -> str:
        return _RESOURCE[self.mode]

    @property
    def amount(self) -> int:
        return self.milli // MILLI_PER_GPU if self.mode is NodeMode.NVIDIA else self.milli


def plan_machines(count: int, modes: Sequence[NodeMode]) -> tuple[Hardware, ...]:
    """Modes take turns."""
    catalog = load_catalog()
    return tuple(
        assemble(
            MachineSpec(
                node=f"node-{index:05}",
                mode=modes[index % len(modes)],
                gpu_model="A100-SXM4-80GB",
                gpu_count=GPUS_PER_NODE,
                topology="hgx-a100",
                cpu_cores=128,
                memory_gib=1024,
                zone=f"zone-{'abc'[index % 3]}",
            ),
            catalog,
        )
        for index in range(count)
    )


def plan_pods(count: int, modes: Sequence[NodeMode], seed: int) -> tuple[PodPlan, ...]:
    chance = random.Random(seed)
    plans = []
    for index in range(count):
        mode = chance.choice(modes)
        (milli,) = chance.choices(list(_MIX[mode]), list(_MIX[mode].values()))
        plans.append(PodPlan(f"pod-{index:05}", mode, milli))
    return tuple(plans)


def refuse_crowding(machines: Sequence[Hardware], pods: Sequence[PodPlan]) -> None:
    """Raise InvalidRequestError if the pods ask for too much of what there is."""
    offered = Counter(dict.fromkeys(NodeMode, 0))
    for machine in machines:
        offered[machine.spec.mode] += MILLI_PER_GPU * len(machine.gpus)
    asked: Counter[NodeMode] = Counter()
    for pod in pods:
        asked[pod.mode] += pod.milli
    for mode, milli in asked.items():
        if milli > MOST_DEMAND * offered[mode]:
            raise InvalidRequestError(
                f"{len(pods)} pods ask for {milli // MILLI_PER_GPU} GPUs of {mode} nodes, which is more than "
                f"half of their {offered[mode] // MILLI_PER_GPU}: take more nodes or fewer pods"
            )


def pod_object(plan: PodPlan, scheduler: str) -> JsonObject:
    amounts = {plan.resource: str(plan.amount), "cpu": "1", "memory": "2Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": plan.name, "namespace": NAMESPACE, "labels": {"app": "burst"}},
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "work",
                    "image": "registry.invalid/work:1",
                    "resources": {"requests": amounts, "limits": amounts},
                }
            ],
        },
    }


def node_facts(machine: Hardware, node_uid: str) -> NodeFacts:
    """As discovery tells it of a healthy node on which nothing runs."""
    mode = machine.spec.mode
    return NodeFacts(
        NodeState(
            node_name=machine.spec.node,
            node_uid=node_uid,
            mode=mode,
            delivery=_DELIVERY[mode],
            gpus=tuple(replace(gpu, health=GpuHealth.HEALTHY) for gpu in machine.gpus),
            topology=machine.topology,
        )
    )
