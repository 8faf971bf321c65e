"""Whom the optimizer is asked about, and how long a pod waits for it: never longer than it may."""

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import GpuloomError, InvalidRequestError, UnavailableError
from gpuloom.model.optimization import PodAdvice
from gpuloom.runtime.clock import FakeClock, settle
from services.webhook.adapters.optimizer import KEPT_S, LEFT_ALONE_S, MAX_CALLS, MAX_KEPT, OptimizerAdvisor
from services.webhook.core.pods import Advice
from services.webhook.metrics import WebhookMetrics

MAY_WAIT_S = 0.03
TOLD = PodAdvice(utilization_ratio=0.2, mig_profile="1g.10gb")
KNOWN = Advice(0.2, "1g.10gb")


def a_pod(image: str = "serve:1") -> dict[str, Any]:
    return {"metadata": {"generateName": "p-"}, "spec": {"containers": [{"name": "c", "image": image}]}}


class Optimizer:
    """Answers after so long, or fails."""

    def __init__(self) -> None:
        self.clock, self.registry = FakeClock(), CollectorRegistry()
        self.takes_s = 0.01
        self.failure: GpuloomError | None = None
        self.asked: list[str] = []
        self.advisor = OptimizerAdvisor(self._ask, self.clock, WebhookMetrics(self.registry))

    async def _ask(self, question: dict[str, Any], namespace: str) -> PodAdvice:
        self.asked.append(question["spec"]["containers"][0]["image"])
        await self.clock.sleep(self.takes_s)
        if self.failure is not None:
            raise self.failure
        return TOLD

    def admit(self, pod: dict[str, Any], timeout_s: float = MAY_WAIT_S) -> asyncio.Task[Advice | None]:
        return asyncio.create_task(self.advisor.advice(pod, "team", timeout_s=timeout_s))

    async def admitted(self, pod: dict[str, Any]) -> Advice | None:
        task = self.admit(pod)
        await self.clock.advance(MAY_WAIT_S)
        assert task.done()
        return task.result()

    def count(self, result: str) -> float | None:
        return self.registry.get_sample_value("gpuloom_webhook_advice_total", {"result": result})


async def test_pods_of_one_kind_that_come_together_are_asked_about_once() -> None:
    optimizer = Optimizer()
    tasks = [optimizer.admit(a_pod()) for _ in range(50)]

    await optimizer.clock.advance(0.01)
    optimizer.takes_s = 3600.0
    later = await optimizer.admitted(a_pod())

    assert [task.result() for task in tasks] == [KNOWN] * 50
    assert (later, optimizer.asked) == (KNOWN, ["serve:1"])
    assert optimizer.count("advised") == 51


async def test_an_answer_holds_for_a_moment() -> None:
    optimizer = Optimizer()
    await optimizer.admitted(a_pod())

    await optimizer.clock.advance(KEPT_S - 1.0)
    await optimizer.admitted(a_pod())
    before = len(optimizer.asked)
    await optimizer.clock.advance(1.1)
    await optimizer.admitted(a_pod())

    assert (before, len(optimizer.asked)) == (1, 2)


async def test_a_pod_waits_no_longer_than_it_may_and_the_next_one_has_the_answer() -> None:
    optimizer = Optimizer()
    optimizer.takes_s = 0.5
    first = optimizer.admit(a_pod())
    await optimizer.clock.advance(MAY_WAIT_S - 0.001)
    early = first.done()
    await optimizer.clock.advance(0.001)
    second = optimizer.admit(a_pod())
    await settle()
    at_once = second.done()
    await optimizer.clock.advance(0.5)

    assert (early, first.result()) == (False, None)
    assert at_once, "nobody waits for a call that was waited for in vain"
    assert await optimizer.admitted(a_pod()) == KNOWN
    assert len(optimizer.asked) == 1
    assert (optimizer.count("late"), optimizer.count("shed")) == (1, 1)


async def test_without_time_left_only_what_is_known_is_told() -> None:
    optimizer = Optimizer()

    unknown = await optimizer.admit(a_pod(), timeout_s=-0.01)
    await optimizer.clock.advance(1.0)
    known = await optimizer.admit(a_pod(), timeout_s=-0.01)

    assert (unknown, known) == (None, KNOWN)


async def test_when_too_much_is_asked_at_once_nobody_else_waits() -> None:
    optimizer = Optimizer()
    optimizer.takes_s = 3600.0
    tasks = [optimizer.admit(a_pod(f"kind:{number}")) for number in range(MAX_CALLS + 20)]

    await settle()

    assert sum(task.done() for task in tasks) == 20
    assert len(optimizer.asked) == MAX_CALLS
    async with optimizer.advisor:
        await optimizer.clock.advance(MAY_WAIT_S)
    assert all(task.done() for task in tasks)


@pytest.mark.parametrize(
    ("failure", "asked"),
    [(UnavailableError("away"), ["a", "b"]), (InvalidRequestError("odd"), ["a", "x", "b"])],
)
async def test_an_optimizer_that_failed_is_left_alone_for_a_moment(
    failure: GpuloomError, asked: list[str]
) -> None:
    optimizer = Optimizer()
    optimizer.failure = failure
    await optimizer.admitted(a_pod("a"))
    await optimizer.admitted(a_pod("x"))
    optimizer.failure = None

    await optimizer.clock.advance(LEFT_ALONE_S)

    assert await optimizer.admitted(a_pod("b")) == KNOWN
    assert optimizer.asked == asked


async def test_what_is_kept_is_bounded() -> None:
    optimizer = Optimizer()
    optimizer.takes_s = 0.0
    for number in range(MAX_KEPT + 10):
        await optimizer.admit(a_pod(f"kind:{number}"), 1.0)

    await optimizer.admit(a_pod("kind:0"), 1.0)
    await optimizer.admit(a_pod(f"kind:{MAX_KEPT + 9}"), 1.0)

    assert optimizer.asked.count("kind:0") == 2
    assert optimizer.asked.count(f"kind:{MAX_KEPT + 9}") == 1
