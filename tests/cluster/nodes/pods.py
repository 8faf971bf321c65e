"""Pods that real nodes can run, and what one waits for about them."""

from collections.abc import Mapping
from typing import Any

from gpuloom.cli.scheduling.scheduler_config import OWN_SCHEDULER
from gpuloom.errors import NotFoundError, UnavailableError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import PODS
from gpuloom.names import ANNOTATION_ALLOCATION, ANNOTATION_VISIBLE_DEVICES, RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import Clock, deadline
from tests.cluster.nodes.image import IMAGE

NAMESPACE = "default"
CONTAINER = "main"
VARIABLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
VARIABLE_ALLOCATION = "GPULOOM_ALLOCATION"
VARIABLE_NAMESPACE = "POD_NAMESPACE"
VARIABLE_NAME = "POD_NAME"

START_TIMEOUT_S = 120.0
_POLL_S = 0.2


def a_pod(name: str, node: str = "", milli: int = 0) -> JsonObject:
    """A pod that sleeps. `node` binds it at once; `milli` asks for that much of a GPU.

    Its environment shows by the downward API what it was given, as its annotations said when it started.
    """
    resources = {RESOURCE_GPU_MILLI: str(milli)} if milli else {}
    spec: dict[str, Any] = {
        "schedulerName": OWN_SCHEDULER,
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [
            {
                "name": CONTAINER,
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "resources": {"limits": resources},
                "env": [
                    _field(VARIABLE_NAMESPACE, "metadata.namespace"),
                    _field(VARIABLE_NAME, "metadata.name"),
                    _field(VARIABLE_DEVICES, f"metadata.annotations['{ANNOTATION_VISIBLE_DEVICES}']"),
                    _field(VARIABLE_ALLOCATION, f"metadata.annotations['{ANNOTATION_ALLOCATION}']"),
                ],
            }
        ],
    }
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def a_pod_of_a_plugin(name: str, node: str, resource: str, count: int) -> JsonObject:
    """A pod that sleeps on this node with devices of a device plugin, and no word of ours about them."""
    pod = a_pod(name, node)
    (container,) = pod["spec"]["containers"]
    plugged = {**container, "env": [], "resources": {"limits": {resource: str(count)}}}
    return {**pod, "spec": {**pod["spec"], "containers": [plugged]}}


async def wait_started(client: KubeClient, name: str, clock: Clock) -> JsonObject:
    """The pod once its container runs. Raise UnavailableError, with what is known, if it does not."""
    pod: JsonObject = {}
    try:
        async with deadline(clock, START_TIMEOUT_S):
            while not has_started(pod):
                pod = await client.get(PODS, name, NAMESPACE)
                await clock.sleep(0 if has_started(pod) else _POLL_S)
    except TimeoutError:
        raise UnavailableError(f"pod {name} does not start: {describe(pod)}") from None
    return pod


async def wait_gone(client: KubeClient, name: str, clock: Clock) -> None:
    """Until Kubernetes has no pod of that name. Raise TimeoutError if it stays."""
    async with deadline(clock, START_TIMEOUT_S):
        while True:
            try:
                await client.get(PODS, name, NAMESPACE)
            except NotFoundError:
                return
            await clock.sleep(_POLL_S)


async def wait_unschedulable(client: KubeClient, name: str, clock: Clock) -> str:
    """What the scheduler says of a pod that it finds no node for. Raise TimeoutError if it finds one."""
    async with deadline(clock, START_TIMEOUT_S):
        while True:
            pod = await client.get(PODS, name, NAMESPACE)
            for condition in pod["status"].get("conditions") or ():
                if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
                    return str(condition["message"])
            await clock.sleep(_POLL_S)


def has_started(pod: Mapping[str, Any]) -> bool:
    statuses = _container_statuses(pod)
    return bool(statuses) and all("running" in status.get("state", {}) for status in statuses)


def container_id(pod: Mapping[str, Any]) -> str:
    return str(_container_statuses(pod)[0]["containerID"])


def restarts(pod: Mapping[str, Any]) -> int:
    return int(_container_statuses(pod)[0]["restartCount"])


def describe(pod: Mapping[str, Any]) -> str:
    """Why it is where it is: its conditions and the states of its containers."""
    status = pod.get("status") or {}
    conditions = [entry.get("message") for entry in status.get("conditions") or () if entry.get("message")]
    states = [entry.get("state") for entry in _container_statuses(pod)]
    return f"phase {status.get('phase')}, {conditions}, {states}"


def _container_statuses(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list((pod.get("status") or {}).get("containerStatuses") or ())


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
