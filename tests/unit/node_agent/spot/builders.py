"""Local servers that speak the wire format of each cloud's metadata service, and worse ones."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.test_utils import TestServer

from gpuloom.runtime.clock import Clock, FakeClock
from services.node_agent.spot.metadata import Metadata

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TIMEOUT_S = 0.8


@asynccontextmanager
async def a_service(handler: Handler) -> AsyncIterator[str]:
    """The URL of a server that answers everything by the handler."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(application) as server:
        yield f"http://{server.host}:{server.port}"


@asynccontextmanager
async def a_raw_service(answer: bytes | None) -> AsyncIterator[str]:
    """The URL of a server that sends these bytes and hangs up; None: it takes questions and says nothing."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            if answer is None:
                await over.wait()
            else:
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0)


def metadata_at(url: str, clock: Clock | None = None) -> Metadata:
    return Metadata(url, clock or FakeClock(), TIMEOUT_S)


async def as_time_passes(clock: FakeClock, work: Coroutine[Any, Any, T]) -> T:
    """The outcome of work that waits for time to pass; sockets get moments of the machine's own between."""
    task = asyncio.create_task(work)
    for _ in range(1000):
        if task.done():
            break
        await asyncio.sleep(0.001)
        await clock.advance(0.05)
    return await task


@dataclass
class Ec2:
    """EC2's metadata service with tokens required."""

    clock: FakeClock = field(default_factory=FakeClock)
    action: str | None = None
    hint: str | None = None
    tokens: dict[str, float] = field(default_factory=dict)
    given: int = 0

    async def handle(self, request: web.Request) -> web.Response:
        if request.path == "/latest/api/token":
            return self._token(request)
        ends_at_s = self.tokens.get(request.headers.get("X-aws-ec2-metadata-token", ""), -1.0)
        if ends_at_s <= self.clock.monotonic():
            return web.Response(status=401, text="<html>401 - Unauthorized</html>")
        items = {
            "/latest/meta-data/spot/instance-action": self.action,
            "/latest/meta-data/events/recommendations/rebalance": self.hint,
        }
        item = items.get(request.path)
        if item is None:
            return web.Response(status=404, text="<html>404 - Not Found</html>", content_type="text/html")
        return web.Response(text=item)

    def _token(self, request: web.Request) -> web.Response:
        if request.method != "PUT":
            return web.Response(status=405)
        # EC2 refuses forwarded requests, so that an open proxy gives no tokens away.
        ttl = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if "X-Forwarded-For" in request.headers:
            return web.Response(status=403)
        if not ttl.isdecimal() or not 1 <= int(ttl) <= 21600:
            return web.Response(status=400)
        self.given += 1
        token = f"AQAEAM{self.given}-_x=="
        self.tokens[token] = self.clock.monotonic() + int(ttl)
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": ttl, "Server": "EC2ws"}
        return web.Response(text=token, headers=headers)


@dataclass
class ComputeEngine:
    preempted: str = "FALSE"
    flavor: str = "Google"

    async def handle(self, request: web.Request) -> web.Response:
        headers = {"Metadata-Flavor": self.flavor, "Server": "Metadata Server for VM"} if self.flavor else {}
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403, headers=headers, text="Missing Metadata-Flavor:Google header.")
        if request.path != "/computeMetadata/v1/instance/preempted":
            return web.Response(status=404, headers=headers)
        return web.Response(text=self.preempted, headers=headers, content_type="application/text")


@dataclass
class AzureMachine:
    name: str = "aks-gpu-1234-vmss_7"
    events: list[dict[str, Any]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        if request.headers.get("Metadata") != "true":
            return web.json_response(
                {"error": "Bad request. Required metadata header not specified"}, status=400
            )
        if not request.query.get("api-version"):
            return web.json_response({"error": "Bad request. api-version was not specified"}, status=400)
        if request.path == "/metadata/instance/compute/name" and request.query.get("format") == "text":
            return web.Response(text=self.name)
        if request.path == "/metadata/scheduledevents" and request.query["api-version"] == "2020-07-01":
            return web.json_response({"DocumentIncarnation": 3, "Events": self.events})
        return web.Response(status=404)


def an_azure_event(kind: str = "Preempt", *machines: str, **changes: Any) -> dict[str, Any]:
    event = {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventStatus": "Scheduled",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(machines or ("aks-gpu-1234-vmss_7",)),
        "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
    return event | changes
