"""Hints that come, come late, fail, or are about pods that are gone."""

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry

from gpuloom.errors import UnavailableError
from gpuloom.kube.cache import Change
from gpuloom.model.node import PodRef
from gpuloom.model.optimization import NodeHints
from gpuloom.runtime.clock import FakeClock
from services.scheduler_extender.adapters.hints import MAX_WAITING, TRIES_AFTER_S, Hints
from tests.mesh.waiting import running


def a_pod(uid: str, node: str = "") -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": resources}]}
    metadata = {"name": uid, "namespace": "team", "uid": uid}
    return {"metadata": metadata, "spec": {**spec, **({"nodeName": node} if node else {})}}


def came(uid: str) -> Change:
    return Change(None, a_pod(uid))


class Optimizer:
    def __init__(self, *answers: NodeHints | Exception) -> None:
        self.asked: list[PodRef] = []
        self._answers = list(answers)

    async def hint(self, ref: PodRef) -> NodeHints:
        self.asked.append(ref)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


PREFERS = NodeHints((("n1", 1.0), ("n2", -0.5)), 0.8, "training")


async def test_a_pod_that_appears_has_its_hint_until_it_is_bound() -> None:
    clock, optimizer = FakeClock(), Optimizer(PREFERS)
    hints = Hints(optimizer.hint, 5.0, clock, CollectorRegistry())
    async with running(hints.run):
        hints.observe(came("p1"))
        await clock.advance(0.0)
        known = dict(hints.of("p1"))
        hints.observe(Change(a_pod("p1"), a_pod("p1", node="n1")))

    assert known == {"n1": 4.0, "n2": -2.0}
    assert dict(hints.of("p1")) == {}
    assert [ref.name for ref in optimizer.asked] == ["p1"]


async def test_an_optimizer_that_fails_or_does_not_know_the_pod_yet_is_asked_again_and_then_left() -> None:
    clock, late = FakeClock(), Optimizer(UnavailableError("away"), PREFERS)
    gone = Optimizer(UnavailableError("away"))
    for optimizer, expected in ((late, True), (gone, False)):
        hints = Hints(optimizer.hint, 5.0, clock, CollectorRegistry())
        async with running(hints.run):
            hints.observe(came("p1"))
            await clock.advance(sum(TRIES_AFTER_S) + 0.1)

            assert bool(hints.of("p1")) == expected
    assert len(gone.asked) == len(TRIES_AFTER_S)


async def test_a_flood_of_pods_is_bounded_and_never_waits() -> None:
    clock, never = FakeClock(), asyncio.Event()

    async def silent(_: PodRef) -> NodeHints:
        await never.wait()
        return PREFERS

    hints = Hints(silent, 5.0, clock, CollectorRegistry())
    async with running(hints.run):
        for number in range(3 * MAX_WAITING):
            hints.observe(came(f"p{number}"))
        await clock.advance(1.0)

        assert len(hints._waiting) <= MAX_WAITING
        assert dict(hints.of("p1")) == {}
