"""The console over TLS, on a discovery that serves: what it shows, and whose certificate may name a user."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import orjson
import pytest
from prometheus_client import CollectorRegistry

from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.tls import client_ssl_context, server_ssl_context
from gpuloom.runtime.clock import SystemClock
from services.console.aggregator import SOURCES, Aggregator
from services.console.metrics import ConsoleMetrics
from services.console.sections import cluster
from services.console.sections.cluster import cluster_source
from services.console.web.access import ProxyHeaders
from services.console.web.server import ConsolePort, Parts, Place
from tests.mesh.discovery.builders import World, a_mirror, serving
from tests.mesh.rpc.builders import an_environment, issue
from tests.mesh.waiting import until
from tests.unit.console.pages import Fed, Kubernetes, a_token_gate, answered
from tests.unit.discovery.builders import a_state

HEADERS = ProxyHeaders("X-Forwarded-User", "X-Forwarded-Groups")
NAMED = {"X-Forwarded-User": "ann", "X-Forwarded-Groups": "people"}


async def test_the_page_follows_discovery_and_says_when_it_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "STALE_S", 0.2)
    world = World("n1", "n2")
    async with serving(world.servicer) as server, a_mirror(server.port, with_usage=True) as mirror:
        source = cluster_source(mirror)
        aggregator = Aggregator((source,), SystemClock(), ConsoleMetrics(CollectorRegistry()))
        await aggregator.ask(source)
        assert "was not heard" in aggregator.state.section(SOURCES)["discovery"]["reason"]

        await mirror.wait_synced()
        await aggregator.ask(source)
        shown = aggregator.state.section("nodes").values()
        assert {node["node"] for node in shown} == {"n1", "n2"}

        world.hear("n1", a_state("n1", utilization=0.5))
        world.model.publish()
        await until(lambda: mirror.facts_of("uid-n1").state.usage[0].utilization_ratio == 0.5)  # type: ignore[union-attr]
        await aggregator.ask(source)
        assert aggregator.state.section("usage")["uid-n1"] == [[50, None, None, None]]

    await until(lambda: mirror.age_s() > 0.2)
    await aggregator.ask(source)
    assert not aggregator.state.section(SOURCES)["discovery"]["ok"]
    assert len(aggregator.state.section("nodes")) == 2


@asynccontextmanager
async def over_tls(folder: Path) -> AsyncIterator[int]:
    """A console that believes a proxy; the port."""
    fed = Fed()
    kubernetes = Kubernetes({"good": "bob"}, {"ann": {"*"}, "bob": {"*"}})
    certificates = an_environment(tls_files(folder, "console")).certificates
    assert certificates is not None
    tls = server_ssl_context(certificates, False, ask_for_client_certificate=True)
    gate = a_token_gate(kubernetes, fed, HEADERS)
    parts = Parts(fed.aggregator, gate, {"explain": answered}, SystemClock(), fed.metrics)
    async with ConsolePort(parts, Place("127.0.0.1", 0, tls)) as port:
        yield port.port


def certificate_of(folder: Path, service: str) -> ssl.SSLContext:
    environment: RpcEnvironment = an_environment(tls_files(folder, service))
    assert environment.certificates is not None
    return client_ssl_context(environment.certificates)


async def viewer(port: int, tls: ssl.SSLContext, headers: dict[str, str]) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://localhost:{port}/api/viewer", ssl=tls, headers=headers) as answer,
    ):
        return answer.status, orjson.loads(await answer.read()).get("name", "")


async def test_headers_name_a_user_only_where_the_proxy_has_proved_itself(tmp_path: Path) -> None:
    issue(tmp_path, "console", "oidc_proxy", "cli")
    issue(tmp_path / "other", "oidc_proxy")
    nobody = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    forged = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    files = tls_files(tmp_path / "other", "oidc_proxy")
    forged.load_cert_chain(files.cert_file, files.key_file)
    async with over_tls(tmp_path) as port:
        assert await viewer(port, certificate_of(tmp_path, "oidc_proxy"), NAMED) == (200, "ann")
        assert await viewer(port, certificate_of(tmp_path, "oidc_proxy"), {}) == (401, "")
        # A certificate of ours, but not the proxy's; and none at all.
        assert await viewer(port, certificate_of(tmp_path, "cli"), NAMED) == (401, "")
        assert await viewer(port, nobody, NAMED) == (401, "")
        assert await viewer(port, nobody, {**NAMED, "Authorization": "Bearer good"}) == (200, "bob")
        with pytest.raises((aiohttp.ClientError, OSError)):
            await viewer(port, forged, NAMED)
