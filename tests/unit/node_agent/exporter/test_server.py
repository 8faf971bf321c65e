"""How scrapes are answered, and what garbage does."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.runtime.clock import FakeClock, settle
from services.node_agent.exporter.core.exposition import PageFormat
from services.node_agent.exporter.exporter import Exporter
from services.node_agent.exporter.metrics import ExporterMetrics
from services.node_agent.exporter.server import ExporterServer
from tests.effort import examples
from tests.unit.node_agent.exporter.builders import FakeNode, a_picture

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Served:
    server: ExporterServer
    exporter: Exporter
    node: FakeNode
    registry: CollectorRegistry

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server.port}"

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"gpuloom_node_agent_{name}")


@asynccontextmanager
async def served(port: int = 0) -> AsyncIterator[Served]:
    made = a_server(port)
    async with made.server:
        yield made


def a_server(port: int) -> Served:
    registry, node = CollectorRegistry(), FakeNode(a_picture())
    metrics = ExporterMetrics(registry)
    exporter = Exporter(PageFormat(), FakeClock(), metrics)
    exporter.add(node)
    return Served(ExporterServer(exporter, HOST, port, metrics), exporter, node, registry)


async def test_a_scrape_gets_the_text_format_and_is_counted() -> None:
    async with served() as made, aiohttp.ClientSession(headers={"Accept-Encoding": "identity"}) as session:
        async with session.get(f"{made.url}/metrics") as answer:
            body = await answer.read()

        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "Content-Encoding" not in answer.headers
        assert body == made.exporter.text()
        assert made.metric("scrapes_total") == 1
        assert made.metric("exposition_bytes") == len(body)
        assert made.metric("exporter_listening") == 1


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("br", False),
    ],
)
async def test_it_is_compressed_for_those_who_take_it(accepted: str, compressed: bool) -> None:
    headers = {"Accept-Encoding": accepted}
    async with served() as made, aiohttp.ClientSession(auto_decompress=False, headers=headers) as session:
        async with session.get(f"{made.url}/metrics") as answer:
            body = await answer.read()

        assert (answer.headers.get("Content-Encoding") == "gzip") is compressed
        assert (gzip.decompress(body) if compressed else body) == made.exporter.text()


async def test_other_paths_and_methods_are_refused() -> None:
    async with served() as made, aiohttp.ClientSession() as session:
        async with session.get(f"{made.url}/") as root, session.get(f"{made.url}/metrics/x") as deeper:
            assert (root.status, deeper.status) == (404, 404)
        async with session.post(f"{made.url}/metrics") as post:
            assert post.status == 405


async def test_health_tells_that_the_node_is_not_looked_at() -> None:
    async with served() as made, aiohttp.ClientSession() as session:
        async with session.get(f"{made.url}/healthz") as good:
            pass
        made.node.stale = "the node was last sampled 60 s ago"
        async with session.get(f"{made.url}/healthz") as bad:
            reason = await bad.text()

    assert (good.status, bad.status) == (200, 503)
    assert reason == "n1: the node was last sampled 60 s ago\n"


async def test_a_header_without_end_is_refused() -> None:
    async with served() as made, aiohttp.ClientSession() as session:
        async with session.get(f"{made.url}/metrics", headers={"X-Long": "a" * 20_000}) as answer:
            assert answer.status == 400
        async with session.get(f"{made.url}/healthz") as after:
            assert after.status == 200


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([b"GET /metrics HTTP/1.1\r\n", b"\r\n"]), max_size=5)
)
def test_garbage_does_not_end_the_server(chunks: list[bytes]) -> None:
    async def attack() -> None:
        async with served() as made:
            reader, writer = await asyncio.open_connection(HOST, made.server.port)
            writer.write(b"".join(chunks))
            writer.write_eof()
            try:
                await reader.read()
            except ConnectionError:
                pass
            writer.close()
            async with aiohttp.ClientSession() as session, session.get(f"{made.url}/metrics") as answer:
                assert answer.status == 200

    asyncio.run(attack())


async def test_a_taken_port_costs_the_exporter_and_not_the_agent() -> None:
    clock = FakeClock()
    async with served() as first:
        port = first.server.port
        second = a_server(port)
        serving = asyncio.create_task(second.server.serve(clock))
        await clock.advance(5)
        assert (second.server.port, serving.done()) == (0, False)

    await clock.advance(60)
    await settle()

    assert second.server.port == port
    assert second.metric("exporter_listening") == 1
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert second.metric("exporter_listening") == 0
