"""What GPUNodeConfigs are told."""

from typing import Any

from gpuloom.runtime.clock import FakeClock
from services.mig_controller.adapters.configs import NodeConfigs
from services.mig_controller.controller import View
from tests.unit.mig_controller.builders import a_card


class Kubernetes:
    """The informer, and what is written."""

    def __init__(self, *names: str) -> None:
        self.written: dict[str, Any] = {}
        self._objects = {
            name: {
                "apiVersion": "gpu-autoscaler.io/v1alpha1",
                "kind": "GPUNodeConfig",
                "metadata": {"name": name, "uid": name, "generation": 1},
                "spec": {"nodeName": "n1", "migProfiles": ["3g.20gb"]},
            }
            for name in names
        }

    def objects(self) -> list[dict[str, Any]]:
        return list(self._objects.values())

    def get(self, name: str) -> dict[str, Any]:
        return self._objects[name]

    async def write(self, resource: object, name: str, patch: dict[str, Any]) -> None:
        self.written[name] = patch["status"]["conditions"][0]


async def test_of_two_configs_of_one_node_the_second_is_told_that_it_does_not_count() -> None:
    world = Kubernetes("b", "a")
    configs = NodeConfigs(world, world, FakeClock())  # type: ignore[arg-type]

    await configs.write_status(View(cards=(a_card("n1"),)))

    assert {name: (c["status"], c["reason"]) for name, c in world.written.items()} == {
        "a": ("True", "AsWanted"),
        "b": ("False", "Conflict"),
    }
    assert "GPUNodeConfig a" in world.written["b"]["message"]
