"""Pods as discovery needs them, from Kubernetes' JSON.

Of 10,000 pods that are kept, only what is read here is kept. What can't be read is carried along with its
problem: such a pod may hold devices all the same.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gpuloom.codec.allocation import decode_allocation
from gpuloom.codec.pod import bound_node, is_terminal, pod_ref
from gpuloom.codec.resources import Container, ContainerKind, containers, pod_total
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.model.allocation import Allocation
from gpuloom.names import (
    ANNOTATION_ALLOCATION,
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
    RESOURCE_NVIDIA_MIG_PREFIX,
)
from services.discovery.agents import AgentPod
from services.discovery.core.pods import Asked, NodePod

_METADATA = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
_ANNOTATIONS = "gpuloom.dev/"
_RESOURCES = (
    RESOURCE_NVIDIA_GPU,
    RESOURCE_NVIDIA_MIG_PREFIX,
    RESOURCE_GPU_MILLI,
    RESOURCE_GPU_MEMORY_MIB,
)


def trimming(agent_labels: Mapping[str, str]) -> Callable[[JsonObject], JsonObject]:
    """What to keep of a pod; of its labels only those by which an agent's pod is known."""

    def trim(pod: JsonObject) -> JsonObject:
        metadata, spec, status = metadata_of(pod), _object(pod, "spec"), _object(pod, "status")
        labels, annotations = _object(metadata, "labels"), _object(metadata, "annotations")
        kept = _picked(metadata, _METADATA)
        kept["labels"] = _picked(labels, tuple(agent_labels))
        kept["annotations"] = {key: annotations[key] for key in annotations if key.startswith(_ANNOTATIONS)}
        return {
            "metadata": {key: value for key, value in kept.items() if value},
            "spec": _picked(spec, ("nodeName", "runtimeClassName"))
            | {key: _asking(spec[key]) for key in ("initContainers", "containers") if spec.get(key)},
            "status": _picked(status, ("phase", "podIP")),
        }

    return trim


def node_pod(pod: JsonObject) -> NodePod | None:
    """None for a pod that is bound to no node."""
    node_name = bound_node(pod)
    if node_name is None:
        return None
    allocation, problem = _allocation(pod)
    return NodePod(pod_ref(pod), node_name, is_terminal(pod), allocation, problem, _asked(pod))


def agent_pod(pod: JsonObject, namespace: str, labels: Mapping[str, str]) -> AgentPod | None:
    """None for a pod that is no agent's, or that has ended."""
    metadata = metadata_of(pod)
    carried = _object(metadata, "labels")
    node_name = bound_node(pod)
    if node_name is None or is_terminal(pod) or metadata.get("namespace") != namespace:
        return None
    if any(carried.get(key) != value for key, value in labels.items()):
        return None
    return AgentPod(
        uid=str(metadata.get("uid", "")),
        node_name=node_name,
        host=str(_object(pod, "status").get("podIP") or ""),
        leaving="deletionTimestamp" in metadata,
    )


def _allocation(pod: JsonObject) -> tuple[Allocation | None, str]:
    text = _object(metadata_of(pod), "annotations").get(ANNOTATION_ALLOCATION)
    if text is None:
        return None, ""
    if not isinstance(text, str):
        return None, "its allocation is no text"
    try:
        return decode_allocation(text), ""
    except InvalidRequestError as error:
        return None, str(error)


def _asked(pod: JsonObject) -> Asked | None:
    try:
        needs = containers(pod)
    except InvalidRequestError:
        return None
    lasting = (container for container in needs if container.kind is not ContainerKind.INIT)
    return Asked(lasting=sum(map(_plugged, lasting)), most=pod_total(needs, _plugged))


def _plugged(container: Container) -> int:
    """Devices of NVIDIA's plugin that this container asks for."""
    return sum(
        amount
        for resource, amount in container.devices.items()
        if resource == RESOURCE_NVIDIA_GPU or resource.startswith(RESOURCE_NVIDIA_MIG_PREFIX)
    )


def _asking(listed: Any) -> Any:
    """The containers that ask for GPUs, and of them what they ask for; a strange list is kept as it is."""
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        return listed
    trimmed = [
        _picked(entry, ("name", "restartPolicy")) | {"resources": _gpus_of(_object(entry, "resources"))}
        for entry in listed
    ]
    return [entry for entry in trimmed if entry["resources"]]


def _gpus_of(resources: JsonObject) -> JsonObject:
    sides = {
        side: {
            name: amount for name, amount in _object(resources, side).items() if name.startswith(_RESOURCES)
        }
        for side in ("limits", "requests")
    }
    return {side: amounts for side, amounts in sides.items() if amounts}


def _picked(body: JsonObject, keys: tuple[str, ...]) -> JsonObject:
    return {key: body[key] for key in keys if key in body}


def _object(parent: JsonObject, key: str) -> JsonObject:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}
