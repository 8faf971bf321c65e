"""Allocations, cards and calls of a runtime, small and valid unless a test says otherwise."""

from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from gpuloom.codec.allocation import encode_allocation
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.node import PodRef
from gpuloom.names import ANNOTATION_ALLOCATION
from gpuloom.nri import nri_pb2 as pb
from services.node_agent.delivery.cdi_folders import CdiFolders
from services.node_agent.delivery.deliveries import Deliveries
from services.node_agent.delivery.edits import DeviceNode, Edits, NodeNumbers
from services.node_agent.delivery.metrics import DeliveryMetrics
from services.node_agent.delivery.plugin import DeliveryParts, Plugin
from services.node_agent.delivery.verify import Asking, Delivered, NodeFacts

NODE_UID = "uid-node"
MEMORY_MIB = 40960


def a_gpu(uuid: str = "GPU-a", index: int = 0, **changes: Any) -> Gpu:
    return replace(Gpu(uuid, index, "A100", "ampere", MEMORY_MIB, GpuHealth.HEALTHY), **changes)


def a_cut_gpu(uuid: str = "GPU-m") -> Gpu:
    instance = MigInstance(MigPlacement(0, "1g.5gb"), 1, 4864, "MIG-0")
    return a_gpu(uuid, 2, mig_enabled=True, mig_instances=(instance,))


def a_device(uuid: str = "GPU-a", milli: int = 1000, memory_mib: int | None = None) -> AllocatedDevice:
    return AllocatedDevice(
        DeviceRef(uuid), milli, MEMORY_MIB * milli // 1000 if memory_mib is None else memory_mib
    )


def a_slice(uuid: str = "GPU-m", start: int = 0, profile: str = "1g.5gb") -> AllocatedDevice:
    return AllocatedDevice(DeviceRef(uuid, MigPlacement(start, profile)), 125, 4864)


def an_allocation(*devices: AllocatedDevice, pod: str = "train", **changes: Any) -> Allocation:
    made = Allocation(f"uid-{pod}", NODE_UID, "main", False, devices or (a_device(),))
    return replace(made, **changes)


def asking(allocation: Allocation | str | None, pod: str = "train", container: str = "main") -> Asking:
    text = encode_allocation(allocation) if isinstance(allocation, Allocation) else allocation
    return Asking(PodRef("team-a", pod, f"uid-{pod}"), container, text)


def delivered(pod: str, *devices: AllocatedDevice) -> Delivered:
    return Delivered(PodRef("team-a", pod, f"uid-{pod}"), "main", devices or (a_device(),))


def facts(*gpus: Gpu) -> NodeFacts:
    return NodeFacts(NODE_UID, gpus or (a_gpu(), a_gpu("GPU-b", 1), a_cut_gpu()))


def a_sandbox(pod: str = "train", allocation: Allocation | str | None = None) -> pb.PodSandbox:
    text = encode_allocation(allocation) if isinstance(allocation, Allocation) else allocation
    annotations = {} if text is None else {ANNOTATION_ALLOCATION: text}
    return pb.PodSandbox(
        id=f"sandbox-{pod}", name=pod, uid=f"uid-{pod}", namespace="team-a", annotations=annotations
    )


def a_container(pod: str = "train", name: str = "main", **changes: Any) -> pb.Container:
    changes.setdefault("state", pb.CONTAINER_RUNNING)
    return pb.Container(id=f"{name}-of-{pod}", pod_sandbox_id=f"sandbox-{pod}", name=name, **changes)


class Cards:
    """Every GPU is one device node of its name."""

    def edits(self, kind: str, names: tuple[str, ...]) -> Edits:
        return Edits(nodes=tuple(DeviceNode(f"/dev/{name}", "", NodeNumbers("c", 1, 3)) for name in names))


def a_plugin(deliveries: Deliveries, devices: Cards | CdiFolders | None = None) -> Plugin:
    metrics = DeliveryMetrics(CollectorRegistry())
    return Plugin(DeliveryParts(facts, devices or Cards(), "nvidia.com/gpu", metrics), deliveries)


async def held(deliveries: Deliveries) -> list[str]:
    return [holder.pod.name for holder in await deliveries.holders()]
