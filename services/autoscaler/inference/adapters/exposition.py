"""Gauges read from one exposition, where there is no Prometheus: what waits and what runs now, by pod.

It answers only what is a plain sum of gauges. Rates, percentiles and PromQL of your own need Prometheus, and
are told to be missing. What the exposition does not have is missing as well, never zero.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

import aiohttp
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gpuloom.errors import DeadlineError, GpuloomError, UnavailableError
from services.autoscaler.inference.core.measures import Answer, Question

TIMEOUT_S = 5.0
MAX_BYTES = 16 * 1024 * 1024


class ExpositionMeasures:
    """Use it as an async context manager."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, questions: Mapping[str, Question]) -> dict[str, Answer]:
        try:
            families = await self._read()
        except GpuloomError as error:
            return {name: Answer(problem=str(error)) for name in questions}
        return {name: _answer(one, families) for name, one in questions.items()}

    async def past(self, query: str, until: datetime, length: timedelta, step_s: float) -> list[float]:
        return []

    async def _read(self) -> list[Metric]:
        if self._session is None:
            raise UnavailableError("the exposition is not open")
        try:
            async with self._session.get(self._url) as answer:
                body = b""
                # `read` gives what is there; the rest comes in further parts, and half a number is another.
                while not answer.content.at_eof() and len(body) <= MAX_BYTES:
                    body += await answer.content.read(MAX_BYTES + 1 - len(body))
                if len(body) > MAX_BYTES:
                    raise UnavailableError(f"{self._url} answered more than {MAX_BYTES} bytes")
                if answer.status != 200:
                    raise UnavailableError(f"{self._url} answered {answer.status}")
            return list(text_string_to_metric_families(body.decode()))
        except TimeoutError as error:
            raise DeadlineError(f"{self._url} did not answer within {TIMEOUT_S:g} s") from error
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            raise UnavailableError(f"{self._url} can't be reached") from error
        except ValueError as error:
            raise UnavailableError(f"{self._url} is no exposition: {error}") from error


def _answer(question: Question, families: Iterable[Metric]) -> Answer:
    if not question.gauges or question.pods is None:
        return Answer(problem="it needs Prometheus, and GPULOOM_PROMETHEUS_URL is not set")
    pods = question.pods
    found: defaultdict[str, float] = defaultdict(float)
    for family in families:
        for sample in family.samples if family.name in question.gauges else ():
            pod = sample.labels.get("pod", "")
            if sample.labels.get("namespace") == pods.namespace and pod in pods.names:
                found[pod] += sample.value
    return Answer(pods=dict(found))
