"""A way to the API server on which Bindings may go wrong: refused, answered wrongly, sent twice, held up.

Plain HTTP in, HTTPS out; who calls is proved by the caller's own token. Everything but Bindings passes
untouched, watches as they come. A Binding that is held up goes on its way also when its sender is gone,
as one that waits in a real proxy does.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

from gpuloom.runtime.clock import Clock
from gpuloom.sim.processes.ports import HOST

_BINDING = re.compile(r"/api/v1/namespaces/[^/]+/pods/(?P<pod>[^/]+)/binding")
_HOP_BY_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})
_MAX_BODY_BYTES = 16 * 1024 * 1024
_SHUTDOWN_S = 0.5


class Fate(StrEnum):
    """What becomes of a Binding. LATE and SILENT take the treatment's `delay_s`."""

    PASS = "pass"
    FAIL = "answered 500, never sent"
    FAIL_APPLIED = "sent, answered 500"
    CONFLICT = "answered 409, never sent"
    TWICE = "sent twice, as a proxy that tries again does; the second answer counts"
    LATE = "held up, then sent"
    SILENT = "sent, its answer held up"


@dataclass(frozen=True)
class Treatment:
    """One that is LATE also waits for `gate`, if there is one."""

    fate: Fate
    delay_s: float = 0.0
    gate: asyncio.Event | None = None


UNTOUCHED = Treatment(Fate.PASS)


def leave_alone(_pod: str) -> Treatment:
    """To see all Bindings, and change none."""
    return UNTOUCHED


@dataclass(frozen=True)
class TreatedBinding:
    """`statuses` are what the API server answered, once for each time it was sent; `ended_s` is monotonic."""

    pod: str
    fate: Fate
    statuses: tuple[int, ...]
    ended_s: float


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: dict[str, str]
    body: bytes


class ApiProxy:
    """Async context manager. `treat` says, Binding by Binding, what becomes of the one for that pod."""

    def __init__(
        self, url: str, authority: Path, clock: Clock, treat: Callable[[str], Treatment] | None = None
    ) -> None:
        self.port = 0
        self.bindings: list[TreatedBinding] = []
        """In the order in which they ended."""
        self.received: list[str] = []
        """The pods of all Bindings, in the order in which they came."""
        self._url = url
        self._tls = ssl.create_default_context(cafile=authority)
        self._clock = clock
        self._treat = treat or leave_alone
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()
            # Its TLS connections say goodbye in the next turns of the loop.
            await asyncio.sleep(0.05)

    def statuses(self, pod: str) -> list[tuple[int, ...]]:
        """What the API server said to each Binding of that pod that has ended."""
        return [binding.statuses for binding in self.bindings if binding.pod == pod]

    def kubeconfig(self, original: Path, path: Path) -> Path:
        """The same account as in the original, by way of this proxy."""
        document = yaml.safe_load(original.read_text(encoding="utf-8"))
        for entry in document["clusters"]:
            entry["cluster"] = {"server": f"http://{HOST}:{self.port}"}
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return path

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._stream(request)
        body = await request.read()
        found = _BINDING.fullmatch(request.path) if request.method == "POST" else None
        if found is None:
            return _response(await self._send(request, body))
        return _response(await self._bind(found["pod"], request, body))

    async def _bind(self, pod: str, request: web.Request, body: bytes) -> _Reply:
        self.received.append(pod)
        treatment = self._treat(pod)
        statuses: list[int] = []
        try:
            return await self._suffer(treatment, request, body, statuses)
        finally:
            ended_s = self._clock.monotonic()
            self.bindings.append(TreatedBinding(pod, treatment.fate, tuple(statuses), ended_s))

    async def _suffer(
        self, treatment: Treatment, request: web.Request, body: bytes, statuses: list[int]
    ) -> _Reply:
        async def send() -> _Reply:
            reply = await self._send(request, body)
            statuses.append(reply.status)
            return reply

        fate = treatment.fate
        if fate is Fate.FAIL:
            return _failure(500, "InternalError")
        if fate is Fate.CONFLICT:
            return _failure(409, "Conflict")
        if fate is Fate.LATE:
            await self._clock.sleep(treatment.delay_s)
            if treatment.gate is not None:
                await treatment.gate.wait()
        reply = await send()
        if fate is Fate.TWICE:
            reply = await send()
        if fate is Fate.SILENT:
            await self._clock.sleep(treatment.delay_s)
        return _failure(500, "InternalError") if fate is Fate.FAIL_APPLIED else reply

    async def _send(self, request: web.Request, body: bytes) -> _Reply:
        try:
            async with self._call(request, body) as answer:
                return _Reply(answer.status, _passed_on(answer.headers), await answer.read())
        except aiohttp.ClientError:
            return _failure(503, "ServiceUnavailable")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Until either side ends it. One that can't go on is cut off: a watch knows how to begin again."""
        response = web.StreamResponse()
        try:
            async with self._call(request, b"") as answer:
                response = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
        except (aiohttp.ClientError, ConnectionError):
            response.force_close()
        return response

    def _call(self, request: web.Request, body: bytes) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:
            raise ValueError("the proxy has not been entered")
        url = URL(self._url + request.raw_path, encoded=True)
        headers = _passed_on(request.headers)
        return self._session.request(request.method, url, headers=headers, data=body or None)


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


def _response(reply: _Reply) -> web.Response:
    return web.Response(status=reply.status, headers=reply.headers, body=reply.body)


def _failure(status: int, reason: str) -> _Reply:
    text = f'{{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"{reason}","code":{status}}}'
    return _Reply(status, {"Content-Type": "application/json"}, text.encode())
