"""The HTTPS port that the API server calls."""

import logging
import ssl
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self

from aiohttp import web

from gpuloom.errors import InvalidRequestError
from gpuloom.rpc.server import ListenError
from gpuloom.runtime.clock import Clock
from services.webhook.admission import Handler
from services.webhook.core.reviews import Answer, answer_body, read_review
from services.webhook.metrics import WebhookMetrics

MAX_BODY_BYTES = 8 * 1024 * 1024
"""An object has at most 1.5 MiB in etcd, and an update carries it twice."""
SHUTDOWN_S = 5.0

_log = logging.getLogger(__name__)


class AdmissionPort:
    """Serves as long as it is entered. `tls` None: plain HTTP, for tests only."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        clock: Clock,
        metrics: WebhookMetrics,
    ) -> None:
        self._handlers = handlers
        self._host, self._port, self._tls = host, port, tls
        self._clock = clock
        self._metrics = metrics
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        for path in self._handlers:
            app.router.add_post(path, self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ListenError(f"cannot serve admission on {self._host}:{self._port}: {error}") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        began_s = self._clock.monotonic()
        path = request.path
        try:
            review = read_review(await request.read())
            review = replace(review, waited_s=self._clock.monotonic() - began_s)
            answer = await self._handlers[path](review)
        except InvalidRequestError as error:
            self._metrics.reviews.labels(path, "invalid").inc()
            return web.json_response({"error": str(error)}, status=400)
        except Exception:
            # The API server gets a 500 and lets the object through; whoever reads metrics shall know.
            self._metrics.reviews.labels(path, "failed").inc()
            raise
        self._metrics.reviews.labels(path, _result(answer)).inc()
        self._metrics.duration.labels(path).observe(self._clock.monotonic() - began_s)
        if answer.denied is not None:
            fields = {"path": path, "kind": review.kind, "namespace": review.namespace}
            _log.info("refused", extra={**fields, "reason": answer.denied})
        return web.Response(body=answer_body(review.uid, answer), content_type="application/json")


def _result(answer: Answer) -> str:
    if answer.denied is not None:
        return "denied"
    if answer.failed:
        return "failed"
    if answer.patch:
        return "changed"
    return "warned" if answer.warnings else "unchanged"
