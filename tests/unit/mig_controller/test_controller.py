"""The leader's loop, round after round."""

import asyncio

from prometheus_client import CollectorRegistry

from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import FakeClock
from services.mig_controller.controller import Controller, Makers, Sources
from services.mig_controller.core.plan import Options
from services.mig_controller.defragmenter import Defragmenter, DefragmentOptions
from services.mig_controller.metrics import MigMetrics
from services.mig_controller.steering import Steering, SteeringOptions
from tests.unit.mig_controller import test_steering, test_transactions
from tests.unit.mig_controller.builders import a_pod
from tests.unit.mig_controller.test_defragmenter import SamePrice


async def test_a_pod_for_which_nothing_can_be_made_is_told_so_now_and_then() -> None:
    clock, told = FakeClock(), list[str]()
    world, nodes, metrics = test_transactions.World(), test_steering.World(), MigMetrics(CollectorRegistry())
    pod = a_pod("a") | {"status": {"phase": "Pending"}}
    del pod["spec"]["nodeName"]

    def tell(about: PodRef, reason: str, text: str) -> None:
        told.append(reason)

    controller = Controller(
        Sources(list, lambda: [pod], list, lambda: ""),
        Makers(
            lambda: test_transactions.transactions(world, clock),
            lambda: Steering(nodes, nodes, clock, metrics, SteeringOptions()),
            Defragmenter(list, SamePrice(), DefragmentOptions()),
        ),
        Options(delay_s=0.0),
        clock,
        metrics,
        tell,
    )
    leading = asyncio.create_task(controller.lead(2.0))
    for _ in range(50):
        await clock.advance(2.0)
    soon = list(told)
    for _ in range(150):
        await clock.advance(2.0)
    leading.cancel()

    assert soon == ["MigSliceNotPossible"]
    assert len(told) == 2
