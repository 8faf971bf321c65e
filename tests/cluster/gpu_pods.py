"""Pods that ask for GPUs, and what the cluster made of them."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuloom.cli.scheduling.scheduler_config import OWN_SCHEDULER
from gpuloom.codec.allocation import believable, decode_allocation
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, key_of, metadata_of, uid_of
from gpuloom.kube.resources import NAMESPACES, PODS
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import NodeMode
from gpuloom.names import (
    ANNOTATION_ALLOCATION,
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
    RESOURCE_NVIDIA_MIG_PREFIX,
)
from gpuloom.sim.kubelet.host import ANNOTATION_DURATION
from gpuloom.sim.machines.hardware import MachineSpec

NAMESPACE = "work"

# Both authorities, whole cards and shares; together 6 cards of each ten pods from NVIDIA's plugin, 4.45 ours.
_REQUESTS = (
    *((RESOURCE_NVIDIA_GPU, "1"), (RESOURCE_GPU_MILLI, "500"), (RESOURCE_NVIDIA_GPU, "2")),
    *((RESOURCE_GPU_MILLI, "250"), (RESOURCE_GPU_MILLI, "1000"), (RESOURCE_NVIDIA_GPU, "1")),
    *((RESOURCE_GPU_MILLI, "700"), (RESOURCE_NVIDIA_GPU, "1"), (RESOURCE_GPU_MILLI, "2000")),
    (RESOURCE_NVIDIA_GPU, "1"),
)
_SHORT_LIFE = "4s"

# By the number of the pod in forty, in place of what it would ask for.
_RARE_REQUESTS = {
    3: {RESOURCE_GPU_MILLI: "300", RESOURCE_GPU_MEMORY_MIB: "9000"},
    7: {f"{RESOURCE_NVIDIA_MIG_PREFIX}1g.5gb": "1"},
    17: {f"{RESOURCE_NVIDIA_MIG_PREFIX}3g.20gb": "1"},
    23: {RESOURCE_GPU_MILLI: "100", RESOURCE_GPU_MEMORY_MIB: "6000"},
    27: {f"{RESOURCE_NVIDIA_MIG_PREFIX}1g.5gb": "1"},
}
_SLICED_MODEL = "A100-SXM4-40GB"
_SLICES = (
    MigPlacement(0, "3g.20gb"),
    MigPlacement(4, "1g.5gb"),
    MigPlacement(5, "1g.5gb"),
    MigPlacement(6, "1g.5gb"),
)


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


def a_crowd(count: int) -> list[JsonObject]:
    """As a mix, with shares of memory and slices of both sizes among it; see `sliced` for where those are."""
    pods = a_mix(count)
    for number, pod in enumerate(pods):
        resources = _RARE_REQUESTS.get(number % 40)
        if resources is not None:
            pod["spec"]["containers"][0]["resources"]["limits"] = dict(resources)
    return pods


def sliced(machines: Sequence[MachineSpec]) -> tuple[MachineSpec, ...]:
    """The same machines, with four cards of every other A100 machine of NVIDIA's plugin cut into slices."""
    a100 = [one.node for one in machines if one.mode is NodeMode.NVIDIA and one.gpu_model == _SLICED_MODEL]
    chosen = set(a100[::2])
    return tuple(replace(one, mig=(_SLICES,) * 4) if one.node in chosen else one for one in machines)


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
