"""Asks Prometheus everything that a round needs, several queries at a time. Decides nothing about answers."""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta

from gpuloom.clients.prometheus import PrometheusClient, Range
from gpuloom.errors import GpuloomError
from services.autoscaler.inference.core.measures import Answer, Question
from services.autoscaler.inference.core.queries import POD

AT_ONCE = 8


class PrometheusMeasures:
    """`freshness_s`: samples older than this count as missing."""

    def __init__(self, client: PrometheusClient, freshness_s: float) -> None:
        self._client = client
        self._freshness_s = freshness_s
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def ask(self, questions: Mapping[str, Question]) -> dict[str, Answer]:
        answers = await asyncio.gather(*(self._one(one) for one in questions.values()))
        return dict(zip(questions, answers, strict=True))

    async def past(self, query: str, until: datetime, length: timedelta, step_s: float) -> list[float]:
        """One value a step, oldest first, gaps left out; empty if there is nothing."""
        over = Range(until - length, until, step_s)
        series = await self._client.range(query, over, max_age_s=self._freshness_s)
        return [value for _, value in series[0].points] if len(series) == 1 else []

    async def _one(self, question: Question) -> Answer:
        async with self._turns:
            try:
                if not question.by_pod:
                    return Answer(await self._client.value(question.query, max_age_s=self._freshness_s))
                found = await self._client.instant(question.query, max_age_s=self._freshness_s)
            except GpuloomError as error:
                return Answer(problem=str(error))
        return Answer(pods={one.labels[POD]: one.value for one in found if POD in one.labels})
