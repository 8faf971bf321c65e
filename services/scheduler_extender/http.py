"""The HTTPS port that kube-scheduler calls: who may call, what is counted, what a failure looks like.

Every answer has status 200 and a Content-Length, as kube-scheduler needs it; while this replica is not the
leader, or its ledger is not complete, the answer is 503 and the connection is closed, so that a
Service moves on.
"""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiohttp import web

from gpuloom.errors import GpuloomError, InvalidRequestError, NotAllowedError, NotReadyError
from gpuloom.rpc.identity import authorize, identity_from_peer_certificate
from gpuloom.rpc.server import ListenError
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.metrics import ExtenderMetrics
from services.scheduler_extender.verbs import VERBS, Verbs

ALLOWED_CALLERS = frozenset({"kube_scheduler"})
MAX_BODY_BYTES = 64 * 1024 * 1024
"""With nodeCacheCapable false a call carries all Node objects."""

_JSON = "application/json"
_SHUTDOWN_S = 2.0

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
        self._verbs = verbs
        self._unready_reason = unready_reason
        self._options = options
        self._clock = clock
        self._metrics = metrics
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        for verb in VERBS:
            app.router.add_post(f"/{verb}", self._handler(verb))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        options = self._options
        site = web.TCPSite(self._runner, options.host, options.port, ssl_context=options.tls)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise ListenError(
                f"can't listen on {options.host} port {options.port}: {error.strerror or error}"
            ) from error
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    def _handler(self, verb: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            started_s = self._clock.monotonic()
            outcome = "crashed"
            try:
                response, outcome = await self._answer(verb, request)
            finally:
                self._metrics.calls.labels(verb, outcome).inc()
                self._metrics.call_duration.labels(verb).observe(self._clock.monotonic() - started_s)
            return response

        return handle

    async def _answer(self, verb: str, request: web.Request) -> tuple[web.Response, str]:
        """What is not foreseen here is logged by the HTTP server, with its traceback, and answered 500."""
        try:
            self._authorize(verb, request)
            unready = self._unready_reason()
            if unready:
                raise NotReadyError(f"GPULoom is not ready: {unready}")
            body = await self._verbs.answer(verb, await request.read())
        except web.HTTPRequestEntityTooLarge:
            return _failure(413, f"the body is larger than {MAX_BODY_BYTES} bytes"), "invalid"
        except GpuloomError as error:
            status, outcome = next(
                (found for kind, found in _FAILURES.items() if isinstance(error, kind)), (503, "failed")
            )
            return _failure(status, str(error)), outcome
        return web.Response(body=body, content_type=_JSON), "ok"

    def _authorize(self, verb: str, request: web.Request) -> None:
        if self._options.check_identity:
            caller = identity_from_peer_certificate(request.get_extra_info("peercert") or {})
            authorize(caller, ALLOWED_CALLERS, verb)


def _failure(status: int, text: str) -> web.Response:
    response = web.Response(status=status, text=text + "\n")
    response.force_close()
    return response
