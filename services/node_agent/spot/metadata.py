"""One question to the machine's metadata service.

Trusts nothing of the other side: an answer is bounded in size and time, never unpacked, and a redirect is not
followed. Never goes through a proxy: the service is at a link-local address, and another machine's would
answer for another machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp.http import HttpProcessingError

from gpuloom.runtime.clock import Clock, deadline
from services.node_agent.spot.core.problem import MetadataError, Problem

# Scheduled events of a full placement group (100 machines) are about 20 KiB.
MAX_ANSWER_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` finds names in any letter case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def content(self) -> bytes:
        """The body of a good answer. Raise MetadataError if it is a refusal."""
        if self.status == 200:
            return self.body
        if 300 <= self.status < 400:
            raise MetadataError(Problem.REFUSED, f"the metadata service redirects (status {self.status})")
        raise MetadataError(Problem.REFUSED, f"the metadata service answers with status {self.status}")


class Metadata:
    """A new connection for every question: a kept one would outlive a restart of the service."""

    def __init__(self, base_url: str, clock: Clock, timeout_s: float) -> None:
        self._base_url = base_url.rstrip("/")
        self._clock = clock
        self._timeout_s = timeout_s

    async def get(self, path: str, headers: Mapping[str, str]) -> Answer:
        """Raise MetadataError if there is no whole answer in time. Any status is an answer."""
        return await self._ask("GET", path, headers)

    async def put(self, path: str, headers: Mapping[str, str]) -> Answer:
        """As get."""
        return await self._ask("PUT", path, headers)

    async def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        try:
            async with (
                deadline(self._clock, self._timeout_s),
                _session() as session,
                session.request(
                    method, self._base_url + path, headers=headers, allow_redirects=False
                ) as response,
            ):
                return Answer(response.status, response.headers, await _bounded_body(response))
        except TimeoutError:
            raise MetadataError(
                Problem.SLOW, f"the metadata service did not answer within {self._timeout_s:g} s"
            ) from None
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            # ValueError: what aiohttp raises for some malformed answers.
            raise MetadataError(
                Problem.UNREACHABLE,
                f"the metadata service can't be reached or broke off ({type(error).__name__})",
            ) from None


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=1, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        # The deadline is ours, by the injected clock.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        headers={"Accept-Encoding": "identity", "User-Agent": "gpuloom"},
        auto_decompress=False,
        trust_env=False,
    )


async def _bounded_body(response: aiohttp.ClientResponse) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise MetadataError(Problem.MALFORMED, f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)
