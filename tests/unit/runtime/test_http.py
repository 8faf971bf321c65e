from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
import pytest
from prometheus_client import CollectorRegistry, Counter

from gpuloom.runtime.http import Check, StatusServer


@dataclass(frozen=True)
class Reply:
    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


@asynccontextmanager
async def a_server(
    liveness: Mapping[str, Check] | None = None, readiness: Mapping[str, Check] | None = None
) -> AsyncIterator[StatusServer]:
    registry = CollectorRegistry()
    Counter("binds", "Binds done", registry=registry).inc(3)
    async with StatusServer("127.0.0.1", 0, registry, liveness or {}, readiness or {}) as server:
        yield server


async def ask(server: StatusServer, path: str, method: str = "GET", accept: str = "*/*") -> Reply:
    address = f"http://127.0.0.1:{server.port}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, address, headers={"Accept": accept}) as response,
    ):
        return Reply(response.status, response.headers.get("Content-Type", ""), await response.read())


async def test_a_free_port_is_taken_and_told() -> None:
    async with a_server() as server:
        assert server.port > 0


async def test_metrics_come_in_the_plain_format_by_default() -> None:
    async with a_server() as server:
        reply = await ask(server, "/metrics")

    assert reply.status == 200
    assert reply.content_type.startswith("text/plain; version=0.0.4")
    assert b"binds_total 3.0" in reply.body


async def test_metrics_come_as_openmetrics_to_whom_asks_for_it() -> None:
    async with a_server() as server:
        reply = await ask(
            server, "/metrics", accept="application/openmetrics-text; version=1.0.0, text/plain;q=0.5"
        )

    assert reply.content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert reply.body.endswith(b"# EOF\n")


async def test_a_malformed_accept_header_gets_the_plain_format() -> None:
    async with a_server() as server:
        reply = await ask(server, "/metrics", accept="application/openmetrics-text; version=abc")

    assert reply.status == 200
    assert reply.content_type.startswith("text/plain")


async def test_checks_that_are_fine_answer_200() -> None:
    async with a_server(readiness={"kube": lambda: None, "peers": lambda: None}) as server:
        reply = await ask(server, "/readyz")

    assert reply.status == 200
    assert reply.json() == {"status": "ok", "checks": {"kube": {"ok": True}, "peers": {"ok": True}}}


async def test_a_failing_check_answers_503_with_its_reason() -> None:
    checks: dict[str, Check] = {"kube": lambda: "pods are not synced", "peers": lambda: None}
    async with a_server(readiness=checks) as server:
        ready = await ask(server, "/readyz")
        live = await ask(server, "/healthz")

    assert ready.status == 503
    assert ready.content_type == "application/json"
    assert ready.json() == {
        "status": "failing",
        "checks": {"kube": {"ok": False, "reason": "pods are not synced"}, "peers": {"ok": True}},
    }
    assert live.status == 200


async def test_a_check_that_raises_counts_as_failing_and_leaks_nothing() -> None:
    def broken() -> str | None:
        raise RuntimeError("password=hunter2")

    async with a_server(liveness={"broken": broken}) as server:
        reply = await ask(server, "/healthz")

    assert reply.status == 503
    assert reply.json()["checks"]["broken"]["reason"] == "the check itself failed with RuntimeError"


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
async def test_only_get_and_head_are_answered(path: str) -> None:
    async with a_server() as server:
        head = await ask(server, path, "HEAD")
        refused = [(await ask(server, path, method)).status for method in ("POST", "PUT", "DELETE")]

    assert (head.status, head.body) == (200, b"")
    assert refused == [405, 405, 405]


async def test_a_port_in_use_is_an_os_error() -> None:
    async with a_server() as server:
        with pytest.raises(OSError, match="in use"):
            async with StatusServer("127.0.0.1", server.port, CollectorRegistry(), {}, {}):
                pass
