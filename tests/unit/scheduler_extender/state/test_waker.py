"""Waking pods that wait in kube-scheduler."""

import asyncio

from prometheus_client import CollectorRegistry

from gpuloom.errors import UnavailableError
from gpuloom.kube.cache import Change
from gpuloom.runtime.clock import FakeClock
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.metrics import ExtenderMetrics
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.state.waker import Waker
from tests.unit.scheduler_extender.builders import a_gpu, a_node, a_pod, a_ref, some_facts
from tests.unit.scheduler_extender.kubernetes import ScriptedApi


class Bedside:
    """Two nodes, whose facts come and go."""

    def __init__(self, pending: bool = True) -> None:
        self.clock = FakeClock()
        self.api = ScriptedApi()
        self.state = ClusterState(Ledger(30.0), lambda: False, self.clock)
        self.waker = Waker(self.state, self.api, self.clock, ExtenderMetrics(CollectorRegistry()))
        for name in ("n1", "n2"):
            self.state.observe_node(Change(None, a_node(name)))
        self.state.take_reopened()
        if pending:
            self.state.observe_pod(Change(None, a_pod(a_ref("pod"))))

    def reopen(self, *names: str) -> None:
        for name in names:
            for untrusted in ("silent", ""):
                facts = some_facts(name, a_gpu(f"GPU-{name}"), untrusted=untrusted)
                self.state.observe_facts(f"uid-{name}", facts)


async def test_one_node_is_touched_however_many_reopened() -> None:
    bedside = Bedside()
    bedside.reopen("n2", "n1")

    for _ in range(2):
        await bedside.waker.wake()

    assert bedside.api.touches == ["n1"]


async def test_nobody_is_woken_when_nobody_waits() -> None:
    bedside = Bedside(pending=False)
    bedside.reopen("n1")
    await bedside.waker.wake()

    bedside.state.observe_pod(Change(None, a_pod(a_ref("pod"))))
    await bedside.waker.wake()

    assert bedside.api.touches == []


async def test_nothing_is_touched_while_nothing_reopens() -> None:
    bedside = Bedside()

    await bedside.waker.wake()

    assert bedside.api.touches == []


async def test_after_a_failure_another_node_is_touched() -> None:
    bedside = Bedside()
    bedside.reopen("n1", "n2")
    bedside.api.marking_fails = [UnavailableError("down")]

    for _ in range(2):
        await bedside.waker.wake()

    assert bedside.api.touches == ["n2"]


async def test_there_is_at_most_one_touch_an_interval() -> None:
    bedside = Bedside()
    loop = asyncio.create_task(bedside.waker.run(1.0))

    touches = []
    for _ in range(3):
        bedside.reopen("n1", "n2")
        bedside.reopen("n2")
        await bedside.clock.advance(1.0)
        touches.append(len(bedside.api.touches))
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)

    assert touches == [1, 2, 3]
