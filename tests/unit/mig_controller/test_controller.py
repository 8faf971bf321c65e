"""The leader's loop, round after round."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import InvalidRequestError
from gpuloom.model.claims import HoldTarget
from gpuloom.model.node import Delivery, NodeMode, PodRef
from gpuloom.model.objects import ObjectMeta
from gpuloom.model.sharing import GpuNodeConfig, GpuNodeConfigSpec
from gpuloom.model.snapshot import NodeFacts
from gpuloom.runtime.clock import FakeClock
from services.mig_controller.controller import Controller, Makers, Sources
from services.mig_controller.core.intents import decode
from services.mig_controller.core.plan import Options
from services.mig_controller.defragmenter import Defragmenter, DefragmentOptions
from services.mig_controller.metrics import MigMetrics
from services.mig_controller.steering import Steering, SteeringOptions
from tests.mesh.waiting import until
from tests.unit.mig_controller import test_steering, test_transactions
from tests.unit.mig_controller.builders import a_pod
from tests.unit.mig_controller.test_defragmenter import SamePrice


def a_controller(
    clock: FakeClock,
    told: list[str],
    pods: Sequence[dict[str, Any]] = (),
    facts: Iterable[NodeFacts] = (),
    configs: Iterable[GpuNodeConfig] = (),
    world: test_transactions.World | None = None,
) -> Controller:
    world = world or test_transactions.World()
    nodes, metrics = test_steering.World(), MigMetrics(CollectorRegistry())

    def tell(about: PodRef, reason: str, text: str) -> None:
        told.append(reason)

    return Controller(
        Sources(lambda: facts, lambda: pods, lambda: configs, lambda: ""),
        Makers(
            lambda: test_transactions.transactions(world, clock),
            lambda: Steering(nodes, nodes, clock, metrics, SteeringOptions()),
            Defragmenter(lambda: pods, SamePrice(), DefragmentOptions()),
        ),
        Options(delay_s=0.0, most_changes=8),
        clock,
        metrics,
        tell,
    )


async def test_a_pod_for_which_nothing_can_be_made_is_told_so_now_and_then() -> None:
    clock, told = FakeClock(), list[str]()
    pod = a_pod("a") | {"status": {"phase": "Pending"}}
    del pod["spec"]["nodeName"]
    leading = asyncio.create_task(a_controller(clock, told, [pod]).lead(2.0))

    for _ in range(50):
        await clock.advance(2.0)
    soon = list(told)
    for _ in range(150):
        await clock.advance(2.0)
    leading.cancel()

    assert soon == ["MigSliceNotPossible"]
    assert len(told) == 2


async def test_configs_of_many_nodes_are_carried_out_a_few_changes_at_a_time() -> None:
    clock = FakeClock()
    names = [f"n{number}" for number in range(4)]
    facts = [eight_gpus(name) for name in names]
    configs = [a_config(name) for name in names]
    controller = a_controller(clock, [], (), facts, configs)
    leading = asyncio.create_task(controller.lead(2.0))

    await clock.advance(1.0)
    view = controller.current()
    leading.cancel()

    assert len(view.intents) == 8
    assert sum(len(reasons) for reasons in (view.waiting or {}).values()) == 3 * 8


class SlowHolds(test_transactions.World):
    """Takes its second hold when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()

    async def take(
        self, name: str, target: HoldTarget, reason: str, ttl_s: int, *, allow_used: bool = False
    ) -> None:
        if self.holds:
            await self.go_on.wait()
        await super().take(name, target, reason, ttl_s, allow_used=allow_used)


async def test_a_plan_is_begun_as_a_whole_though_whoever_asked_for_it_has_left() -> None:
    clock, world, demand = FakeClock(), SlowHolds(), {"7g.40gb": 8}
    controller = a_controller(clock, [], facts=[eight_gpus("n1")], world=world)
    leading = asyncio.create_task(controller.lead(1000.0))
    await clock.advance(1.0)
    plan = await controller.fit(demand)

    asking = asyncio.create_task(controller.make_fit(demand, plan.fingerprint))
    await until(lambda: world.holds)
    asking.cancel()
    await asyncio.wait({asking}, timeout=0)
    world.go_on.set()
    outcome = await asyncio.gather(asking, return_exceptions=True)
    leading.cancel()

    assert isinstance(outcome[0], asyncio.CancelledError)
    assert len(world.holds) == len(decode(world.written)) == 8


async def test_a_profile_that_no_gpu_here_has_is_refused_with_those_it_has() -> None:
    clock = FakeClock()
    controller = a_controller(clock, [], facts=[eight_gpus("n1")])
    leading = asyncio.create_task(controller.lead(1000.0))
    await clock.advance(1.0)

    with pytest.raises(InvalidRequestError, match=r"into 1g\.99gb; profiles here: 1g\.10gb, 1g\.5gb,"):
        await controller.fit({"1g.99gb": 1, "3g.20gb": 1})
    leading.cancel()


def eight_gpus(name: str) -> NodeFacts:
    node = test_steering.a_node(name, gpus=8)
    return replace(node, state=replace(node.state, mode=NodeMode.GPULOOM, delivery=Delivery.NRI))


def a_config(node_name: str) -> GpuNodeConfig:
    return GpuNodeConfig(ObjectMeta(node_name), GpuNodeConfigSpec(node_name, mig_profiles=("3g.20gb",)))
