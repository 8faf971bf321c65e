"""Settings, the choice of a cloud, and the whole watcher against a metadata service."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.kube.informer import Informer
from gpuloom.model.node import NodeMode
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import FakeClock
from gpuloom.runtime.config import ConfigError, load_config
from services.node_agent.node import Node
from services.node_agent.spot.config import SpotConfig
from services.node_agent.spot.core.clouds import Cloud, SpotWatch, Unwatched, choose_cloud
from services.node_agent.spot.metrics import SpotMetrics
from services.node_agent.spot.wiring import start_spot
from tests.unit.node_agent.builders import a_start
from tests.unit.node_agent.spot.builders import Ec2, a_raw_service, a_service

ACTION = '{"action": "terminate", "time": "2026-09-18T08:22:00Z"}'


def test_settings_have_defaults_that_ask_nobody_on_bare_metal() -> None:
    config = load_config(SpotConfig, {})

    assert config == SpotConfig()
    assert (config.watch, config.interval_s) == (SpotWatch.AUTO, 5.0)
    assert config.metadata_url == "http://169.254.169.254"


@pytest.mark.parametrize("interval", ["500ms", "16s", "1h"])
def test_an_interval_that_misses_notices_or_floods_the_service_is_refused(interval: str) -> None:
    with pytest.raises(ConfigError, match="from 1s to 15s"):
        load_config(SpotConfig, {"GPULOOM_AGENT_SPOT_INTERVAL": interval})


@pytest.mark.parametrize("url", ["http://[fd00:ec2::254]", "http://localhost:8080/prefix", "https://proxy"])
def test_the_metadata_service_may_be_elsewhere(url: str) -> None:
    assert load_config(SpotConfig, {"GPULOOM_AGENT_METADATA_URL": url}).metadata_url == url


@pytest.mark.parametrize(
    "url",
    ["169.254.169.254", "ftp://x", "http://", "http://a:99999", "http://a?b", "http://u:p@a", "http://[a"],
)
def test_what_is_no_url_of_a_service_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="must be a URL such as"):
        load_config(SpotConfig, {"GPULOOM_AGENT_METADATA_URL": url})


@pytest.mark.parametrize(
    ("provider_id", "cloud"),
    [
        ("aws:///eu-west-1a/i-0123456789abcdef0", Cloud.AWS),
        ("gce://project/europe-west4-a/gke-node-1", Cloud.GCP),
        ("azure:///subscriptions/s/resourceGroups/g/providers/p/virtualMachines/0", Cloud.AZURE),
    ],
)
def test_auto_goes_by_the_nodes_provider(provider_id: str, cloud: Cloud) -> None:
    assert choose_cloud(SpotWatch.AUTO, provider_id) is cloud


@pytest.mark.parametrize(
    ("provider_id", "reason"),
    [
        (None, "not known yet"),
        ("", "has no providerID"),
        ("kind://docker/kind/node", "'kind', not aws://"),
        ("aws", "'aws'"),
        ("AWS:///x", "'AWS'"),
    ],
)
def test_auto_watches_no_other_node(provider_id: str | None, reason: str) -> None:
    chosen = choose_cloud(SpotWatch.AUTO, provider_id)

    assert isinstance(chosen, Unwatched)
    assert reason in chosen.reason


@pytest.mark.parametrize("watch", [SpotWatch.AWS, SpotWatch.GCP, SpotWatch.AZURE])
def test_a_cloud_that_is_asked_for_needs_no_provider(watch: SpotWatch) -> None:
    assert choose_cloud(watch, None) == Cloud(watch.value)


@given(st.text())
def test_any_provider_is_a_cloud_or_a_reason(provider_id: str) -> None:
    chosen = choose_cloud(SpotWatch.AUTO, provider_id)

    assert isinstance(chosen, Cloud) or 0 < len(chosen.reason) < 500


class ListedNodes:
    """An informer that holds this one node."""

    def __init__(self, provider_id: str | None) -> None:
        self._spec: dict[str, Any] = {} if provider_id is None else {"providerID": provider_id}

    def get(self, name: str, namespace: str = "") -> dict[str, Any] | None:
        return {"metadata": {"name": name}, "spec": self._spec} if name == "n1" else None


class Stage:
    def __init__(self, url: str, watch: str = "auto", provider_id: str | None = None) -> None:
        self.clock = FakeClock()
        self.app = App("node_agent", self.clock, CollectorRegistry())
        self.node = Node(a_start(NodeMode.NVIDIA), self.clock, 10.0)
        environ = {"GPULOOM_AGENT_SPOT": watch, "GPULOOM_AGENT_METADATA_URL": url}
        nodes = cast(Informer, ListedNodes(provider_id))
        start_spot(
            self.app, load_config(SpotConfig, environ), self.node, nodes, SpotMetrics(self.app.registry)
        )

    async def run(self, until: Callable[[], bool], most_s: float = 60.0) -> bool:
        """Whether it came to that within some seconds of the watcher's clock."""
        task = asyncio.ensure_future(self.app.loops["spot n1"]())
        while not until() and self.clock.monotonic() < most_s:
            await asyncio.sleep(0.001)
            await self.clock.advance(0.1)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return until()

    def polls(self, result: str) -> float:
        labels = {"cloud": "aws", "result": result}
        return self.app.registry.get_sample_value("gpuloom_node_agent_spot_polls_total", labels) or 0.0


async def test_a_notice_reaches_the_nodes_state() -> None:
    ec2 = Ec2(action=ACTION)
    async with a_service(ec2.handle) as url:
        stage = Stage(url, provider_id="aws:///eu-west-1a/i-0123456789abcdef0")
        assert await stage.run(lambda: stage.node.state.spot is not None)

    assert stage.node.state.spot is not None
    assert stage.node.state.spot.action == "terminate"
    assert not stage.node.looked_at


@pytest.mark.parametrize(
    ("watch", "provider_id"), [("auto", None), ("auto", "kind://docker/a/b"), ("off", "aws:///a/i-1")]
)
async def test_nothing_is_asked_off_the_cloud_or_when_switched_off(
    watch: str, provider_id: str | None
) -> None:
    ec2 = Ec2(action=ACTION)
    async with a_service(ec2.handle) as url:
        stage = Stage(url, watch, provider_id)
        assert not await stage.run(lambda: stage.node.state.spot is not None, most_s=12.0)

    assert ec2.given == 0


async def test_a_silent_service_never_delays_the_next_look() -> None:
    async with a_raw_service(None) as url:
        stage = Stage(url, "aws")
        assert await stage.run(lambda: stage.polls("slow") >= 3, most_s=16.0)

    assert stage.node.state.spot is None


def test_agents_of_one_process_share_their_metrics() -> None:
    app, nodes = App("node_agent", FakeClock(), CollectorRegistry()), cast(Informer, ListedNodes(None))
    metrics = SpotMetrics(app.registry)

    for name in ("n1", "n2"):
        start_spot(
            app, SpotConfig(), Node(replace(a_start(), node_name=name), app.clock, 10.0), nodes, metrics
        )

    assert set(app.loops) == {"spot n1", "spot n2"}
