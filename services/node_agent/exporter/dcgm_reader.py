"""Reads NVIDIA's dcgm-exporter again and again, where it runs.

What it said last is given out only while it is fresh. Whatever it answers, the worst that happens is that
there is nothing to give.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from gpuloom.errors import GpuloomError, InvalidRequestError, UnavailableError
from gpuloom.runtime.clock import Clock, deadline
from services.node_agent.core.readings import DriverReading, Process
from services.node_agent.exporter.core.dcgm_reading import DcgmReading, merge, parse_dcgm
from services.node_agent.exporter.metrics import ExporterMetrics, Outcome
from services.node_agent.ports import GpuDriver

_log = logging.getLogger(__name__)

INTERVAL_S = 10.0
MAX_AGE_S = 3 * INTERVAL_S
MAX_BYTES = 8 * 1024 * 1024

_TIMEOUT_S = 5.0
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ReaderParts:
    session: aiohttp.ClientSession
    clock: Clock
    metrics: ExporterMetrics
    jitter: random.Random = field(default_factory=random.Random)


class DcgmReader:
    def __init__(self, node_name: str, where: Callable[[], str], parts: ReaderParts) -> None:
        """`where` tells the URL of dcgm-exporter now; empty while there is none."""
        self._node_name = node_name
        self._where = where
        self._parts = parts
        self._latest: DcgmReading | None = None
        self._read_at_s = 0.0
        self._problem = ""

    def latest(self) -> DcgmReading | None:
        """What it said lately; None if it does not run, does not answer, or has not been asked yet."""
        fresh = self._parts.clock.monotonic() - self._read_at_s <= MAX_AGE_S
        return self._latest if fresh and self._where() else None

    async def run(self) -> None:
        while True:
            await self.read()
            await self._parts.clock.sleep(INTERVAL_S * self._parts.jitter.uniform(0.9, 1.1))

    async def read(self) -> None:
        """Ask once. What can't be read leaves nothing to give: an old value is not a new one."""
        url = self._where()
        if not url:
            self._latest = None
            return
        try:
            body = await self._fetch(url)
            # A third of a millisecond a kilobyte: far too long for the event loop.
            self._latest = await asyncio.to_thread(parse_dcgm, body.decode("utf-8", "replace"))
            outcome, problem = Outcome.READ, ""
        except InvalidRequestError as error:
            self._latest, outcome, problem = None, Outcome.UNREADABLE, str(error)
        except GpuloomError as error:
            self._latest, outcome, problem = None, Outcome.UNREACHABLE, str(error)
        self._read_at_s = self._parts.clock.monotonic()
        self._parts.metrics.count_read(outcome)
        self._report(url, problem)

    async def _fetch(self, url: str) -> bytes:
        body = bytearray()
        try:
            async with (
                deadline(self._parts.clock, _TIMEOUT_S),
                # Nobody who answers may send us elsewhere.
                self._parts.session.get(url, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise UnavailableError(f"dcgm-exporter answers with status {answer.status}")
                async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise InvalidRequestError(f"dcgm-exporter's answer is beyond {MAX_BYTES} bytes")
        except TimeoutError as error:
            raise UnavailableError(f"dcgm-exporter does not answer within {_TIMEOUT_S:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UnavailableError(f"dcgm-exporter can't be asked ({type(error).__name__})") from error
        return bytes(body)

    def _report(self, url: str, problem: str) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        fields = {"node": self._node_name, "url": url, "reason": problem}
        if problem:
            _log.warning("dcgm-exporter can't be read", extra=fields)
        else:
            _log.info("dcgm-exporter is read", extra=fields)


class FilledDriver:
    """A GPU driver whose gaps are filled by what dcgm-exporter says."""

    def __init__(self, driver: GpuDriver, reader: DcgmReader) -> None:
        self._driver = driver
        self._reader = reader

    async def read(self) -> DriverReading:
        return merge(await self._driver.read(), self._reader.latest())

    async def list_processes(self) -> tuple[tuple[Process, ...], dict[str, str]]:
        return await self._driver.list_processes()
