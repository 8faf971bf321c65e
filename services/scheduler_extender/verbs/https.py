"""The HTTPS port that kube-scheduler calls: who may call, within which bounds, what a failure looks like.

HTTP is aiohttp's. Every answer has status 200 and a Content-Length, as kube-scheduler needs it; while this
replica is not the leader, or its ledger is not complete, the answer is 503 and the connection is closed, so
that a Service moves on.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

from aiohttp import web
from prometheus_client import Counter

from gpuloom.errors import GpuloomError, InvalidRequestError, NotAllowedError, NotReadyError
from gpuloom.rpc.identity import authorize, identity_from_peer_certificate
from gpuloom.rpc.server import ListenError
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.deadlines import Deadlines
from services.scheduler_extender.metrics import ExtenderMetrics
from services.scheduler_extender.verbs.verbs import AWAITED_VERB, VERBS, Verbs

_log = logging.getLogger(__name__)

ALLOWED_CALLERS = frozenset({"kube_scheduler"})

MAX_BODY_BYTES = 64 * 1024 * 1024
"""With nodeCacheCapable false a call carries all Node objects."""
MAX_CONNECTIONS = 1024
"""kube-scheduler opens one for every bind that is under way, some hundreds."""

HANDSHAKE_S = 10.0
BODY_S = 30.0
"""For a whole body, from the end of its head."""
IDLE_S = 120.0
"""For the next head. Go hangs up after 90 s. It must be the client who does, or a call just sent is lost."""
TAKE_S = 30.0
"""For an answer to be taken by a client that reads slowly."""
LINGER_S = 2.0
"""While a request is refused that is still coming in. Closed at once, the refusal might not arrive."""
SHUTDOWN_S = 2.0

_ACCEPT_AGAIN_S = 1.0
_REPORT_EVERY_S = 60.0

_VERB_OF = {f"/{verb}": verb for verb in VERBS}

_FAILURES: dict[type[GpuloomError], tuple[int, str]] = {
    NotAllowedError: (403, "forbidden"),
    InvalidRequestError: (400, "invalid"),
    NotReadyError: (503, "unready"),
}


@dataclass(frozen=True, slots=True)
class HttpsOptions:
    host: str
    port: int
    tls: ssl.SSLContext | None
    check_identity: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """`outcome` is what the call is counted as. Whatever is not 200 also ends the connection."""

    status: int
    body: bytes
    outcome: str = "invalid"


_CRASHED = Reply(500, b"internal error\n", "crashed")


class ExtenderHttp:
    """Async context manager. `unready_reason` is asked at every call."""

    def __init__(
        self,
        verbs: Verbs,
        unready_reason: Callable[[], str],
        options: HttpsOptions,
        clock: Clock,
        metrics: ExtenderMetrics,
    ) -> None:
        self.port = options.port
        self._options = options
        self._clock = clock
        self._calls = VerbCalls(verbs, unready_reason, options.check_identity, clock, metrics)
        self._server: web.Server
        self._listeners: list[socket.socket] = []
        self._loops: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[None], web.RequestHandler] = {}
        # Accepted, and known to no transport yet.
        self._unclaimed: set[socket.socket] = set()
        self._turned_away = 0
        self._silent_until_s = 0.0

    @property
    def connections(self) -> int:
        # A connection is made a little before its handshake is over for us.
        made = self._server.connections
        return len(made) + sum(handler not in made for handler in self._handshakes.values())

    async def __aenter__(self) -> Self:
        options = self._options
        try:
            self._listeners = await _listen(options.host, options.port)
        except OSError as error:
            raise ListenError(
                f"can't listen on {options.host} port {options.port}: {error.strerror or error}"
            ) from error
        self.port = self._listeners[0].getsockname()[1]
        self._server = web.Server(
            self._calls.serve,
            request_factory=_request,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=IDLE_S,
            lingering_time=LINGER_S,
        )
        self._loops = [asyncio.create_task(self._accept(listener)) for listener in self._listeners]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._calls.leave()
        await _cancelled(*self._loops, *self._handshakes)
        for open_socket in (*self._listeners, *self._unclaimed):
            open_socket.close()
        self._server.pre_shutdown()
        # It waits for as long again before it cuts off.
        await self._server.shutdown(SHUTDOWN_S / 2)
        await self._calls.close()

    async def run(self) -> None:
        """Ends only by an error, after which nobody is answered any more."""
        await asyncio.gather(*self._loops)

    async def _accept(self, listener: socket.socket) -> None:
        """Not left to the loop's own server, which does not count connections, nor those in a handshake."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # Mostly no file is left to open. Connections that end give some back.
                _log.warning("no connection can be accepted", extra={"reason": error.strerror})
                await self._clock.sleep(_ACCEPT_AGAIN_S)
                continue
            if self.connections < MAX_CONNECTIONS:
                self._begin(accepted)
            else:
                accepted.close()
                self._note_turned_away()
            # A stream of new connections must not keep the calls of the others waiting.
            await self._clock.sleep(0)

    def _begin(self, accepted: socket.socket) -> None:
        self._unclaimed.add(accepted)
        handler = self._server()
        task = asyncio.create_task(self._shake_hands(accepted, handler))
        self._handshakes[task] = handler
        task.add_done_callback(self._handshakes.pop)

    async def _shake_hands(self, accepted: socket.socket, handler: web.RequestHandler) -> None:
        tls = self._options.tls
        self._unclaimed.discard(accepted)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: handler,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else HANDSHAKE_S,
                ssl_shutdown_timeout=None if tls is None else SHUTDOWN_S,
            )
        except OSError as error:
            _log.debug("a caller was refused by TLS", extra={"reason": str(error)})

    def _note_turned_away(self) -> None:
        self._turned_away += 1
        now_s = self._clock.monotonic()
        if now_s >= self._silent_until_s:
            fields = {"most": MAX_CONNECTIONS, "closed": self._turned_away}
            _log.warning("too many connections, new ones are closed", extra=fields)
            self._turned_away, self._silent_until_s = 0, now_s + _REPORT_EVERY_S


class VerbCalls:
    """What requests mean: a path is a verb, and a failure of ours has a status and is counted."""

    def __init__(
        self,
        verbs: Verbs,
        unready_reason: Callable[[], str],
        check_identity: bool,
        clock: Clock,
        metrics: ExtenderMetrics,
    ) -> None:
        self._verbs = verbs
        self._unready_reason = unready_reason
        self._check_identity = check_identity
        self._clock = clock
        self._deadlines = Deadlines(clock)
        self._under_way: set[asyncio.Task[Any]] = set()
        self._leaving = False
        self._calls = metrics.calls
        # Looked up once: by name it takes as long as the counting itself.
        self._counters: dict[tuple[str, str], Counter] = {}
        self._durations = {verb: metrics.call_duration.labels(verb) for verb in VERBS}

    async def serve(self, request: web.BaseRequest) -> web.Response:
        """aiohttp does not cancel it when the caller goes away: a bind that was begun goes on."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._under_way.add(task)
        try:
            return await self._sent(request, await self._reply(request))
        finally:
            self._under_way.discard(task)

    def leave(self) -> None:
        """Whoever is answered from now on is told not to call here again."""
        self._leaving = True

    async def close(self) -> None:
        """Whose connections are gone, nobody else ends."""
        await _cancelled(*self._under_way)
        await self._deadlines.close()

    async def _reply(self, request: web.BaseRequest) -> Reply:
        verb = _VERB_OF.get(request.path)
        if verb is None:
            return Reply(404, b"there is no such verb\n")
        if request.method != "POST":
            return Reply(405, b"a verb is only posted\n")
        started_s = self._clock.monotonic()
        reply = _CRASHED
        try:
            reply = await self._answer(verb, request)
        except GpuloomError as error:
            reply = _failure(error)
        except Exception:  # noqa: BLE001 (the last resort: logged, and answered without its text)
            _log.exception("a call crashed", extra={"verb": verb})
        finally:
            self._record(verb, reply, self._clock.monotonic() - started_s)
        return reply

    async def _answer(self, verb: str, request: web.BaseRequest) -> Reply:
        if self._check_identity:
            authorize(_caller_of(request), ALLOWED_CALLERS, verb)
        try:
            body = await self._body(request)
        except web.HTTPRequestEntityTooLarge:
            return _refusal(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        except TimeoutError:
            return _refusal(408, f"the request has not come within {BODY_S:g} s")
        except (web.RequestPayloadError, OSError) as error:
            return _refusal(400, f"the body can't be read: {error}")
        unready = self._unready_reason()
        if unready:
            raise NotReadyError(f"GPULoom is not ready: {unready}")
        if verb == AWAITED_VERB:
            return Reply(200, await self._verbs.bind(body), "ok")
        return Reply(200, self._verbs.answer_at_once(verb, body), "ok")

    async def _body(self, request: web.BaseRequest) -> bytes:
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES)
        with self._deadlines.within(BODY_S):
            return await request.read()

    def _record(self, verb: str, reply: Reply, elapsed_s: float) -> None:
        counter = self._counters.get((verb, reply.outcome))
        if counter is None:
            counter = self._counters[verb, reply.outcome] = self._calls.labels(verb, reply.outcome)
        counter.inc()
        self._durations[verb].observe(elapsed_s)

    async def _sent(self, request: web.BaseRequest, reply: Reply) -> web.Response:
        """Sent here, as aiohttp would wait without end for the client to take it."""
        response = self._response(reply)
        try:
            with self._deadlines.within(TAKE_S):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            _log.debug("a caller did not wait for its answer")
        return response

    def _response(self, reply: Reply) -> web.Response:
        kind = "application/json" if reply.status == 200 else "text/plain"
        response = web.Response(status=reply.status, body=reply.body, content_type=kind)
        if reply.status == 405:
            response.headers["Allow"] = "POST"
        if reply.status != 200 or self._leaving:
            response.force_close()
        return response


def _request(
    message: Any,
    payload: Any,
    protocol: web.RequestHandler,
    writer: Any,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES)


def _caller_of(request: web.BaseRequest) -> str:
    transport = request.transport
    shown = None if transport is None else transport.get_extra_info("peercert")
    return identity_from_peer_certificate(shown or {})


def _failure(error: GpuloomError) -> Reply:
    status, outcome = next(
        (found for kind, found in _FAILURES.items() if isinstance(error, kind)), (503, "failed")
    )
    return Reply(status, f"{error}\n".encode(), outcome)


def _refusal(status: int, text: str) -> Reply:
    return Reply(status, f"{text}\n".encode())


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _listen(host: str, port: int) -> list[socket.socket]:
    """On every address the host name stands for; without one, on all."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listeners: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, *_, address in found):
            listener = socket.create_server(address, family=family, backlog=MAX_CONNECTIONS)
            listener.setblocking(False)
            listeners.append(listener)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners
