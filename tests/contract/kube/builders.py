"""Objects that a real API server accepts as well."""

from typing import Any

from gpuloom.kube.client import KubeClient
from gpuloom.kube.errors import AlreadyExistsError
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import NAMESPACES

NAMESPACE = "contract"


async def ensure_namespace(client: KubeClient) -> None:
    """A real API server is cleared between tests, but keeps its namespaces."""
    try:
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    except AlreadyExistsError:
        return


def a_pod(name: str, **metadata: Any) -> JsonObject:
    return {
        "metadata": {"namespace": NAMESPACE, "name": name, **metadata},
        "spec": {
            "containers": [{"name": "main", "image": "registry.invalid/work:1"}],
            "terminationGracePeriodSeconds": 30,
        },
    }


def a_node(name: str) -> JsonObject:
    return {"metadata": {"name": name}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}


def a_config_map(name: str, **data: str) -> JsonObject:
    return {"metadata": {"namespace": NAMESPACE, "name": name}, "data": data}


def a_budget(name: str, min_available: int, app: str) -> JsonObject:
    return {
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}},
    }


READY_STATUS: JsonObject = {
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}
