"""The webhook, registered at the simulated API as the charts register it at a real one."""

import base64
from pathlib import Path

from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Resource
from gpuloom.runtime.clock import Clock

NAME = "gpuloom-webhook"

_OURS = ["gpu.warp.dev", "gpu-autoscaler.io", "kubeai.io", "gpuloom.dev"]


def configurations(address: str, ca_file: Path) -> list[tuple[Resource, JsonObject]]:
    authority = ca_file.read_bytes()
    pods = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    ours = {
        "operations": ["CREATE", "UPDATE"],
        "apiGroups": _OURS,
        "apiVersions": ["*"],
        "resources": ["*"],
    }

    def webhook(path: str, rule: JsonObject) -> JsonObject:
        return {
            "name": f"{path}.gpuloom.dev",
            "clientConfig": {
                "url": f"https://{address}/{path}",
                "caBundle": base64.b64encode(authority).decode(),
            },
            "rules": [rule],
            "failurePolicy": "Ignore",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 5,
        }

    metadata = {"name": NAME, "labels": {"app.kubernetes.io/part-of": "gpuloom"}}
    mutating = [webhook("mutate-pods", pods), webhook("default", ours)]
    return [
        (MUTATING_WEBHOOKS, {"metadata": metadata, "webhooks": mutating}),
        (VALIDATING_WEBHOOKS, {"metadata": metadata, "webhooks": [webhook("validate", ours)]}),
    ]


async def register_webhook(api_url: str, address: str, ca_file: Path, clock: Clock) -> None:
    """Raise a GpuloomError if the simulated API does not take it."""
    async with KubeClient(KubeAccess(api_url), clock) as client:
        for resource, configuration in configurations(address, ca_file):
            await client.create(resource, configuration)
