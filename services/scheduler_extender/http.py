"""The HTTPS port that kube-scheduler calls: who may call, what is counted, what a failure looks like.

Every answer has status 200 and a Content-Length, as kube-scheduler needs it; while this replica is not the
leader, or its ledger is not complete, the answer is 503 and the connection is closed, so that a
Service moves on. HTTP/1.1 is in `framing.py` and `connection.py`.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from prometheus_client import Counter

from gpuloom.errors import GpuloomError, InvalidRequestError, NotAllowedError, NotReadyError
from gpuloom.rpc.identity import authorize, identity_from_peer_certificate
from gpuloom.rpc.server import ListenError
from gpuloom.runtime.clock import Clock, deadline
from services.scheduler_extender.connection import Connection, OpenConnection
from services.scheduler_extender.framing import CRASHED, Call, Caller, Reply
from services.scheduler_extender.metrics import ExtenderMetrics
from services.scheduler_extender.verbs import AWAITED_VERB, VERBS, Verbs

_log = logging.getLogger(__name__)

ALLOWED_CALLERS = frozenset({"kube_scheduler"})

MAX_CONNECTIONS = 1024
"""kube-scheduler opens one for every bind that is under way, some hundreds."""

HANDSHAKE_S = 10.0
SWEEP_S = 2.0
"""How often is looked for what has taken too long: a bound is kept to within this."""

_SHUTDOWN_S = 2.0
_ACCEPT_AGAIN_S = 1.0
_REPORT_EVERY_S = 60.0

_VERB_OF = {f"/{verb}".encode(): verb for verb in VERBS}

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
class _Handshake:
    connection: Connection
    until_s: float


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
        self._calls = VerbCalls(verbs, unready_reason, options.check_identity, metrics)
        self._room = OpenConnections()
        self._listeners: list[socket.socket] = []
        self._loops: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[None], _Handshake] = {}
        # Accepted, and known to no transport yet.
        self._unclaimed: set[socket.socket] = set()
        self._turned_away = 0
        self._silent_until_s = 0.0

    async def __aenter__(self) -> Self:
        options = self._options
        try:
            self._listeners = await _listen(options.host, options.port)
        except OSError as error:
            raise ListenError(
                f"can't listen on {options.host} port {options.port}: {error.strerror or error}"
            ) from error
        self.port = self._listeners[0].getsockname()[1]
        self._loops = [asyncio.create_task(self._accept(listener)) for listener in self._listeners]
        self._loops.append(asyncio.create_task(self._sweep()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ending = (*self._loops, *self._handshakes)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for open_socket in (*self._listeners, *self._unclaimed):
            open_socket.close()
        await self._room.close(self._clock, _SHUTDOWN_S)

    async def run(self) -> None:
        """Ends only by an error, after which nobody is answered any more."""
        await asyncio.gather(*self._loops)

    async def _accept(self, listener: socket.socket) -> None:
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
            if self._count() < MAX_CONNECTIONS:
                self._begin(accepted)
            else:
                accepted.close()
                self._note_turned_away()
            # A stream of new connections must not keep the calls of the others waiting.
            await self._clock.sleep(0)

    def _count(self) -> int:
        # A connection is made a little before its handshake is over for us.
        made = self._room.connections
        return len(made) + sum(entry.connection not in made for entry in self._handshakes.values())

    def _begin(self, accepted: socket.socket) -> None:
        self._unclaimed.add(accepted)
        connection = Connection(self._calls, self._room, self._clock)
        task = asyncio.create_task(self._shake_hands(accepted, connection))
        self._handshakes[task] = _Handshake(connection, self._clock.monotonic() + HANDSHAKE_S)
        task.add_done_callback(self._handshakes.pop)

    async def _shake_hands(self, accepted: socket.socket, connection: Connection) -> None:
        tls = self._options.tls
        self._unclaimed.discard(accepted)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=tls,
                ssl_shutdown_timeout=None if tls is None else _SHUTDOWN_S,
            )
        except OSError as error:
            _log.debug("a caller was refused by TLS", extra={"reason": str(error)})

    async def _sweep(self) -> None:
        """One timer for all connections: a call makes none."""
        while True:
            await self._clock.sleep(SWEEP_S)
            now_s = self._clock.monotonic()
            for connection in tuple(self._room.connections):
                connection.expire(now_s)
            for task, handshake in self._handshakes.items():
                if now_s >= handshake.until_s:
                    task.cancel()

    def _note_turned_away(self) -> None:
        self._turned_away += 1
        now_s = self._clock.monotonic()
        if now_s >= self._silent_until_s:
            fields = {"most": MAX_CONNECTIONS, "closed": self._turned_away}
            _log.warning("too many connections, new ones are closed", extra=fields)
            self._turned_away, self._silent_until_s = 0, now_s + _REPORT_EVERY_S


class OpenConnections:
    """The connections that are open, and the binds under way, whose callers may be gone."""

    def __init__(self) -> None:
        self.connections: set[OpenConnection] = set()
        self._binds: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def enter(self, connection: OpenConnection) -> None:
        self.connections.add(connection)

    def leave(self, connection: OpenConnection) -> None:
        self.connections.discard(connection)
        self._changed.set()

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._binds.add(task)
        task.add_done_callback(self._end)

    async def close(self, clock: Clock, grace_s: float) -> None:
        """Whoever is being answered has this long; nothing is left behind."""
        for connection in tuple(self.connections):
            connection.leave()
        try:
            async with deadline(clock, grace_s):
                await self._emptied()
        except TimeoutError:
            pass
        finally:
            for task in self._binds:
                task.cancel()
            for connection in tuple(self.connections):
                connection.abort()
        await self._emptied()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._binds.discard(task)
        self._changed.set()

    async def _emptied(self) -> None:
        while self.connections or self._binds:
            self._changed.clear()
            await self._changed.wait()


class VerbCalls:
    """What requests mean: a path is a verb, and a failure of ours has a status and is counted."""

    def __init__(
        self, verbs: Verbs, unready_reason: Callable[[], str], check_identity: bool, metrics: ExtenderMetrics
    ) -> None:
        self._verbs = verbs
        self._unready_reason = unready_reason
        self._check_identity = check_identity
        self._calls = metrics.calls
        # Looked up once: by name it takes as long as the counting itself.
        self._counters: dict[tuple[str, str], Counter] = {}
        self._durations = {verb: metrics.call_duration.labels(verb) for verb in VERBS}

    def caller_of(self, transport: asyncio.BaseTransport) -> Caller:
        if not self._check_identity:
            return Caller()
        try:
            return Caller(identity_from_peer_certificate(transport.get_extra_info("peercert") or {}))
        except NotAllowedError as error:
            return Caller(problem=str(error))

    def admit(self, call: Call) -> Reply | None:
        verb = _VERB_OF.get(call.target) or _VERB_OF.get(call.target.partition(b"?")[0])
        if verb is None:
            return Reply(404, b"there is no such verb\n")
        if call.method != b"POST":
            return Reply(405, b"a verb is only posted\n")
        call.verb = verb
        if self._check_identity:
            try:
                _authorize(call.caller, verb)
            except NotAllowedError as error:
                return _failure(error)
        return None

    def answer(self, call: Call) -> Reply | Coroutine[Any, Any, Reply]:
        try:
            unready = self._unready_reason()
            if unready:
                raise NotReadyError(f"GPULoom is not ready: {unready}")
            if call.verb == AWAITED_VERB:
                return self._bind(call)
            return Reply(200, self._verbs.answer_at_once(call.verb, bytes(call.body)), "ok")
        except GpuloomError as error:
            return _failure(error)
        except Exception:  # noqa: BLE001 (the last resort: logged, and answered without its text)
            _log.exception("a call crashed", extra={"verb": call.verb})
            return CRASHED

    def record(self, call: Call, reply: Reply, now_s: float) -> None:
        verb = call.verb
        if not verb:
            return
        counter = self._counters.get((verb, reply.outcome))
        if counter is None:
            counter = self._counters[verb, reply.outcome] = self._calls.labels(verb, reply.outcome)
        counter.inc()
        self._durations[verb].observe(now_s - call.started_s)

    async def _bind(self, call: Call) -> Reply:
        try:
            return Reply(200, await self._verbs.bind(bytes(call.body)), "ok")
        except GpuloomError as error:
            return _failure(error)
        except Exception:  # noqa: BLE001 (the last resort: logged, and answered without its text)
            _log.exception("a call crashed", extra={"verb": call.verb})
            return CRASHED


def _authorize(caller: Caller, verb: str) -> None:
    if caller.problem:
        raise NotAllowedError(caller.problem)
    authorize(caller.name, ALLOWED_CALLERS, verb)


def _failure(error: GpuloomError) -> Reply:
    status, outcome = next(
        (found for kind, found in _FAILURES.items() if isinstance(error, kind)), (503, "failed")
    )
    return Reply(status, f"{error}\n".encode(), outcome)


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
