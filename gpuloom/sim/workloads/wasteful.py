"""A Deployment of the played workload that uses a third of its GPU: what the optimizer is there to find."""

import logging

from gpuloom.errors import ConflictError, GpuloomError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import DEPLOYMENTS
from gpuloom.names import RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubelet.host import ANNOTATION_LOAD, ANNOTATION_MEMORY

NAME = "wasteful-serve"
RETRY_S = 5.0

_log = logging.getLogger(__name__)


def wasteful_deployment(namespace: str) -> JsonObject:
    labels = {"app": NAME}
    resources = {"cpu": "1", "memory": "4Gi", RESOURCE_GPU_MILLI: "1000"}
    container = {
        "name": "main",
        "image": f"registry.example.com/{NAME}:1",
        "ports": [{"containerPort": 8000}],
        "resources": {"requests": resources, "limits": {RESOURCE_GPU_MILLI: "1000"}},
    }
    annotations = {ANNOTATION_LOAD: "0.33", ANNOTATION_MEMORY: "0.2"}
    template = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 5},
    }
    return {
        "apiVersion": DEPLOYMENTS.api_version,
        "kind": DEPLOYMENTS.kind,
        "metadata": {"name": NAME, "namespace": namespace, "labels": labels},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


async def play_wasteful(client: KubeClient, namespace: str, clock: Clock) -> None:
    """Make it once, whatever the API does at first."""
    while True:
        try:
            await client.create(DEPLOYMENTS, wasteful_deployment(namespace))
        except ConflictError:
            return
        except GpuloomError as error:
            _log.warning("deployment not created", extra={"error": str(error)})
            await clock.sleep(RETRY_S)
        else:
            return
