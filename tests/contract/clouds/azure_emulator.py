"""Azure's virtual machine scale sets, as Resource Manager puts them on the wire."""

from typing import Any
from urllib.parse import urlsplit

from tests.contract.clouds.emulator import Answer, GroupEmulator

SUBSCRIPTION, RESOURCE_GROUP, SET = "11111111-2222-3333-4444-555555555555", "gpu-cluster", "gpu-spot-vmss"
_SET = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}"
    f"/providers/Microsoft.Compute/virtualMachineScaleSets/{SET}"
)
_STATES = {"creating": "Creating", "running": "Succeeded", "deleting": "Deleting"}


class AzureEmulator(GroupEmulator):
    port = 0

    def answer(self, method: str, path: str, body: Any) -> Answer:
        url = urlsplit(path)
        if "/operations/" in url.path:
            return 200, {"status": "Succeeded"}
        if not url.path.startswith(_SET):
            return 404, {"error": {"code": "ResourceNotFound", "message": f"{path} was not found"}}
        action = url.path.removeprefix(_SET).strip("/")
        if action == "virtualMachines":
            return 200, {"value": [self._machine(one) for one in self.machines]}
        if action == "delete":
            for number in body["instanceIds"]:
                self.delete(int(number))
            return 202, None
        if method == "PATCH":
            self.size = int(body["sku"]["capacity"])
        return 200, self._set()

    def headers(self, path: str) -> dict[str, str]:
        if not urlsplit(path).path.endswith("/delete"):
            return {}
        operation = f"https://localhost:{self.port}/subscriptions/{SUBSCRIPTION}/operations/1?api-version=1"
        return {"Azure-AsyncOperation": operation, "Location": operation, "Retry-After": "0"}

    def _set(self) -> dict[str, Any]:
        return {
            "id": _SET,
            "name": SET,
            "location": "eastus",
            "zones": ["1"],
            "sku": {"name": "Standard_NC24ads_A100_v4", "tier": "Standard", "capacity": self.size},
            "properties": {
                "provisioningState": "Succeeded",
                "virtualMachineProfile": {"priority": "Spot", "evictionPolicy": "Delete"},
            },
        }

    def _machine(self, machine: Any) -> dict[str, Any]:
        failed = machine.state == "creating" and self.out_of_capacity
        return {
            "id": f"{_SET}/virtualMachines/{machine.number}",
            "name": f"{SET}_{machine.number}",
            "instanceId": str(machine.number),
            "location": "eastus",
            "zones": ["1"],
            "sku": {"name": "Standard_NC24ads_A100_v4", "tier": "Standard"},
            "properties": {
                "vmId": f"vm-{machine.number}",
                "provisioningState": "Failed" if failed else _STATES[machine.state],
                "timeCreated": "2026-11-18T08:00:00Z",
            },
        }
