"""Pods that ask for GPUs, and what the cluster made of them."""

import asyncio
from collections.abc import Iterable, Mapping

from gpuloom.cli.scheduler_config import OWN_SCHEDULER
from gpuloom.codec.allocation import believable, decode_allocation
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, key_of, metadata_of, uid_of
from gpuloom.kube.resources import NAMESPACES, PODS
from gpuloom.names import ANNOTATION_ALLOCATION, RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU
from gpuloom.sim.kubelet.host import ANNOTATION_DURATION

NAMESPACE = "work"

# Both authorities, whole cards and shares; together 6 cards of each ten pods from NVIDIA's plugin, 4.45 ours.
_REQUESTS = (
    *((RESOURCE_NVIDIA_GPU, "1"), (RESOURCE_GPU_MILLI, "500"), (RESOURCE_NVIDIA_GPU, "2")),
    *((RESOURCE_GPU_MILLI, "250"), (RESOURCE_GPU_MILLI, "1000"), (RESOURCE_NVIDIA_GPU, "1")),
    *((RESOURCE_GPU_MILLI, "700"), (RESOURCE_NVIDIA_GPU, "1"), (RESOURCE_GPU_MILLI, "2000")),
    (RESOURCE_NVIDIA_GPU, "1"),
)
_SHORT_LIFE = "4s"


def a_gpu_pod(
    name: str, resources: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> JsonObject:
    return {
        "metadata": {"namespace": NAMESPACE, "name": name, "annotations": dict(annotations or {})},
        "spec": {
            "schedulerName": OWN_SCHEDULER,
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/work:1",
                    "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": dict(resources)},
                }
            ],
        },
    }


def a_mix(count: int) -> list[JsonObject]:
    """Every third pod ends soon, so that its GPUs are given again."""
    pods = []
    for number in range(count):
        resource, amount = _REQUESTS[number % len(_REQUESTS)]
        annotations = {ANNOTATION_DURATION: _SHORT_LIFE} if number % 3 == 0 else {}
        pods.append(a_gpu_pod(f"pod-{number:04d}", {resource: amount}, annotations))
    return pods


async def create_namespace(client: KubeClient) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})


async def create_all(client: KubeClient, pods: Iterable[JsonObject]) -> None:
    await asyncio.gather(*(client.create(PODS, pod) for pod in pods))


async def all_pods(client: KubeClient) -> list[JsonObject]:
    return list((await client.list(PODS, Selection(NAMESPACE))).items)


def is_bound(pod: JsonObject) -> bool:
    return bool(pod["spec"].get("nodeName"))


def has_started(pod: JsonObject) -> bool:
    return pod["status"].get("phase") in ("Running", "Succeeded")


def unbelievable(pods: Iterable[JsonObject], node_uids: Mapping[str, str]) -> dict[str, str]:
    """The pods, by name, whose allocation is missing or must not be believed, with the reason."""
    return {key_of(pod)[1]: reason for pod in pods if (reason := _doubt(pod, node_uids))}


def _doubt(pod: JsonObject, node_uids: Mapping[str, str]) -> str:
    text = (metadata_of(pod).get("annotations") or {}).get(ANNOTATION_ALLOCATION)
    if not text:
        return "no allocation"
    node_uid = node_uids.get(pod["spec"].get("nodeName") or "", "")
    return believable(decode_allocation(text), uid_of(pod), node_uid) or ""
