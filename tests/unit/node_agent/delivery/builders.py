"""Allocations, cards and calls of a runtime, small and valid unless a test says otherwise."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from gpuloom.codec.allocation import encode_allocation
from gpuloom.kube.informer import Informer
from gpuloom.kube.listing import EventType, Listing, Selection, WatchEvent
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import PODS, Resource
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.node import PodRef
from gpuloom.names import ANNOTATION_ALLOCATION, RESOURCE_GPU_MILLI
from gpuloom.nri import nri_pb2 as pb
from gpuloom.runtime.clock import FakeClock
from services.node_agent.delivery.cdi_folders import CdiFolders
from services.node_agent.delivery.core.comparison import Requested
from services.node_agent.delivery.core.deliveries import Deliveries
from services.node_agent.delivery.core.edits import DeviceNode, Edits, NodeNumbers
from services.node_agent.delivery.core.handlers import HandlerRules
from services.node_agent.delivery.core.pod_specs import Seat
from services.node_agent.delivery.core.verify import Asking, Delivered, NodeFacts
from services.node_agent.delivery.known_pods import KnownPods, PodSource, UnknownPods
from services.node_agent.delivery.metrics import DeliveryMetrics
from services.node_agent.delivery.plugin import DeliveryParts, Plugin

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


def asking(
    allocation: Allocation | str | None,
    pod: str = "train",
    container: str = "main",
    requested: Requested | None = None,
) -> Asking:
    text = encode_allocation(allocation) if isinstance(allocation, Allocation) else allocation
    return Asking(PodRef("team-a", pod, f"uid-{pod}"), container, text, requested)


def delivered(pod: str, *devices: AllocatedDevice) -> Delivered:
    return Delivered(PodRef("team-a", pod, f"uid-{pod}"), "main", devices or (a_device(),))


def facts(*gpus: Gpu) -> NodeFacts:
    return NodeFacts(NODE_UID, gpus or (a_gpu(), a_gpu("GPU-b", 1), a_cut_gpu()))


def a_sandbox(
    pod: str = "train", allocation: Allocation | str | None = None, handler: str = ""
) -> pb.PodSandbox:
    text = encode_allocation(allocation) if isinstance(allocation, Allocation) else allocation
    annotations = {} if text is None else {ANNOTATION_ALLOCATION: text}
    return pb.PodSandbox(
        id=f"sandbox-{pod}",
        name=pod,
        uid=f"uid-{pod}",
        namespace="team-a",
        annotations=annotations,
        runtime_handler=handler,
    )


def a_container(pod: str = "train", name: str = "main", **changes: Any) -> pb.Container:
    changes.setdefault("state", pb.CONTAINER_RUNNING)
    return pb.Container(id=f"{name}-of-{pod}", pod_sandbox_id=f"sandbox-{pod}", name=name, **changes)


def a_pod(name: str = "train", allocation: Allocation | str | None = None, **changes: Any) -> JsonObject:
    """As Kubernetes shows it: bound to n1, under NVIDIA's runtime class, its container `main` asks for a GPU.

    `asking` says which of its containers ask, `limits` for what, `runtime_class`, `node`, `phase` and
    `account` (its service account) what else is different.
    """
    text = encode_allocation(allocation) if isinstance(allocation, Allocation) else allocation
    annotations = {} if text is None else {ANNOTATION_ALLOCATION: text}
    containers = [
        {"name": one, "resources": {"limits": changes.get("limits", {RESOURCE_GPU_MILLI: "1000"})}}
        for one in changes.get("asking", ("main",))
    ]
    return {
        "metadata": {"namespace": "team-a", "name": name, "uid": f"uid-{name}", "annotations": annotations},
        "spec": {
            "nodeName": changes.get("node", "n1"),
            "runtimeClassName": changes.get("runtime_class", "nvidia"),
            "serviceAccountName": changes.get("account", "default"),
            "containers": [*containers, {"name": "side"}],
        },
        "status": {"phase": changes.get("phase", "Running")},
    }


class OnePage:
    """An API that lists these objects and then is silent."""

    def __init__(self, *objects: JsonObject) -> None:
        self.objects = objects

    async def list(self, resource: Resource, selection: Selection) -> Listing:
        return Listing(self.objects, "100")

    async def newest_version(self, resource: Resource, namespace: str | None) -> str:
        return "100"

    async def watch(
        self,
        resource: Resource,
        resource_version: str,
        selection: Selection,
        *,
        duration_s: float,
        idle_timeout_s: float,
    ) -> AsyncGenerator[WatchEvent, None]:
        await asyncio.Event().wait()
        yield WatchEvent(EventType.BOOKMARK, {})


@asynccontextmanager
async def an_informer(*pods: JsonObject) -> AsyncIterator[Informer]:
    """Has listed these pods."""
    informer = Informer(OnePage(*pods), PODS, FakeClock())
    running = asyncio.create_task(informer.run())
    await informer.wait_synced()
    try:
        yield informer
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def known_pods(informer: Informer, unsynced: str = "", node_uid: str = NODE_UID) -> KnownPods:
    return KnownPods(informer, lambda: Seat("n1", node_uid, "nvidia"), lambda: unsynced)


class Cards:
    """Every GPU is one device node of its name."""

    def edits(self, kind: str, names: tuple[str, ...]) -> Edits:
        return Edits(nodes=tuple(DeviceNode(f"/dev/{name}", "", NodeNumbers("c", 1, 3)) for name in names))


def a_plugin(
    deliveries: Deliveries,
    devices: Cards | CdiFolders | None = None,
    pods: PodSource | None = None,
    handlers: HandlerRules | None = None,
) -> Plugin:
    metrics, rules = DeliveryMetrics(CollectorRegistry()), handlers or HandlerRules()
    parts = DeliveryParts(facts, pods or UnknownPods(), devices or Cards(), "nvidia.com/gpu", metrics, rules)
    return Plugin(parts, deliveries)


async def held(deliveries: Deliveries) -> list[str]:
    return [holder.pod.name for holder in await deliveries.holders()]
