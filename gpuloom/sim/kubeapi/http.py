"""The HTTP side: authentication, bounds, timeouts, faults. Every answer but a watch is one JSON object.

Decides nothing about objects. Whatever goes wrong inside, the client gets a Status and never a traceback.
"""

import asyncio
import hmac
import logging
import random
from collections.abc import Mapping
from typing import cast

import orjson
from aiohttp import web

from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.kubeapi.admission.chain import AdmissionChain
from gpuloom.sim.kubeapi.endpoints import discovery, requests
from gpuloom.sim.kubeapi.endpoints.verbs import Answer, Call, Verbs
from gpuloom.sim.kubeapi.endpoints.watch import WatchHub, WatchRequest, error_line
from gpuloom.sim.kubeapi.faults import ConnectionDropped, Faults, When
from gpuloom.sim.kubeapi.status import ApiError, unknown_path
from gpuloom.sim.kubeapi.verbs.store import Store

MAX_BODY_BYTES = 3 * 1024 * 1024
_OPEN_PATHS = frozenset({"/healthz", "/readyz", "/livez", "/version"})
_HEALTH_PATHS = frozenset({"/healthz", "/readyz", "/livez"})
_WATCH_TIMEOUT_S = (1800.0, 3600.0)

_log = logging.getLogger(__name__)


class Frontend:
    def __init__(
        self,
        store: Store,
        verbs: Verbs,
        admission: AdmissionChain,
        hub: WatchHub,
        faults: Faults,
        clock: Clock,
    ) -> None:
        self._store = store
        self._verbs = verbs
        self._admission = admission
        self._hub = hub
        self._faults = faults
        self._clock = clock
        self._token: bytes | None = None

    def require_token(self, token: str) -> None:
        self._token = token.encode()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            self._authenticate(request)
            return await self._serve(request)
        except ApiError as error:
            return _status(error)
        except web.HTTPRequestEntityTooLarge:
            return _status(ApiError(413, f"Request entity too large: limit is {MAX_BODY_BYTES}"))
        except ConnectionDropped:
            return _dropped(request)
        except ConnectionError:
            # The client left while its body was read or its answer written; nobody is there to be told.
            return _dropped(request)
        except Exception:  # noqa: BLE001 (the last resort: logged, and answered without its text)
            _log.exception("a request failed unexpectedly", extra={"method": request.method})
            return _status(ApiError(500, "an unexpected error on the server"))

    def _authenticate(self, request: web.Request) -> None:
        if self._token is None or request.path in _OPEN_PATHS:
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        sent = given.strip().encode(errors="surrogateescape")
        if scheme.lower() != "bearer" or not hmac.compare_digest(sent, self._token):
            raise ApiError(401, "Unauthorized")

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        started_s = self._clock.monotonic()
        query = request.query
        limit_s = requests.timeout_s(query)
        ends_s = None if limit_s is None else started_s + limit_s
        body = await request.read() if request.can_read_body else b""
        await self._strike("before", request, ends_s)
        if request.path in _HEALTH_PATHS:
            return web.Response(text="ok")
        parts = requests.path_parts(request.raw_path)
        if request.method == "GET":
            document = discovery.document(self._store.registry, parts)
            if document is not None:
                return _json(200, orjson.dumps(document))
        call = self._call(request, parts, query, body)
        if call.method == "GET" and requests.is_watch(query):
            return await self._watch(request, call)
        answer = await self._execute(call, ends_s)
        await self._strike("after", request, ends_s)
        return _json(answer.code, answer.body)

    def _call(self, request: web.Request, parts: list[str], query: Mapping[str, str], body: bytes) -> Call:
        if not parts:
            raise unknown_path()
        return Call(
            method=request.method,
            target=requests.find_target(self._store.registry, parts),
            query=query,
            content_type=request.headers.get("Content-Type", "").partition(";")[0].strip().lower(),
            body=body,
            as_table=_wants_table(request.headers.get("Accept", "")),
            user_agent=request.headers.get("User-Agent", ""),
        )

    async def _execute(self, call: Call, ends_s: float | None) -> Answer:
        # A request whose time is over must not act any more: its sender counts on that.
        if ends_s is None:
            return await self._admission.execute(call)
        if self._clock.monotonic() >= ends_s:
            raise _timed_out()
        try:
            async with deadline(self._clock, ends_s - self._clock.monotonic()):
                return await self._admission.execute(call)
        except TimeoutError as error:
            raise _timed_out() from error

    async def _strike(self, when: When, request: web.Request, ends_s: float | None) -> None:
        if self._faults.idle:
            return
        if ends_s is None:
            await self._faults.strike(when, request.method, request.path)
            return
        try:
            async with deadline(self._clock, ends_s - self._clock.monotonic()):
                await self._faults.strike(when, request.method, request.path)
        except TimeoutError as error:
            raise _timed_out() from error

    async def _watch(self, request: web.Request, call: Call) -> web.StreamResponse:
        target = call.target
        if target.subresource:
            raise unknown_path()
        asked = WatchRequest(
            resource=target.resource,
            representation=self._verbs.representation(call),
            namespace=target.namespace,
            selector=requests.selector(target, call.query),
            since=requests.watch_since(call.query),
            bookmarks=requests.flag(call.query, "allowWatchBookmarks"),
        )
        timeout_s = requests.whole_number(call.query, "timeoutSeconds") or random.uniform(*_WATCH_TIMEOUT_S)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        try:
            await self._stream(request, response, asked, timeout_s)
        except ConnectionError:
            _log.debug("a watcher left", extra={"resource": target.resource.key})
        return response

    async def _stream(
        self, request: web.Request, response: web.StreamResponse, asked: WatchRequest, timeout_s: float
    ) -> None:
        try:
            watch = self._hub.open(asked)
        except ApiError as error:
            if error.code != 410:
                raise
            await response.prepare(request)
            await response.write(error_line(error))
            await response.write_eof()
            return
        watch.is_connected = lambda: not _is_closed(request)
        watch.abort = lambda: _abort(request)
        timer = asyncio.create_task(self._clock.sleep(timeout_s))
        timer.add_done_callback(lambda done: None if done.cancelled() else self._hub.expire(watch))
        try:
            await response.prepare(request)
            async for chunk in watch.chunks():
                await response.write(chunk)
            if not watch.cut_off:
                await response.write_eof()
        finally:
            timer.cancel()
            self._hub.close(watch)


def _json(code: int, body: bytes) -> web.Response:
    return web.Response(status=code, body=body, content_type="application/json")


def _status(error: ApiError) -> web.Response:
    response = _json(error.code, orjson.dumps(error.status()))
    if error.code == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="gpuloom-sim"'
    retry_after_s = error.details.get("retryAfterSeconds")
    if retry_after_s:
        response.headers["Retry-After"] = str(retry_after_s)
    return response


def _timed_out() -> ApiError:
    return ApiError(504, "Timeout: request did not complete within requested timeout")


def _wants_table(accept: str) -> bool:
    """Does the client prefer a table? It lists what it takes in the order of its preference."""
    for media in accept.split(","):
        kind, *parameters = [part.strip() for part in media.split(";")]
        if kind == "application/json":
            return "as=Table" in parameters
    return False


def _dropped(request: web.Request) -> web.StreamResponse:
    _abort(request)
    return web.Response(status=500)


def _is_closed(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _abort(request: web.Request) -> None:
    # Not asked for its type: that of uvloop is no subclass of asyncio's.
    if request.transport is not None:
        cast(asyncio.WriteTransport, request.transport).abort()
