"""One HTTP request to the API server: credentials, deadline, metrics, and failures as typed errors.

Retries reads a few times inside their deadline; never a write, because whether a lost one acted is not known.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Coroutine
from functools import lru_cache
from typing import Any, Self, TypeVar

import orjson
from prometheus_client import CollectorRegistry, Counter, Histogram

from gpuloom.errors import DeadlineError, GpuloomError, NotAllowedError, TooLargeError, UnavailableError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.connection import Answer, BrokenOffError, Connection
from gpuloom.kube.errors import Call, TooManyRequestsError, error_from_status
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.pool import ConnectionPool, Origin
from gpuloom.kube.request import Request, RequestWriter
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.deadlines import Deadlines

_READ_RETRIES = 3
# etcd refuses objects above 1.5 MiB; a line far beyond that is not a watch event.
_MAX_LINE_BYTES = 16 << 20
_OPEN_WATCH_TIMEOUT_S = 10.0
_T = TypeVar("_T")
_BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Transport:
    """Use as an async context manager; closing it breaks every open watch."""

    def __init__(self, access: KubeAccess, clock: Clock, registry: CollectorRegistry | None) -> None:
        self._access = access
        self._clock = clock
        self._line: _Line | None = None
        self._deadlines = Deadlines(clock)
        self._random = random.Random()
        self._metrics = _Metrics(registry)

    async def __aenter__(self) -> Self:
        self._line = _Line(self._access, self._clock)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._line is not None:
            line, self._line = self._line, None
            await line.pool.close()
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
        line = self._opened()
        opening_s = min(_OPEN_WATCH_TIMEOUT_S, idle_timeout_s)
        connection, answer = await self._within(opening_s, request, self._open(request))
        try:
            splitter = LineSplitter()
            while chunk := await self._within(
                idle_timeout_s, request, _next_chunk(connection, answer, request)
            ):
                for text in splitter.feed(chunk):
                    yield text
                if gather_s > 0.0:
                    connection.rest()
                    await self._clock.sleep(gather_s)
        finally:
            line.pool.give_back(connection)

    async def _within(self, timeout_s: float, request: Request, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            with self._deadlines.within(timeout_s):
                return await work
        except TimeoutError:
            self._metrics.count(request.call, "timeout")
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
        line = self._opened()
        started_s = self._clock.monotonic()
        try:
            connection, answer = await line.ask(request, whole=True)
        except OSError as error:
            raise self._unreachable(request, error) from None
        line.pool.give_back(connection)
        self._metrics.observe(request.call, answer.status, self._clock.monotonic() - started_s)
        if answer.status >= 300:
            raise self._refusal(request, answer, answer.take())
        return _decode(request, answer.take())

    async def _open(self, request: Request) -> tuple[Connection, Answer]:
        line = self._opened()
        started_s = self._clock.monotonic()
        try:
            connection, answer = await line.ask(request, whole=False)
        except OSError as error:
            raise self._unreachable(request, error) from None
        self._metrics.observe(request.call, answer.status, self._clock.monotonic() - started_s)
        if answer.status < 300:
            return connection, answer
        try:
            said = b""
            while chunk := await _next_chunk(connection, answer, request):
                said += chunk
        finally:
            line.pool.give_back(connection)
        raise self._refusal(request, answer, said)

    def _opened(self) -> "_Line":
        if self._line is None:
            raise UnavailableError("the Kubernetes client is not open")
        return self._line

    def _refusal(self, request: Request, answer: Answer, body: bytes) -> Exception:
        try:
            status = orjson.loads(body)
        except orjson.JSONDecodeError:
            status = {}
        retry_after_s = float(answer.retry_after) if answer.retry_after.isdecimal() else None
        status = status if isinstance(status, dict) else {}
        error = error_from_status(request.call, answer.status, status, retry_after_s)
        if isinstance(error, NotAllowedError) and answer.status == 401:
            self._access.invalidate()
        return error

    def _unreachable(self, request: Request, error: OSError) -> UnavailableError:
        self._metrics.count(request.call, "connection")
        return _broken_off(request, error)


class _Line:
    """The way to the server while the transport is open: connections, and who we are to it."""

    def __init__(self, access: KubeAccess, clock: Clock) -> None:
        origin = Origin.of(access.server)
        self.pool = ConnectionPool(origin, access.server_name, clock)
        self._access = access
        self._writer = RequestWriter(origin.authority, origin.path)

    async def ask(self, request: Request, *, whole: bool) -> tuple[Connection, Answer]:
        """The answer, or its head if not `whole`. The connection is to be given back to the pool."""
        credential = await self._access.credential()
        context = self._access.ssl_context(credential.certificate)
        written = self._writer.bytes_of(request, credential.token)
        while True:
            connection = await self.pool.take(context)
            reused = connection.exchanges > 0
            try:
                return connection, await connection.ask(written, whole=whole)
            except BrokenOffError as error:
                self.pool.give_back(connection)
                # A server may close a kept connection just when it is used again, and whether it saw the
                # request is not known: only what changes nothing is asked again, at last on a new one.
                if not (reused and error.unanswered and request.method == "GET"):
                    raise
            except BaseException:
                self.pool.give_back(connection)
                raise


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


async def _next_chunk(connection: Connection, answer: Answer, request: Request) -> bytes:
    try:
        return await connection.next_chunk(answer)
    except OSError as error:
        raise _broken_off(request, error) from None


def _decode(request: Request, body: bytes) -> JsonObject:
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError:
        decoded = None
    if not isinstance(decoded, dict):
        raise UnavailableError(f"{request.call}: the answer is not a JSON object")
    return decoded


def _broken_off(request: Request, error: OSError) -> UnavailableError:
    said = error.strerror or type(error).__name__
    return UnavailableError(f"{request.call}: the API server can't be reached or broke off ({said})")
