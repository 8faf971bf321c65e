"""Advice by history, from the optimizer, which may be slow or away.

Pods of one kind are one question: its answer is kept for a moment, and whoever asks meanwhile waits for the
call that is under way. A pod never waits longer than it may; the call goes on without it, for the next one.
Nobody waits at all for a call that others have waited for in vain, when too much is asked at once, or when
the optimizer failed a moment ago.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from gpuloom.clients.optimizer import advise
from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.model.optimization import PodAdvice
from gpuloom.rpc.channel import RpcChannel
from gpuloom.runtime.clock import Clock, deadline
from services.webhook.core.pods import Advice
from services.webhook.core.questions import Json, key_of_question, question_of
from services.webhook.metrics import WebhookMetrics

KEPT_S = 15.0
"""As long an answer holds. History changes with runs that end, not from one pod to the next."""
MAX_KEPT = 4096
MAX_CALLS = 32
CALL_TIMEOUT_S = 1.0
LEFT_ALONE_S = 1.0
"""After a failure nobody asks for so long."""

Ask = Callable[[Json, str], Awaitable[PodAdvice]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Call:
    task: asyncio.Task[Advice | None]
    began_s: float


def asking(channel: RpcChannel, timeout_s: float = CALL_TIMEOUT_S) -> Ask:
    return lambda question, namespace: advise(channel, question, namespace, timeout_s=timeout_s)


class OptimizerAdvisor:
    """Whatever goes wrong is no advice: then the pod is admitted without. Use as an async context manager."""

    def __init__(self, ask: Ask, clock: Clock, metrics: WebhookMetrics) -> None:
        self._ask = ask
        self._clock = clock
        self._metrics = metrics
        self._kept: dict[bytes, tuple[float, Advice | None]] = {}
        """Until when, by question; the oldest first."""
        self._calls: dict[bytes, _Call] = {}
        self._asks_again_s = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def advice(self, pod: Mapping[str, Any], namespace: str, *, timeout_s: float) -> Advice | None:
        question = question_of(pod)
        key = key_of_question(question, namespace)
        now_s = self._clock.monotonic()
        ends_s, known = self._kept.get(key, (now_s, None))
        if now_s < ends_s:
            self._count("none" if known is None else "advised")
            return known
        call = self._calls.get(key) or self._begin(key, question, namespace)
        left_s = 0.0 if call is None else min(timeout_s, call.began_s + timeout_s - now_s)
        if call is None or left_s <= 0:
            self._count("shed")
            return None
        return await self._outcome(call.task, left_s)

    async def _outcome(self, call: asyncio.Task[Advice | None], timeout_s: float) -> Advice | None:
        try:
            async with deadline(self._clock, timeout_s):
                found = await asyncio.shield(call)
        except TimeoutError:
            self._count("late")
            return None
        except GpuloomError:
            self._count("failed")
            return None
        self._count("none" if found is None else "advised")
        return found

    def _begin(self, key: bytes, question: Json, namespace: str) -> "_Call | None":
        now_s = self._clock.monotonic()
        if len(self._calls) >= MAX_CALLS or now_s < self._asks_again_s:
            return None
        task = asyncio.create_task(self._call(key, question, namespace))
        task.add_done_callback(lambda done: self._ended(key, done))
        call = self._calls[key] = _Call(task, now_s)
        return call

    async def _call(self, key: bytes, question: Json, namespace: str) -> Advice | None:
        try:
            found = _advice(await self._ask(question, namespace))
        except InvalidRequestError:
            # About this question alone.
            raise
        except GpuloomError:
            self._asks_again_s = self._clock.monotonic() + LEFT_ALONE_S
            raise
        # What is asked again is as young as its answer.
        self._kept.pop(key, None)
        while len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = self._clock.monotonic() + KEPT_S, found
        return found

    def _ended(self, key: bytes, call: asyncio.Task[Advice | None]) -> None:
        del self._calls[key]
        if not call.cancelled() and (error := call.exception()) is not None:
            _log.debug("no advice", extra={"reason": str(error)})

    def _count(self, result: str) -> None:
        self._metrics.advice.labels(result).inc()


def _advice(told: PodAdvice) -> Advice | None:
    if told.utilization_ratio is None:
        return None
    return Advice(
        told.utilization_ratio,
        told.mig_profile or None,
        told.plugin_resource or None,
        told.milli or None,
        told.memory_mib or None,
    )
