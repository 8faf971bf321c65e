"""The HTTPS port: pages, the state, its changes, and two questions that other services answer.

It changes nothing anywhere. Whatever it serves says that it may neither be framed nor run a script that is
not one of its files.
"""

import asyncio
import gzip
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import orjson
from aiohttp import web

from gpuloom.errors import GpuloomError, InvalidRequestError, NotFoundError
from gpuloom.model.node import PodRef
from gpuloom.rpc.server import ListenError
from gpuloom.runtime.clock import Clock
from services.console.aggregator import Aggregator
from services.console.core.credentials import ended_cookie, session_cookie
from services.console.core.state import Json
from services.console.metrics import ConsoleMetrics
from services.console.web.access import Gate, Viewer
from services.console.web.events import Encoder, Stream
from services.console.web.files import PageFile, read_files

_log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 1024
SHUTDOWN_S = 1.0
QUESTIONS_AT_ONCE = 8
SMALL_BYTES = 1024
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
VIEWER = web.RequestKey("viewer", Viewer)
PUBLIC = frozenset({"/login", "/healthz", "/static/login.css", "/static/icon.svg"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Question = Callable[[PodRef], Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class Place:
    """`tls` None: plain HTTP, for tests only."""

    host: str
    port: int
    tls: ssl.SSLContext | None


@dataclass(frozen=True, slots=True)
class Parts:
    """`questions` are what is asked of others when somebody wants to know, by the last part of its path."""

    aggregator: Aggregator
    gate: Gate
    questions: Mapping[str, Question]
    clock: Clock
    metrics: ConsoleMetrics
    most_clients: int = 200


class ConsolePort:
    """Serves as long as it is entered."""

    def __init__(self, parts: Parts, place: Place) -> None:
        self._parts = parts
        self._place = place
        self._files = read_files()
        self._encoder = Encoder(parts.aggregator)
        self._runner: web.AppRunner | None = None
        self._streams: set[asyncio.Task[None]] = set()
        self._asking = asyncio.Semaphore(QUESTIONS_AT_ONCE)
        self.port = place.port

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/", self._page)
        app.router.add_get("/static/{path:.+}", self._file)
        app.router.add_get("/login", self._login_page)
        app.router.add_post("/login", self._login)
        app.router.add_post("/logout", self._logout)
        app.router.add_get("/healthz", _health)
        app.router.add_get("/api/state", self._state)
        app.router.add_get("/api/events", self._events, allow_head=False)
        app.router.add_get("/api/viewer", self._viewer)
        for name in self._parts.questions:
            app.router.add_get(f"/api/{name}", self._ask)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        place = self._place
        try:
            await web.TCPSite(self._runner, place.host, place.port, ssl_context=place.tls).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ListenError(f"cannot serve the console on {place.host}:{place.port}: {error}") from None
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain()
        if self._runner is not None:
            await self._runner.cleanup()

    async def drain(self) -> None:
        """End all streams; whoever watched comes back to another replica, or to the next run."""
        for task in tuple(self._streams):
            task.cancel()
        if self._streams:
            await asyncio.wait(tuple(self._streams))

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await self._answer(request, handler)
        self._parts.metrics.requests.labels(f"{response.status // 100}xx").inc()
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.path not in PUBLIC:
                viewer = await self._parts.gate.viewer(request)
                if viewer is None:
                    return self._turned_away(request)
                request[VIEWER] = viewer
            return await handler(request)
        except web.HTTPException as error:
            refused = _failure(error.status, error.reason)
            if "Allow" in error.headers:
                refused.headers["Allow"] = error.headers["Allow"]
            return refused
        except InvalidRequestError as error:
            return _failure(400, str(error))
        except NotFoundError as error:
            return _failure(404, str(error))
        except (GpuloomError, TimeoutError) as error:
            _log.warning("not answered", extra={"path": request.path, "reason": str(error)})
            return _failure(503, str(error) or "no answer in time")

    def _turned_away(self, request: web.Request) -> web.Response:
        if not self._parts.gate.has_login:
            return _failure(421, "ask for this page by a name of this machine, for example localhost")
        if "text/html" in request.headers.get("Accept", ""):
            return web.Response(status=303, headers={"Location": "/login", "Cache-Control": "no-store"})
        return _failure(401, "a token that Kubernetes accepts is needed")

    async def _page(self, request: web.Request) -> web.Response:
        return _file_response(request, self._files["index.html"])

    async def _file(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["path"])
        return _failure(404, "there is no such file") if found is None else _file_response(request, found)

    async def _login_page(self, request: web.Request) -> web.Response:
        if not self._parts.gate.has_login:
            return web.Response(status=303, headers={"Location": "/"})
        return _file_response(request, self._files["login.html"])

    async def _login(self, request: web.Request) -> web.Response:
        logins = self._parts.metrics.logins
        # Cookies are SameSite, and so is this form: another site's page can't log somebody in here.
        if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            return _failure(403, "the form of this page is needed")
        token = await _posted_token(request)
        try:
            cookie = session_cookie(token)
            accepted = await self._parts.gate.accepts(token)
        except ValueError as error:
            logins.labels("refused").inc()
            return _failure(400, str(error))
        except GpuloomError:
            logins.labels("failed").inc()
            raise
        logins.labels("accepted" if accepted else "refused").inc()
        if not accepted:
            return _file_response(request, self._files["login-refused.html"], status=401)
        return web.Response(
            status=303, headers={"Location": "/", "Set-Cookie": cookie, "Cache-Control": "no-store"}
        )

    async def _logout(self, _: web.Request) -> web.Response:
        return web.Response(
            status=303,
            headers={"Location": "/login", "Set-Cookie": ended_cookie(), "Cache-Control": "no-store"},
        )

    async def _viewer(self, request: web.Request) -> web.Response:
        viewer = request[VIEWER]
        namespaces = None if viewer.sight.namespaces is None else sorted(viewer.sight.namespaces)
        return _json(
            {"name": viewer.name, "namespaces": namespaces, "can_log_out": self._parts.gate.has_login}
        )

    async def _state(self, request: web.Request) -> web.Response:
        sight = request[VIEWER].sight
        version = self._encoder.version(self._parts.aggregator.state.version)
        tag = f'W/"{version}.{hash(sight) & 0xFFFFFFFF:x}"'
        headers = {"Cache-Control": "private, no-cache", "ETag": tag, "Vary": "Accept-Encoding, Cookie"}
        if tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        body = self._encoder.snapshot(sight)
        if _takes_gzip(request) and len(body) > SMALL_BYTES:
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        parts = self._parts
        if len(self._streams) >= parts.most_clients:
            parts.metrics.streams.labels("full").inc()
            return _failure(503, "too many pages watch already")
        asked = request.headers.get("Last-Event-ID") or request.query.get("after", "")
        response = web.StreamResponse(
            headers={
                **HEADERS,
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-store",
                # nginx would hold events back otherwise.
                "X-Accel-Buffering": "no",
            }
        )
        await response.prepare(request)
        await response.write(b"retry: 2000\n\n")
        stream = Stream(
            self._encoder, parts.aggregator, parts.clock, parts.metrics, lambda: parts.gate.viewer(request)
        )
        sending = asyncio.create_task(self._send(stream, response, request, self._encoder.number(asked)))
        self._streams.add(sending)
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            sending.cancel()
            # Whoever left: the task is cancelled; a drain: the task alone was.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
        finally:
            self._streams.discard(sending)
        return response

    async def _send(
        self, stream: Stream, response: web.StreamResponse, request: web.Request, after: int | None
    ) -> None:
        metrics, end = self._parts.metrics, "left"
        with metrics.clients.track_inprogress():
            try:
                with suppress(ConnectionError):
                    end = await stream.send(response, request[VIEWER], after)
            finally:
                metrics.streams.labels(end).inc()
                if end in ("slow", "refused") and request.transport is not None:
                    # What waits in its buffer is not waited for.
                    request.transport.abort()

    async def _ask(self, request: web.Request) -> web.Response:
        """Of one pod, by namespace and name."""
        pod = PodRef(*(request.query.get(name, "") for name in ("namespace", "name", "uid")))
        if not pod.namespace or not pod.name:
            raise InvalidRequestError("namespace and name are needed")
        if not request[VIEWER].sight.sees(pod.namespace):
            raise NotFoundError(f"no pod {pod}")
        async with self._asking:
            return _json(await self._parts.questions[request.path.removeprefix("/api/")](pod))


async def _posted_token(request: web.Request) -> str:
    try:
        return str((await request.post()).get("token", "")).strip()
    except (ValueError, LookupError):
        # A body that is no form, or in an encoding that there is not.
        raise InvalidRequestError("the form can't be read") from None


def _file_response(request: web.Request, file: PageFile, status: int = 200) -> web.Response:
    headers = {
        "ETag": file.tag,
        "Cache-Control": "no-cache",
        "Vary": "Accept-Encoding",
        "Content-Type": file.content_type,
    }
    if status == 200 and file.tag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    if not _takes_gzip(request):
        return web.Response(status=status, body=file.body, headers=headers)
    return web.Response(status=status, body=file.compressed, headers={**headers, "Content-Encoding": "gzip"})


def _takes_gzip(request: web.Request) -> bool:
    return "gzip" in request.headers.get("Accept-Encoding", "")


def _json(body: Json) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    return web.Response(body=orjson.dumps(body), content_type="application/json", headers=headers)


def _failure(status: int, message: str) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    body = orjson.dumps({"error": message})
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


async def _health(_: web.Request) -> web.Response:
    return _json({"status": "ok"})
