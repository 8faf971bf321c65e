"""Small nodes, pods and agents' reports, as Kubernetes and an agent would tell them."""

from dataclasses import replace
from typing import Any

from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth, GpuUsage
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import Delivery, Holder, HolderSource, NodeMode, NodeState, PodRef
from services.discovery.core.nodes import ClusterNode
from services.discovery.core.pods import Asked, NodePod

TTL_S = 30.0
GRACE_S = 60.0
SLICE = MigPlacement(0, "1g.5gb")


def a_node(name: str = "n1", **changes: Any) -> ClusterNode:
    node = ClusterNode(name, f"uid-{name}", NodeMode.NVIDIA, offers_nvidia=True)
    return replace(node, **changes)


def a_gpuloom_node(name: str = "n1", **changes: Any) -> ClusterNode:
    node = ClusterNode(name, f"uid-{name}", NodeMode.GPULOOM, offers_gpuloom=True)
    return replace(node, **changes)


def a_gpu(letter: str = "a", index: int = 0, **changes: Any) -> Gpu:
    return replace(Gpu(f"GPU-{letter}", index, "T4", "turing", 15360, GpuHealth.HEALTHY), **changes)


def a_state(name: str = "n1", utilization: float = 0.0, **changes: Any) -> NodeState:
    state = NodeState(
        node_name=name,
        node_uid=f"uid-{name}",
        mode=NodeMode.NVIDIA,
        delivery=Delivery.DEVICE_PLUGIN,
        gpus=(a_gpu(),),
        usage=(GpuUsage("GPU-a", utilization_ratio=utilization),),
    )
    return replace(state, **changes)


def two_gpus(*holders: Holder, mode: NodeMode = NodeMode.GPULOOM, **changes: Any) -> NodeState:
    """A node with GPU-a and GPU-b."""
    return a_state(mode=mode, gpus=(a_gpu("a", 0), a_gpu("b", 1)), holders=holders, **changes)


def a_ref(name: str) -> PodRef:
    return PodRef("team", name, f"uid-{name}")


def a_pod(name: str = "train", *given: AllocatedDevice, node: str = "n1", **changes: Any) -> NodePod:
    """A pod on the node with an exact allocation of these devices, if any."""
    allocation = an_allocation(name, *given, node=node) if given else None
    return replace(NodePod(a_ref(name), node, allocation=allocation), **changes)


def a_plugged_pod(name: str = "train", count: int = 1, **changes: Any) -> NodePod:
    """A pod that asks NVIDIA's plugin for so many devices."""
    return a_pod(name, asked=Asked(count, count), **changes)


def an_allocation(name: str, *given: AllocatedDevice, node: str = "n1", advisory: bool = False) -> Allocation:
    return Allocation(f"uid-{name}", f"uid-{node}", "main", advisory, given)


def share(letter: str = "a", milli: int = 1000, mig: MigPlacement | None = None) -> AllocatedDevice:
    return AllocatedDevice(DeviceRef(f"GPU-{letter}", mig), milli, 0)


def held(
    name: str = "train",
    *letters: str,
    source: HolderSource = HolderSource.RUNTIME,
    mig: MigPlacement | None = None,
) -> Holder:
    devices = tuple(DeviceRef(f"GPU-{letter}", mig) for letter in letters or ("a",))
    return Holder(a_ref(name), "main", devices, source)


def a_foreign_process(letter: str = "a", *pids: int) -> Holder:
    devices = (DeviceRef(f"GPU-{letter}"),)
    return Holder(PodRef("", "", ""), "", devices, HolderSource.PROCESS, pids or (4711,))
