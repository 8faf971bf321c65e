"""Which mode serves what, and who reads whom."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from gpuloom.kube.informer import Informer
from gpuloom.kube.listing import Listing, Selection, WatchEvent
from gpuloom.kube.resources import PODS, Resource
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import FakeClock, settle
from gpuloom.runtime.config import ConfigError, load_config
from services.node_agent.exporter.config import ExporterConfig
from services.node_agent.exporter.dcgm_reader import FilledDriver
from services.node_agent.exporter.wiring import NodeExport, start_exporter
from services.node_agent.node import Node
from tests.unit.node_agent.exporter.builders import FakeNode, a_picture, values_of
from tests.unit.node_agent.exporter.test_dcgm_reader import BareDriver
from tests.unit.node_agent.exporter.test_detection import a_pod
from tests.unit.node_agent.exporter.test_exposition import written

URL = {"GPULOOM_AGENT_DCGM_URL": "http://127.0.0.1:9401/metrics"}


class FakePods:
    """An API with these pods and no news."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self._pods = pods

    async def list(self, resource: Resource, selection: Selection) -> Listing:
        return Listing(self._pods, "1")

    async def newest_version(self, resource: Resource, namespace: str | None) -> str:
        return "1"

    async def watch(self, *_: object, **__: object) -> AsyncGenerator[WatchEvent, None]:
        return
        yield


def config(mode: str = "auto", **more: str) -> ExporterConfig:
    places = {"GPULOOM_AGENT_EXPORTER_PORT": "0", "GPULOOM_HTTP_HOST": "127.0.0.1"}
    return load_config(ExporterConfig, {"GPULOOM_AGENT_EXPORTER": mode, **places, **more})


@asynccontextmanager
async def an_app() -> AsyncIterator[App]:
    app = App("node_agent", FakeClock(), CollectorRegistry())
    yield app
    for context in reversed(app.contexts):
        await context.__aexit__(None, None, None)


def pods_of(app: App, *pods: dict[str, Any]) -> Informer:
    return Informer(FakePods(*pods), PODS, app.clock)


def text_of(export: NodeExport) -> bytes:
    assert export._parts is not None
    return export._parts.exporter.text()


async def test_off_serves_nothing_and_leaves_the_driver_alone() -> None:
    async with an_app() as app:
        driver = BareDriver()

        export = await start_exporter(app, config("off"), pods_of(app))

        assert export.show(FakeNode(a_picture()), driver) is driver
        assert (app.loops, app.contexts, export.port) == ({}, [], 0)


@pytest.mark.parametrize(("mode", "loops"), [("auto", set()), ("on", {"GPU metrics"})])
async def test_simulated_gpus_are_shown_only_if_that_is_asked_for(mode: str, loops: set[str]) -> None:
    async with an_app() as app:
        export = await start_exporter(app, config(mode), pods_of(app), simulated=True)

        export.show(FakeNode(a_picture()), BareDriver())

        assert set(app.loops) == loops


async def test_on_shows_devices_whatever_else_runs() -> None:
    async with an_app() as app:
        pods, driver = pods_of(app, a_pod()), BareDriver()
        await pods._list()

        export = await start_exporter(app, config("on"), pods)

        assert export.show(FakeNode(a_picture()), driver) is driver
        assert b"DCGM_FI_DEV_GPU_UTIL" in text_of(export)


async def test_read_shows_no_devices_and_reads_the_given_url() -> None:
    async with an_app() as app:
        export = await start_exporter(app, config("read", **URL), pods_of(app))

        driver = export.show(FakeNode(a_picture()), BareDriver())

        assert isinstance(driver, FilledDriver)
        assert set(app.loops) == {"GPU metrics", "dcgm-exporter n1"}
        assert b"DCGM_FI_DEV_GPU_UTIL" not in text_of(export)
        assert b"dcgm-exporter shows this node's devices" in text_of(export)


async def test_auto_shows_devices_while_no_dcgm_exporter_runs_here() -> None:
    async with an_app() as app:
        pods = pods_of(app, a_pod(node="n2"), a_pod("train", image="train:1"))
        await pods._list()
        export = await start_exporter(app, config(), pods)

        export.show(FakeNode(a_picture()), BareDriver())

        assert b"DCGM_FI_DEV_GPU_UTIL" in text_of(export)


@pytest.mark.parametrize("listed_before", [True, False])
async def test_auto_stands_back_where_dcgm_exporter_runs(listed_before: bool) -> None:
    async with an_app() as app:
        pods = pods_of(app, a_pod())
        if listed_before:
            await pods._list()
        export = await start_exporter(app, config(), pods)

        export.show(FakeNode(a_picture()), BareDriver())
        before = text_of(export)
        await pods._list()

        assert b"DCGM_FI_DEV_GPU_UTIL" not in before
        assert b"DCGM_FI_DEV_GPU_UTIL" not in text_of(export)


@pytest.mark.parametrize("namespace", ["team-a", "default", "gpu-operator-2"])
async def test_a_pod_labelled_like_dcgm_exporter_elsewhere_changes_nothing(namespace: str) -> None:
    async with an_app() as app:
        impostor = a_pod(labels={"app": "nvidia-dcgm-exporter"}, namespace=namespace)
        pods = pods_of(app, impostor)
        await pods._list()
        export = await start_exporter(app, config(), pods)

        export.show(FakeNode(a_picture()), BareDriver())

        assert text_of(export) == written(a_picture())


async def test_the_namespaces_of_dcgm_exporter_can_be_named() -> None:
    async with an_app() as app:
        pods = pods_of(app, a_pod(namespace="monitoring"))
        await pods._list()
        named = config(GPULOOM_AGENT_DCGM_NAMESPACES="gpu-operator,monitoring")
        export = await start_exporter(app, named, pods)

        export.show(FakeNode(a_picture()), BareDriver())

        assert b"DCGM_FI_DEV_GPU_UTIL" not in text_of(export)


async def test_auto_does_not_wait_for_kubernetes_for_ever() -> None:
    async with an_app() as app:
        assert isinstance(app.clock, FakeClock)
        export = await start_exporter(app, config(), pods_of(app))
        export.show(FakeNode(a_picture()), BareDriver())
        assert b"pods are not listed yet" in text_of(export)

        await app.clock.advance(31)

        assert b"DCGM_FI_DEV_GPU_UTIL" in text_of(export)


async def test_the_looks_at_a_node_are_served_over_http() -> None:
    async with an_app() as app, aiohttp.ClientSession() as session:
        export, picture = await start_exporter(app, config("on"), pods_of(app)), a_picture()
        node = Node(picture.state, app.clock, max_age_s=10.0)
        export.show(node, BareDriver())
        serving = asyncio.ensure_future(app.loops["GPU metrics"]())
        await settle()

        async with session.get(f"http://127.0.0.1:{export.port}/metrics") as answer:
            before = await answer.read()
        node.move_to(picture.state, picture.reading)
        async with session.get(f"http://127.0.0.1:{export.port}/metrics") as answer:
            after = await answer.read()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    assert values_of(before, "dcgm_up", "node") == {("n1",): 0}
    assert values_of(after, "dcgm_up", "node") == {("n1",): 1}
    assert values_of(after, "DCGM_FI_DEV_GPU_UTIL", "UUID") == {("GPU-a",): 80}


def test_settings_have_the_usual_values_as_defaults() -> None:
    settings = load_config(ExporterConfig, {})

    assert (settings.mode, settings.port, settings.hostname_label) == ("auto", 9400, "Hostname")


def test_the_case_of_the_hostname_label_matters() -> None:
    name = "GPULOOM_AGENT_EXPORTER_HOSTNAME_LABEL"

    assert load_config(ExporterConfig, {name: "hostname"}).hostname_label == "hostname"
    with pytest.raises(ConfigError, match="must be Hostname or hostname"):
        load_config(ExporterConfig, {name: "HOSTNAME"})


@pytest.mark.parametrize(
    ("mode", "url", "problem"),
    [
        ("read", {}, "is required by"),
        ("on", URL, "needs GPULOOM_AGENT_EXPORTER=read"),
        ("read", {"GPULOOM_AGENT_DCGM_URL": "localhost:9400"}, "must be a URL"),
    ],
)
def test_a_url_goes_with_mode_read(mode: str, url: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config(mode, **url)
