"""What a pod is told when it is asked to leave."""

from dataclasses import dataclass, field
from typing import Any

from gpuloom.kube.errors import DisruptionBudgetError
from gpuloom.model.node import PodRef
from services.mig_controller.adapters.evictions import KubeEvictor
from tests.unit.mig_controller.builders import a_pod


@dataclass
class Kubernetes:
    """API server, informer and events in one; a budget refuses the first evictions."""

    refusals: int
    told: list[str] = field(default_factory=list)

    def get(self, name: str, namespace: str) -> dict[str, Any]:
        return a_pod(name)

    def normal(self, about: dict[str, Any], reason: str, text: str) -> None:
        self.told.append(reason)

    async def evict(self, namespace: str, name: str, options: object, *, timeout_s: float) -> None:
        if self.refusals:
            self.refusals -= 1
            raise DisruptionBudgetError("not now")


async def test_a_pod_is_told_that_it_moves_when_it_does() -> None:
    world = Kubernetes(refusals=2)
    evictor = KubeEvictor(world, world, world, lambda timeout_s: timeout_s)  # type: ignore[arg-type]

    answers = [await evictor.evict(PodRef("team", "a", "uid-a"), "room is made") for _ in range(3)]

    assert [bool(answer) for answer in answers] == [True, True, False]
    assert world.told == ["MovedToMakeRoom"]
