"""The HTTP API that clients of OpenCost know, over HTTPS, for callers whose token Kubernetes accepts.

GET /allocation and /allocation/compute (window, aggregate, step, accumulate, filterNamespaces),
/export/focus.csv, /export/costs.csv and /export/costs.json (window), /healthz.
"""

import logging
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from aiohttp import web

from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.kube.reviews import TokenReviews
from gpuloom.model.cost import CostQuestion
from gpuloom.runtime.clock import Clock
from services.cost_engine.api.exports import Exports
from services.cost_engine.api.queries import Queries, moment
from services.cost_engine.core.opencost import allocation_request, allocation_sets, parse_window

_log = logging.getLogger(__name__)

_FORMS = {"focus.csv": "focus", "costs.csv": "csv", "costs.json": "json"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CostHttp:
    """`tokens` None: anybody may ask."""

    def __init__(
        self,
        queries: Queries,
        exports: Exports,
        tokens: TokenReviews | None,
        place: tuple[str, int, ssl.SSLContext | None],
        clock: Clock,
    ) -> None:
        self._queries = queries
        self._exports = exports
        self._tokens = tokens
        self._host, self._port, self._tls = place
        self._clock = clock
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._guard], client_max_size=64 * 1024)
        app.router.add_get("/allocation", self._allocation)
        app.router.add_get("/allocation/compute", self._allocation)
        app.router.add_get("/export/{file}", self._export)
        app.router.add_get("/healthz", self._health)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._tokens is not None and request.path != "/healthz":
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            try:
                accepted = scheme.lower() == "bearer" and await self._tokens.accepts(token.strip())
            except GpuloomError as error:
                _log.warning("token not reviewed", extra={"reason": str(error)})
                return _failure(503, "tokens can't be reviewed now")
            if not accepted:
                return _failure(401, "a bearer token that Kubernetes accepts is needed")
        try:
            return await handler(request)
        except (InvalidRequestError, ValueError) as error:
            return _failure(400, str(error))
        except GpuloomError as error:
            return _failure(503, str(error))

    async def _allocation(self, request: web.Request) -> web.Response:
        asked = allocation_request(request.query, self._clock.now())
        answer = await self._queries.costs(asked.question)
        sets = allocation_sets(answer.lines, asked.question, moment(answer.window.end_ns))
        return web.json_response({"code": 200, "status": "success", "data": sets})

    async def _export(self, request: web.Request) -> web.StreamResponse:
        form = _FORMS.get(request.match_info["file"])
        if form is None:
            return _failure(404, f"there are only {', '.join(sorted(_FORMS))}")
        start, end = parse_window(request.query.get("window", "30d"), self._clock.now())
        pieces = self._exports.pieces(CostQuestion(start, end, "day"), form)
        first = await anext(pieces, "")
        kind = "application/x-ndjson" if form == "json" else "text/csv"
        response = web.StreamResponse(headers={"Content-Type": f"{kind}; charset=utf-8"})
        await response.prepare(request)
        await response.write(first.encode())
        try:
            async for piece in pieces:
                await response.write(piece.encode())
        except GpuloomError as error:
            _log.warning("an export was broken off", extra={"reason": str(error)})
            _break_off(request)
            return response
        await response.write_eof()
        return response

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})


def _break_off(request: web.Request) -> None:
    """What was sent must not be taken for all of it; a status can't be sent any more.

    With a reset, because a quiet end of the connection is the end of the file in HTTP/1.0.
    """
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _failure(status: int, message: str) -> web.Response:
    return web.json_response({"code": status, "status": "error", "message": message}, status=status)
