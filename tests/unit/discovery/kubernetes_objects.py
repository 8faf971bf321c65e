"""Nodes and pods as Kubernetes writes them."""

from collections.abc import Mapping
from typing import Any

AGENT_LABELS = {"app.kubernetes.io/name": "node-agent", "app.kubernetes.io/part-of": "gpuloom"}


def a_node_object(
    name: str = "n1",
    address: str = "10.0.0.1",
    *,
    labels: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    offers: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": dict(labels or {})},
        "spec": dict(spec or {}),
        "status": {
            "allocatable": dict(offers or {}),
            "addresses": [
                {"type": "Hostname", "address": name},
                {"type": "InternalIP", "address": address},
            ],
        },
    }


def a_pod_object(name: str = "train", node: str = "n1", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "managedFields": [{"manager": "kubelet"}],
            "ownerReferences": [{"kind": "Job", "name": name}],
            "labels": {"app": name},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{…}"},
        },
        "spec": {"nodeName": node, "containers": [a_container()], **spec},
        "status": {"phase": "Running", "podIP": "10.1.0.1", "conditions": [{"type": "Ready"}]},
    }


def a_container(name: str = "main", **gpus: str) -> dict[str, Any]:
    limits = {"cpu": "2", **gpus}
    return {"name": name, "image": "registry/image:1", "resources": {"limits": limits, "requests": limits}}


def an_agent_s_pod(uid: str, node: str, host: str, **changes: Any) -> dict[str, Any]:
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if changes.get("leaving") else {}
    metadata = {
        "name": uid,
        "namespace": changes.get("namespace", "gpuloom-system"),
        "uid": uid,
        "labels": changes.get("labels", AGENT_LABELS),
        **leaving,
    }
    status = {"phase": changes.get("phase", "Running"), **({"podIP": host} if host else {})}
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": status}
