"""Google Cloud's managed instance groups, as compute/v1 puts them on the wire."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.contract.clouds.emulator import Answer, GroupEmulator

PROJECT, REGION, GROUP = "my-project", "us-central1", "gpu-spot-mig"
_BASE = f"/compute/v1/projects/{PROJECT}"


class GcpEmulator(GroupEmulator):
    zone = "us-central1-a"
    autoscaler = ""
    failed_operation: dict[str, Any] | None = None
    template = "global/instanceTemplates/gpu-spot-template"
    templates = frozenset({template})

    def answer(self, method: str, path: str, body: Any) -> Answer:
        url = urlsplit(path)
        group = f"{_BASE}/zones/{self.zone}/instanceGroupManagers/{GROUP}"
        action = url.path.removeprefix(group).strip("/")
        if url.path == f"{_BASE}/aggregated/instanceGroupManagers":
            listed = {"instanceGroupManagers": [{"name": GROUP}]}
            return 200, {"items": {"zones/europe-west4-b": {}, f"zones/{self.zone}": listed}}
        if url.path.removeprefix(f"{_BASE}/") in self.templates:
            return 200, {
                "name": "gpu-spot-template",
                "properties": {"machineType": "a2-highgpu-1g", "scheduling": {"provisioningModel": "SPOT"}},
            }
        if "/operations/" in url.path:
            error = {"error": {"errors": [self.failed_operation]}} if self.failed_operation else {}
            return 200, {"name": "operation-1", "status": "DONE", **error}
        if not url.path.startswith(group):
            return 404, {"error": {"code": 404, "message": f"{path} was not found"}}
        return self._of_group(action, url.query, body)

    def _of_group(self, action: str, query: str, body: Any) -> Answer:
        if action == "resize":
            self.size = int(parse_qs(query)["size"][0])
        elif action == "deleteInstances":
            for name in body["instances"]:
                self.delete(int(name.rsplit("-", 1)[-1]))
        elif action == "listManagedInstances":
            return 200, {"managedInstances": [self._managed(one) for one in self.machines]}
        else:
            return 200, self._group()
        return 200, {"name": "operation-1", "status": "RUNNING"}

    def _group(self) -> dict[str, Any]:
        return {
            "name": GROUP,
            "targetSize": self.size,
            "instanceTemplate": f"{_BASE}/{self.template}",
            "status": {"isStable": False, **({"autoscaler": self.autoscaler} if self.autoscaler else {})},
        }

    def _managed(self, machine: Any) -> dict[str, Any]:
        actions = {"creating": "CREATING", "running": "NONE", "deleting": "DELETING"}
        managed: dict[str, Any] = {
            "instance": f"https://www.googleapis.com{_BASE}/zones/{self.zone}/instances/{GROUP}-{machine.number}",
            "id": str(1000 + machine.number),
            "currentAction": actions[machine.state],
        }
        if machine.state == "running":
            managed["instanceStatus"] = "RUNNING"
        if machine.state == "creating" and self.out_of_capacity:
            error = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "the zone has none left"}
            managed["lastAttempt"] = {"errors": {"errors": [error]}}
        return managed
