"""Scrapes an agent as Prometheus does, over a kept connection, and tells what each took."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import aiohttp

from gpuloom.errors import UnavailableError
from gpuloom.runtime.clock import Clock
from tests.bench.agent.observation import OwnFigures, cpu_s, parse_own_figures
from tests.bench.agent.stage import RunningAgent

# A new look is there after every pause, for an agent that looks once a second.
_NEXT_LOOK_S = 1.4


class Page(StrEnum):
    """`OWN` is the service's own endpoint, which scrapes of the GPU metrics are compared with.

    The text of GPU metrics is written when a sample is first asked for, and kept until the next.
    """

    OWN = "own metrics"
    KEPT = "GPU metrics, kept text"
    KEPT_GZIP = "GPU metrics, kept text, gzip"
    WRITTEN = "GPU metrics, written anew"
    WRITTEN_GZIP = "GPU metrics, written anew, gzip"


KEPT_PAGES = (Page.OWN, Page.KEPT, Page.KEPT_GZIP)
WRITTEN_PAGES = (Page.WRITTEN, Page.WRITTEN_GZIP)
_COMPRESSED = (Page.KEPT_GZIP, Page.WRITTEN_GZIP)


@dataclass(frozen=True, slots=True)
class Scrape:
    """`cpu_s` is the agent's."""

    took_s: float
    cpu_s: float
    size_bytes: int


class Scraper:
    def __init__(self, session: aiohttp.ClientSession, clock: Clock) -> None:
        """The session must leave compressed bodies as they are."""
        self._session = session
        self._clock = clock

    async def kept(self, agent: RunningAgent, count: int) -> Mapping[Page, list[Scrape]]:
        """The pages take turns, so that whatever else the machine does meets all of them."""
        for page in KEPT_PAGES:
            await self._scrape(agent, page)
        found: dict[Page, list[Scrape]] = {page: [] for page in KEPT_PAGES}
        for _ in range(count):
            for page in KEPT_PAGES:
                found[page].append(await self._scrape(agent, page))
        return found

    async def written(self, agent: RunningAgent, count: int) -> Mapping[Page, list[Scrape]]:
        """Each after a sample that nobody asked for yet."""
        found: dict[Page, list[Scrape]] = {page: [] for page in WRITTEN_PAGES}
        for _ in range(count):
            for page in WRITTEN_PAGES:
                await self._clock.sleep(_NEXT_LOOK_S)
                found[page].append(await self._scrape(agent, page))
        return found

    async def own_figures(self, agent: RunningAgent) -> OwnFigures:
        return parse_own_figures((await self._body(agent.own_metrics_url, "identity")).decode())

    async def gpu_metrics(self, agent: RunningAgent, encoding: str = "identity") -> bytes:
        return await self._body(agent.gpu_metrics_url, encoding)

    async def _scrape(self, agent: RunningAgent, page: Page) -> Scrape:
        url = agent.own_metrics_url if page is Page.OWN else agent.gpu_metrics_url
        cpu_before_s, began_s = cpu_s(agent.pid), self._clock.monotonic()
        body = await self._body(url, "gzip" if page in _COMPRESSED else "identity")
        took_s = self._clock.monotonic() - began_s
        return Scrape(took_s, cpu_s(agent.pid) - cpu_before_s, len(body))

    async def _body(self, url: str, encoding: str) -> bytes:
        """Raise UnavailableError for anything but a good answer."""
        try:
            async with self._session.get(url, headers={"Accept-Encoding": encoding}) as answer:
                body = await answer.read()
        except aiohttp.ClientError as error:
            raise UnavailableError(f"{url} can't be scraped: {error}") from error
        if answer.status != 200:
            raise UnavailableError(f"{url} was answered with {answer.status}")
        return body
