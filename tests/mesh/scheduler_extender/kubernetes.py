"""Nodes and pods on the simulated Kubernetes API, and what an agent would say of those nodes."""

from collections.abc import Mapping
from typing import Any

from gpuloom.codec.allocation import decode_allocation
from gpuloom.model.allocation import Allocation
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import NodeMode, PodRef
from gpuloom.model.snapshot import NodeFacts
from gpuloom.names import ANNOTATION_ALLOCATION
from gpuloom.sim.kubeapi import SimKubeApi
from tests.unit.scheduler_extender.builders import a_gpu, gpuloom_share, some_facts

JsonObject = dict[str, Any]

BINDING = r"/binding$"


def add_node(api: SimKubeApi, name: str, gpus: int = 1, mode: NodeMode = NodeMode.GPULOOM) -> NodeFacts:
    """A node, and the facts of its agent: whole, healthy, unused GPUs."""
    resource, amount = (
        ("gpuloom.dev/gpu-milli", 1000 * gpus) if mode is NodeMode.GPULOOM else ("nvidia.com/gpu", gpus)
    )
    amounts = {resource: str(amount), "cpu": "64", "memory": "256Gi"}
    node = api.store.create(
        "nodes", {"metadata": {"name": name}, "status": {"allocatable": amounts, "capacity": amounts}}
    )
    cards = (a_gpu(f"GPU-{name}-{index}", index) for index in range(gpus))
    return some_facts(name, *cards, uid=str(node["metadata"]["uid"]), mode=mode)


def add_pod(
    api: SimKubeApi,
    name: str,
    resources: Mapping[str, str] | None = None,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
) -> JsonObject:
    """A pod that waits for a node; it asks for one whole GPULoom card unless told otherwise."""
    asked = dict(gpuloom_share(1000) if resources is None else resources)
    container = {"name": "main", "image": "example.test/main", "resources": {"limits": asked}}
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    pod = {"metadata": metadata, "spec": {"containers": [container]}}
    return api.store.create("pods", pod)


def the_pod(api: SimKubeApi, name: str) -> JsonObject:
    return api.store.get("pods", name, "default")


def ref_of(pod: JsonObject) -> PodRef:
    metadata = pod["metadata"]
    return PodRef(metadata["namespace"], metadata["name"], metadata["uid"])


def node_of(api: SimKubeApi, name: str) -> str:
    return str(the_pod(api, name)["spec"].get("nodeName", ""))


def allocation_of(api: SimKubeApi, name: str) -> Allocation:
    return decode_allocation(the_pod(api, name)["metadata"]["annotations"][ANNOTATION_ALLOCATION])


def devices_of(api: SimKubeApi, name: str) -> list[str]:
    return [item.device.gpu_uuid for item in allocation_of(api, name).devices]


def owners(api: SimKubeApi) -> dict[DeviceRef, list[str]]:
    """The bound pods of every device, as the pods themselves record it."""
    found: dict[DeviceRef, list[str]] = {}
    for pod in api.store.select("pods", namespace="default"):
        if pod["spec"].get("nodeName"):
            name = pod["metadata"]["name"]
            for item in allocation_of(api, name).devices:
                found.setdefault(item.device, []).append(name)
    return found
