"""One HTTP request to the API server: credentials, deadline, metrics, and failures as typed errors.

Retries reads a few times inside their deadline; never a write, because whether a lost one acted is not known.
HTTP is aiohttp's client. No proxy is ever asked, no redirect followed, no cookie kept.
"""

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self, TypeVar
from urllib.parse import quote

import aiohttp
import orjson
from prometheus_client import CollectorRegistry, Counter, Histogram
from yarl import URL

from gpuloom.errors import DeadlineError, GpuloomError, NotAllowedError, TooLargeError, UnavailableError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.decoding import decoded
from gpuloom.kube.errors import Call, KubeAccessError, TooManyRequestsError, error_from_status
from gpuloom.kube.objects import JsonObject
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.deadlines import Deadlines

# A burst of writes waits its turn instead of opening hundreds of connections, each with its handshake.
MAX_CONNECTIONS = 128
# Below the 90 s after which an API server closes an idle connection.
_KEEP_IDLE_S = 60.0
_READ_RETRIES = 3
# etcd refuses objects above 1.5 MiB; a line far beyond that is not a watch event.
_MAX_LINE_BYTES = 16 << 20
_OPEN_WATCH_TIMEOUT_S = 10.0
# Deadlines go by the injected clock.
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
# Anything else would end its header, or could not be sent at all.
_TOKEN = re.compile(r"[!-~]+")
_T = TypeVar("_T")
_BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """Encoded, without what the server's URL begins with."""
    call: Call
    query: Mapping[str, str] = field(default_factory=dict)
    """Names as they are sent; values are encoded."""
    body: JsonObject | list[JsonObject] | None = None
    content_type: str = "application/json"


class Transport:
    """Use as an async context manager; closing it breaks every open watch."""

    def __init__(self, access: KubeAccess, clock: Clock, registry: CollectorRegistry | None) -> None:
        self._access = access
        self._clock = clock
        self._base_url = ""
        self._session: aiohttp.ClientSession | None = None
        self._deadlines = Deadlines(clock)
        self._random = random.Random()
        self._metrics = _Metrics(registry)

    async def __aenter__(self) -> Self:
        self._base_url = _checked_url(self._access.server)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=_KEEP_IDLE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=_NO_TIMEOUT,
            headers={
                "User-Agent": f"gpuloom/{_product_version()}",
                "Accept": "application/json",
                "Accept-Encoding": "gzip",
            },
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()
        await self._deadlines.close()

    async def warm(self, connections: int, timeout_s: float) -> None:
        """Open so many connections and keep them, so that the first burst finds them. May fail silently."""
        request = Request("GET", "/version", Call("get", "version", ""))

        async def open_one() -> None:
            try:
                await self._within(timeout_s, request, self._send(request))
            except GpuloomError:
                # Whoever needs the server next will say what is wrong with it.
                return

        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(open_one())

    async def read(self, request: Request, timeout_s: float) -> JsonObject:
        """For requests that change nothing: tried again on trouble of the server or the connection."""
        return await self._within(timeout_s, request, self._read_with_retries(request))

    async def write(self, request: Request, timeout_s: float) -> JsonObject:
        return await self._within(timeout_s, request, self._send(request))

    async def lines(
        self, request: Request, idle_timeout_s: float, gather_s: float = 0.0
    ) -> AsyncGenerator[bytes, None]:
        """The lines of an endless answer. Raises DeadlineError when nothing came for idle_timeout_s.

        After what has come, nothing is read for gather_s: what comes meanwhile is then read together.
        """
        opening_s = min(_OPEN_WATCH_TIMEOUT_S, idle_timeout_s)
        answer = await self._within(opening_s, request, self._open(request))
        try:
            splitter = LineSplitter()
            while chunk := await self._within(idle_timeout_s, request, _next_chunk(answer, request)):
                for text in splitter.feed(chunk):
                    yield text
                if gather_s > 0.0:
                    await self._rest(answer, gather_s)
        finally:
            answer.close()

    async def _within(self, timeout_s: float, request: Request, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            with self._deadlines.within(timeout_s):
                return await work
        except TimeoutError:
            self._metrics.count(request.call, "timeout")
            raise DeadlineError(f"{request.call}: no answer within {timeout_s:g} s") from None

    async def _rest(self, answer: aiohttp.ClientResponse, gather_s: float) -> None:
        """Leave what comes to the system: reading it at once, and being woken for it, costs most."""
        connection = answer.connection
        transport = None if connection is None else connection.transport
        if transport is None or transport.is_closing():
            return
        transport.pause_reading()
        await self._clock.sleep(gather_s)
        if not transport.is_closing():
            transport.resume_reading()

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
        answer = await self._ask(request)
        try:
            body = await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(request, error) from None
        self._metrics.observe(request.call, answer.status, self._clock.monotonic() - started_s)
        if answer.status >= 300:
            raise self._refusal(request, answer, body)
        return _decode(request, body)

    async def _open(self, request: Request) -> aiohttp.ClientResponse:
        started_s = self._clock.monotonic()
        answer = await self._ask(request)
        self._metrics.observe(request.call, answer.status, self._clock.monotonic() - started_s)
        if answer.status < 300:
            return answer
        try:
            raise self._refusal(request, answer, await answer.read())
        except (aiohttp.ClientError, OSError) as error:
            raise _broken_off(request, error) from None

    async def _ask(self, request: Request) -> aiohttp.ClientResponse:
        """The answer as soon as its head has come."""
        if self._session is None:
            raise UnavailableError("the Kubernetes client is not open")
        credential = await self._access.credential()
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in request.query.items())
        headers = _authorization(credential.token)
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        try:
            return await self._session.request(
                request.method,
                URL(f"{self._base_url}{request.path}{'?' if query else ''}{query}", encoded=True),
                data=None if request.body is None else orjson.dumps(request.body),
                headers=headers,
                allow_redirects=False,
                # A connection serves only those who would have opened it with this same context.
                ssl=self._access.ssl_context(credential.certificate) or True,
                server_hostname=self._access.server_name,
                middlewares=() if request.method == "GET" else (_send_once,),
            )
        except (_BrokenOffError, aiohttp.ClientError, OSError) as error:
            raise self._unreachable(request, error) from None

    def _refusal(self, request: Request, answer: aiohttp.ClientResponse, body: bytes) -> Exception:
        try:
            status = orjson.loads(body)
        except orjson.JSONDecodeError:
            status = {}
        retry_after = answer.headers.get("Retry-After", "")
        retry_after_s = float(retry_after) if retry_after.isdecimal() else None
        status = status if isinstance(status, dict) else {}
        error = error_from_status(request.call, answer.status, status, retry_after_s)
        if isinstance(error, NotAllowedError) and answer.status == 401:
            self._access.invalidate()
        return error

    def _unreachable(self, request: Request, error: Exception) -> UnavailableError:
        self._metrics.count(request.call, "connection")
        return _broken_off(request, error)


class _BrokenOffError(Exception):
    """The connection of a write was lost. aiohttp does not know this error, so it does not send it again."""


async def _send_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """For writes: on a kept connection that breaks, aiohttp would send PUT and DELETE a second time."""
    try:
        return await handler(request)
    except (aiohttp.ClientError, OSError) as error:
        raise _BrokenOffError(_said(error)) from error


class _Metrics:
    def __init__(self, registry: CollectorRegistry | None) -> None:
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
        # Found once: looking labels up costs more than counting.
        self._counters = lru_cache(maxsize=None)(self._requests.labels)
        self._timers = lru_cache(maxsize=None)(self._durations.labels)

    def observe(self, call: Call, status: int, elapsed_s: float) -> None:
        self.count(call, str(status))
        self._timers(call.verb, call.resource).observe(elapsed_s)

    def count(self, call: Call, code: str) -> None:
        self._counters(call.verb, call.resource, code).inc()


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


async def _next_chunk(answer: aiohttp.ClientResponse, request: Request) -> bytes:
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise _broken_off(request, error) from None


def _checked_url(server: str) -> str:
    """What every path is put behind."""
    try:
        url = URL(server.rstrip("/"))
        host, _ = url.host, url.port
    except ValueError:
        raise KubeAccessError("the Kubernetes API's address is not a URL with a host and a port") from None
    if url.scheme not in ("http", "https") or not host or url.user is not None:
        raise KubeAccessError("the Kubernetes API's address must be http(s) with a host, and no user")
    return str(url).rstrip("/")


def _authorization(token: str | None) -> dict[str, str]:
    if not token:
        return {}
    if _TOKEN.fullmatch(token) is None:
        raise KubeAccessError("the token for the Kubernetes API is not one line of plain text")
    return {"Authorization": f"Bearer {token}"}


def _decode(request: Request, body: bytes) -> JsonObject:
    try:
        answer = decoded(body)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise UnavailableError(f"{request.call}: the answer is not a JSON object")
    return answer


def _broken_off(request: Request, error: Exception) -> UnavailableError:
    return UnavailableError(f"{request.call}: the API server can't be reached or broke off ({_said(error)})")


def _said(error: Exception) -> str:
    """Never what aiohttp says of the request."""
    if isinstance(error, _BrokenOffError):
        return str(error)
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def _product_version() -> str:
    try:
        return version("gpuloom")
    except PackageNotFoundError:
        return "unknown"
