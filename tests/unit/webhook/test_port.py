"""What the port counts, and that a defect behind it is an error of its own and not a wrong answer."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import orjson
from prometheus_client import CollectorRegistry

from gpuloom.runtime.clock import FakeClock, SystemClock
from gpuloom.sim.processes.ports import HOST, free_ports
from services.webhook.core.reviews import Answer, Review
from services.webhook.metrics import WebhookMetrics
from services.webhook.server import AdmissionPort

REVIEW: Mapping[str, Any] = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "u", "operation": "CREATE", "kind": {"kind": "Pod"}, "object": {"metadata": {}}},
}


async def allow(_: Review) -> Answer:
    return Answer()


async def break_off(_: Review) -> Answer:
    raise RuntimeError("a defect")


async def test_reviews_are_counted_by_how_they_were_answered() -> None:
    registry = CollectorRegistry()
    (port,) = free_ports(1, random.Random())
    handlers = {"/good": allow, "/bad": break_off}
    served = AdmissionPort(handlers, HOST, port, None, SystemClock(), WebhookMetrics(registry))

    async with served, aiohttp.ClientSession(f"http://{HOST}:{port}") as session:
        answers = [
            (await session.post(path, json=body)).status
            for path, body in (("/good", REVIEW), ("/good", {}), ("/bad", REVIEW))
        ]

    def counted(path: str, result: str) -> float | None:
        return registry.get_sample_value("gpuloom_webhook_reviews_total", {"path": path, "result": result})

    assert answers == [200, 400, 500]
    assert counted("/good", "unchanged") == counted("/good", "invalid") == counted("/bad", "failed") == 1


async def test_the_time_that_a_review_takes_to_come_counts_as_waited() -> None:
    clock, body = FakeClock(), orjson.dumps(REVIEW)
    (port,) = free_ports(1, random.Random())
    begun, waited = asyncio.Event(), []

    class Watched(FakeClock):
        def monotonic(self) -> float:
            begun.set()
            return clock.monotonic()

    async def note(review: Review) -> Answer:
        waited.append(review.waited_s)
        return Answer()

    async def slowly() -> AsyncIterator[bytes]:
        yield body[:10]
        await begun.wait()
        await clock.advance(0.02)
        yield body[10:]

    served = AdmissionPort({"/x": note}, HOST, port, None, Watched(), WebhookMetrics(CollectorRegistry()))
    async with served, aiohttp.ClientSession(f"http://{HOST}:{port}") as session:
        await session.post("/x", data=slowly())

    assert waited == [0.02]
