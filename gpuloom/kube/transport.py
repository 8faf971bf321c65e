"""One HTTP request to the API server: credentials, deadline, metrics, and failures as typed errors.

Retries reads a few times inside their deadline; never a write, because whether a lost one acted is not known.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Self, TypeVar

import aiohttp
import orjson
from prometheus_client import CollectorRegistry, Counter, Histogram

from gpuloom.errors import DeadlineError, GpuloomError, NotAllowedError, TooLargeError, UnavailableError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.errors import Call, TooManyRequestsError, error_from_status
from gpuloom.kube.objects import JsonObject
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock, deadline

# A burst of writes waits its turn instead of opening hundreds of connections, each with its handshake.
_MAX_CONNECTIONS = 128
# Below the 90 s after which an API server closes an idle connection.
_KEEP_IDLE_S = 60.0
_READ_RETRIES = 3
_READ_CHUNK_BYTES = 1 << 18
# etcd refuses objects above 1.5 MiB; a line far beyond that is not a watch event.
_MAX_LINE_BYTES = 16 << 20
_OPEN_WATCH_TIMEOUT_S = 10.0
_T = TypeVar("_T")
_BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    call: Call
    query: Mapping[str, str] = field(default_factory=dict)
    body: JsonObject | None = None
    content_type: str = "application/json"


class Transport:
    """Use as an async context manager; closing it breaks every open watch."""

    def __init__(self, access: KubeAccess, clock: Clock, registry: CollectorRegistry | None) -> None:
        self._access = access
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._random = random.Random()
        self._requests = Counter(
            "gpuloom_kube_requests",
            "Requests to the Kubernetes API by answer code; connection and timeout: there was no answer.",
            ["verb", "resource", "code"],
            registry=registry,
        )
        self._durations = Histogram(
            "gpuloom_kube_request_duration_seconds",
            "Time to the complete answer of the Kubernetes API; for a watch, until it is open.",
            ["verb", "resource"],
            buckets=_BUCKETS_S,
            registry=registry,
        )

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, keepalive_timeout=_KEEP_IDLE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Deadlines are ours, by the injected clock.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            read_bufsize=_READ_CHUNK_BYTES,
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "gzip",
                "User-Agent": f"gpuloom/{_product_version()}",
            },
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def warm(self, connections: int, timeout_s: float) -> None:
        """Open so many connections and keep them, so that the first burst finds them. May fail silently."""
        request = Request("GET", "/version", Call("get", "version", ""))

        async def open_one() -> None:
            try:
                await self._within(timeout_s, request, lambda: self._send(request))
            except GpuloomError:
                # Whoever needs the server next will say what is wrong with it.
                return

        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(open_one())

    async def read(self, request: Request, timeout_s: float) -> JsonObject:
        """For requests that change nothing: tried again on trouble of the server or the connection."""
        return await self._within(timeout_s, request, lambda: self._read_with_retries(request))

    async def write(self, request: Request, timeout_s: float) -> JsonObject:
        return await self._within(timeout_s, request, lambda: self._send(request))

    async def lines(self, request: Request, idle_timeout_s: float) -> AsyncGenerator[bytes, None]:
        """The lines of an endless answer. Raises DeadlineError when nothing came for idle_timeout_s."""
        opening = min(_OPEN_WATCH_TIMEOUT_S, idle_timeout_s)
        response = await self._within(opening, request, lambda: self._open(request))
        try:
            splitter = LineSplitter()
            while chunk := await self._within(
                idle_timeout_s, request, lambda: _next_chunk(response, request)
            ):
                for line in splitter.feed(chunk):
                    yield line
        finally:
            # Not released to the pool: an unfinished answer leaves the connection unusable.
            response.close()

    async def _within(self, timeout_s: float, request: Request, act: Callable[[], Awaitable[_T]]) -> _T:
        try:
            async with deadline(self._clock, timeout_s):
                return await act()
        except TimeoutError:
            self._count(request, "timeout")
            raise DeadlineError(f"{request.call}: no answer within {timeout_s:g} s") from None

    async def _read_with_retries(self, request: Request) -> JsonObject:
        backoff = Backoff(first_s=0.2, cap_s=2.0, source=self._random)
        for _ in range(_READ_RETRIES):
            try:
                return await self._send(request)
            except TooManyRequestsError as error:
                delay_s = (error.retry_after_s or 0.0) + backoff.next_delay_s()
            except (UnavailableError, DeadlineError):
                delay_s = backoff.next_delay_s()
            await self._clock.sleep(delay_s)
        return await self._send(request)

    async def _send(self, request: Request) -> JsonObject:
        started_s = self._clock.monotonic()
        try:
            async with await self._request(request) as response:
                body = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            self._count(request, "connection")
            raise _unreachable(request, error) from None
        self._observe(request, response, started_s)
        if response.status >= 300:
            raise self._refusal(request, response, body)
        return _decode(request, body)

    async def _open(self, request: Request) -> aiohttp.ClientResponse:
        started_s = self._clock.monotonic()
        try:
            response = await self._request(request)
            if response.status < 300:
                self._observe(request, response, started_s)
                return response
            async with response:
                body = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            self._count(request, "connection")
            raise _unreachable(request, error) from None
        self._observe(request, response, started_s)
        raise self._refusal(request, response, body)

    async def _request(self, request: Request) -> aiohttp.ClientResponse:
        if self._session is None:
            raise UnavailableError("the Kubernetes client is not open")
        credential = await self._access.credential()
        headers = {"Authorization": f"Bearer {credential.token}"} if credential.token else {}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        context = self._access.ssl_context(credential.certificate)
        return await self._session.request(
            request.method,
            self._access.server + request.path,
            params=request.query,
            data=orjson.dumps(request.body) if request.body is not None else None,
            headers=headers,
            ssl=context if context is not None else True,
            server_hostname=self._access.server_name if context is not None else None,
            allow_redirects=False,
        )

    def _refusal(self, request: Request, response: aiohttp.ClientResponse, body: bytes) -> Exception:
        try:
            status = orjson.loads(body)
        except orjson.JSONDecodeError:
            status = {}
        said_s = response.headers.get("Retry-After", "")
        retry_after_s = float(said_s) if said_s.isdecimal() else None
        status = status if isinstance(status, dict) else {}
        error = error_from_status(request.call, response.status, status, retry_after_s)
        if isinstance(error, NotAllowedError) and response.status == 401:
            self._access.invalidate()
        return error

    def _observe(self, request: Request, response: aiohttp.ClientResponse, started_s: float) -> None:
        self._count(request, str(response.status))
        elapsed_s = self._clock.monotonic() - started_s
        self._durations.labels(request.call.verb, request.call.resource).observe(elapsed_s)

    def _count(self, request: Request, code: str) -> None:
        self._requests.labels(request.call.verb, request.call.resource, code).inc()


class LineSplitter:
    """Cuts a byte stream into lines of any length up to a bound."""

    def __init__(self, max_line_bytes: int = _MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._pieces: list[bytes] = []
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes; the rest is kept for the next."""
        *complete, rest = chunk.split(b"\n")
        lines = []
        for part in complete:
            self._pieces.append(part)
            lines.append(b"".join(self._pieces))
            self._pieces, self._held_bytes = [], 0
        if rest:
            self._pieces.append(rest)
            self._held_bytes += len(rest)
        if self._held_bytes > self._max_line_bytes:
            raise TooLargeError(f"a watch event is larger than {self._max_line_bytes} bytes")
        return [line for line in lines if line.strip()]


async def _next_chunk(response: aiohttp.ClientResponse, request: Request) -> bytes:
    try:
        return await response.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise _unreachable(request, error) from None


def _decode(request: Request, body: bytes) -> JsonObject:
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError:
        decoded = None
    if not isinstance(decoded, dict):
        raise UnavailableError(f"{request.call}: the answer is not a JSON object")
    return decoded


def _unreachable(request: Request, error: aiohttp.ClientError | OSError) -> UnavailableError:
    said = getattr(error, "strerror", None) or type(error).__name__
    return UnavailableError(f"{request.call}: the API server can't be reached or broke off ({said})")


def _product_version() -> str:
    try:
        return version("gpuloom")
    except PackageNotFoundError:
        return "unknown"
