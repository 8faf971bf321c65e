"""A console's port on a state that a test feeds, and a client of it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
from prometheus_client import CollectorRegistry

from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import Resource
from gpuloom.kube.reviews import AccessReviews, TokenReviews
from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import SystemClock
from services.console.aggregator import Aggregator
from services.console.core.sight import for_everybody, of_a_namespace
from services.console.core.state import Items
from services.console.metrics import ConsoleMetrics
from services.console.ports import Source
from services.console.web.access import Gate, LoopbackGate, ProxyHeaders, TokenGate
from services.console.web.server import ConsolePort, Parts, Place


class Fed:
    """Sections as the test sets them."""

    def __init__(self) -> None:
        self.pods: dict[str, Any] = {}
        self.nodes: dict[str, Any] = {}
        rules = {"pods": of_a_namespace, "nodes": for_everybody}
        self.source = Source("fed", rules, 1.0, self.read)
        self.metrics = ConsoleMetrics(CollectorRegistry())
        self.aggregator = Aggregator((self.source,), SystemClock(), self.metrics)

    async def read(self) -> Mapping[str, Items]:
        return {"pods": dict(self.pods), "nodes": dict(self.nodes)}

    async def tell(self) -> None:
        await self.aggregator.ask(self.source)


class Kubernetes:
    """Knows tokens by name of their user, and who may list pods where."""

    def __init__(self, tokens: Mapping[str, str], rights: Mapping[str, set[str]]) -> None:
        self.tokens = dict(tokens)
        self.rights = rights
        self.reviews: list[JsonObject] = []

    async def create(self, resource: Resource, obj: JsonObject) -> JsonObject:
        self.reviews.append(obj)
        spec = obj["spec"]
        if resource.kind == "TokenReview":
            user = self.tokens.get(spec["token"])
            return {"status": {"authenticated": user is not None, "user": {"username": user}}}
        attributes = spec["resourceAttributes"]
        assert (attributes["verb"], attributes["resource"]) == ("list", "pods")
        allowed = self.rights.get(spec["user"], set())
        return {"status": {"allowed": attributes.get("namespace", "*") in allowed}}


def a_token_gate(kubernetes: Kubernetes, fed: Fed, proxy: ProxyHeaders | None = None) -> TokenGate:
    clock = SystemClock()
    rights = AccessReviews(kubernetes, clock)
    return TokenGate(TokenReviews(kubernetes, clock), rights, proxy, fed.aggregator.namespaces)


async def answered(pod: PodRef) -> Any:
    return {"pod": str(pod)}


@asynccontextmanager
async def a_console(
    fed: Fed, gate: Gate | None = None, most_clients: int = 10
) -> AsyncIterator[tuple[ConsolePort, aiohttp.ClientSession]]:
    parts = Parts(
        fed.aggregator,
        gate or LoopbackGate(),
        {"explain": answered},
        SystemClock(),
        fed.metrics,
        most_clients,
    )
    async with ConsolePort(parts, Place("127.0.0.1", 0, None)) as port:
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port.port}", cookie_jar=jar) as session:
            yield port, session


async def next_event(response: aiohttp.ClientResponse, timeout_s: float = 15.0) -> tuple[str, str, Any]:
    """(kind, id, body) of the next event; comments and empty lines are skipped."""
    fields: dict[str, str] = {}
    async with asyncio.timeout(timeout_s):
        while True:
            line = (await response.content.readuntil(b"\n")).decode().rstrip("\n")
            if not line:
                if "data" in fields:
                    return fields["event"], fields.get("id", ""), orjson.loads(fields["data"])
                fields = {}
                continue
            name, _, value = line.partition(": ")
            fields[name] = value
