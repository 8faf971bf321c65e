"""The Kubernetes JSON that a kubelet writes: pod status, node, lease. Pure; it never sends anything."""

from datetime import datetime
from typing import Any

from gpuloom.kube.objects import JsonObject
from gpuloom.kube.parse import format_micro_time, format_time, parse_time, quantity_value
from gpuloom.model.node import NodeMode
from gpuloom.sim.kubelet.devices import unhealthy_devices
from gpuloom.sim.machines.hardware import Hardware
from gpuloom.sim.machines.load import Faults

LEASE_NAMESPACE = "kube-node-lease"
LEASE_DURATION_S = 40
MAX_PODS = 110
# A real kubelet reports an unchanged status this seldom; its lease says that it lives.
STATUS_REFRESH_S = 300.0


def running_status(pod: JsonObject, now: datetime) -> JsonObject:
    time = format_time(now)
    return {
        "phase": "Running",
        "hostIP": "127.0.0.1",
        "startTime": time,
        "conditions": _conditions(
            pod, {"Initialized": "True", "ContainersReady": "True", "Ready": "True"}, time
        ),
        "containerStatuses": [
            _container_status(container, {"running": {"startedAt": time}}, ready=True)
            for container in _containers(pod)
        ],
    }


def ended_status(pod: JsonObject, phase: str, reason: str, now: datetime) -> JsonObject:
    time = format_time(now)
    status = pod.get("status") or {}
    code = 0 if phase == "Succeeded" else 1
    terminated = {
        "exitCode": code,
        "reason": "Completed" if code == 0 else "Error",
        "startedAt": status.get("startTime") or time,
        "finishedAt": time,
    }
    ended: dict[str, Any] = {
        "phase": phase,
        "startTime": status.get("startTime") or time,
        "conditions": _conditions(pod, {"ContainersReady": "False", "Ready": "False"}, time),
        "containerStatuses": [
            _container_status(container, {"terminated": terminated}, ready=False)
            for container in _containers(pod)
        ],
    }
    return ended | ({"reason": reason} if reason else {})


def refused_status(reason: str, message: str, now: datetime) -> JsonObject:
    """A pod that was turned away at admission: no container of it ever existed."""
    return {"phase": "Failed", "reason": reason, "message": message, "startTime": format_time(now)}


def node_object(hardware: Hardware, faults: Faults, now: datetime) -> JsonObject:
    """As a kubelet registers it; its mode, and what GPULoom offers there, is discovery's to say."""
    capacity, allocatable = _resources(hardware, faults)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": hardware.spec.node, "labels": node_labels(hardware)},
        "spec": {"providerID": hardware.spec.provider_id} if hardware.spec.provider_id else {},
        "status": {
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": [_ready_condition(format_time(now), format_time(now))],
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": hardware.spec.node},
            ],
            "nodeInfo": {
                "kubeletVersion": "v1.36.0-sim",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


def node_labels(hardware: Hardware) -> dict[str, str]:
    spec = hardware.spec
    return {
        "kubernetes.io/hostname": spec.node,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": spec.instance_type,
        "topology.kubernetes.io/zone": spec.zone,
        **dict(spec.labels),
    }


def node_status_patch(
    node: JsonObject, hardware: Hardware, faults: Faults, now: datetime
) -> JsonObject | None:
    """What must be written to the node's status, or None.

    Like a real kubelet it owns the node's own resources and those of its device plugins, and leaves
    extended resources that somebody else put there alone.
    """
    status = node.get("status") or {}
    capacity, allocatable = _resources(hardware, faults)
    stale = _differs(status.get("capacity"), capacity) or _differs(status.get("allocatable"), allocatable)
    conditions = [condition for condition in status.get("conditions") or () if isinstance(condition, dict)]
    ready = next((condition for condition in conditions if condition.get("type") == "Ready"), {})
    if not stale and ready.get("status") == "True" and _age_s(ready, now) < STATUS_REFRESH_S:
        return None
    since = ready.get("lastTransitionTime") if ready.get("status") == "True" else None
    others = [condition for condition in conditions if condition.get("type") != "Ready"]
    renewed = _ready_condition(format_time(now), since or format_time(now))
    return {"status": {"capacity": capacity, "allocatable": allocatable, "conditions": [*others, renewed]}}


def _differs(shown: JsonObject | None, wanted: dict[str, str]) -> bool:
    """By amount: the API shows 1024Gi as 1Ti, and a kubelet that minded would write at every heartbeat."""
    return any(
        quantity_value((shown or {}).get(name, "0")) != quantity_value(value)
        for name, value in wanted.items()
    )


def lease_object(node: str, now: datetime) -> JsonObject:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node, "namespace": LEASE_NAMESPACE},
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": format_micro_time(now),
        },
    }


def _resources(hardware: Hardware, faults: Faults) -> tuple[dict[str, str], dict[str, str]]:
    own = {
        "cpu": str(hardware.spec.cpu_cores),
        "memory": f"{hardware.spec.memory_gib}Gi",
        "pods": str(MAX_PODS),
    }
    if hardware.spec.mode is not NodeMode.NVIDIA:
        return own, dict(own)
    devices = hardware.plugin_devices()
    unhealthy = {resource: len(list(unhealthy_devices(hardware, faults, resource))) for resource in devices}
    capacity = own | {resource: str(len(found)) for resource, found in devices.items()}
    allocatable = own | {
        resource: str(len(found) - unhealthy[resource]) for resource, found in devices.items()
    }
    return capacity, allocatable


def _conditions(pod: JsonObject, states: dict[str, str], time: str) -> list[JsonObject]:
    """A merge patch replaces the list, so what others put there is carried along."""
    kept = [
        condition
        for condition in (pod.get("status") or {}).get("conditions") or ()
        if condition.get("type") not in states
    ]
    return kept + [
        {"type": name, "status": state, "lastTransitionTime": time} for name, state in states.items()
    ]


def _container_status(container: JsonObject, state: JsonObject, *, ready: bool) -> JsonObject:
    return {
        "name": container.get("name"),
        "image": container.get("image", ""),
        "imageID": "",
        "restartCount": 0,
        "ready": ready,
        "started": ready,
        "state": state,
    }


def _containers(pod: JsonObject) -> list[JsonObject]:
    return list((pod.get("spec") or {}).get("containers") or ())


def _ready_condition(heartbeat: str, since: str) -> JsonObject:
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "simulated kubelet is posting ready status",
        "lastHeartbeatTime": heartbeat,
        "lastTransitionTime": since,
    }


def _age_s(condition: JsonObject, now: datetime) -> float:
    try:
        return (now - parse_time(condition.get("lastHeartbeatTime") or "")).total_seconds()
    except ValueError:
        return STATUS_REFRESH_S
