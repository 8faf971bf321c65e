"""A real Prometheus scrapes a real exporter, and answers queries about what it found."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.processes.ports import HOST
from services.node_agent.exporter.core.exposition import PageFormat
from services.node_agent.exporter.exporter import Exporter
from services.node_agent.exporter.metrics import ExporterMetrics
from services.node_agent.exporter.server import ExporterServer
from tests.prometheus.server import JOB, Prometheus, running
from tests.unit.node_agent.exporter.builders import MIG_GPU, FakeNode, a_full_picture

# One Prometheus for all of them: it takes seconds until it scrapes for the first time.
pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@dataclass(frozen=True)
class Scraped:
    node: FakeNode
    prometheus: Prometheus
    registry: CollectorRegistry


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scraped(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scraped]:
    """A node with cards of every kind, scraped at least once. Tests leave it as they found it."""
    folder = tmp_path_factory.mktemp("prometheus")
    clock, registry, node = SystemClock(), CollectorRegistry(), FakeNode(a_full_picture())
    metrics = ExporterMetrics(registry)
    exporter = Exporter(PageFormat(), clock, metrics)
    exporter.add(node)
    async with (
        ExporterServer(exporter, HOST, 0, metrics) as server,
        running(programs / "prometheus", folder, server.port, clock) as prometheus,
    ):
        await prometheus.until("dcgm_up", bool)
        yield Scraped(node, prometheus, registry)


async def test_prometheus_scrapes_the_exporter_and_sees_that_it_is_up(scraped: Scraped) -> None:
    ((_, up),) = await scraped.prometheus.query("up")
    ((labels, dcgm_up),) = await scraped.prometheus.query("dcgm_up")

    assert (up, dcgm_up) == (1, 1)
    assert (labels["Hostname"], labels["node"], labels["job"]) == ("n1", "n1", JOB)
    assert scraped.registry.get_sample_value("gpuloom_node_agent_scrapes_total")


async def test_a_series_has_the_labels_that_dashboards_use(scraped: Scraped) -> None:
    ((labels, value),) = await scraped.prometheus.query('DCGM_FI_DEV_GPU_UTIL{pod="whole.pod-0"}')

    assert value == 80
    del labels["instance"]
    assert labels == {
        "__name__": "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DRIVER_VERSION": "550.54.15",
        "Hostname": "n1",
        "UUID": "GPU-a",
        "container": "main",
        "device": "nvidia0",
        "gpu": "0",
        "job": JOB,
        "modelName": 'NVIDIA "odd"\\card\nπ',
        "namespace": "team-a",
        "node": "n1",
        "pci_bus_id": "00000000:01:00.0",
        "pod": "whole.pod-0",
    }


async def test_what_pods_use_of_a_shared_card_adds_up_to_the_card(scraped: Scraped) -> None:
    parts = await scraped.prometheus.query('DCGM_FI_DEV_GPU_UTIL{UUID="GPU-b"}')
    whole = await scraped.prometheus.query('sum by (UUID) (DCGM_FI_DEV_GPU_UTIL{UUID="GPU-b"})')
    memory = await scraped.prometheus.query('sum by (UUID) (DCGM_FI_DEV_FB_USED{UUID="GPU-b"})')

    assert {labels["pod"]: value for labels, value in parts} == {"left": 60, "right": 20}
    assert (whole, memory) == ([({"UUID": "GPU-b"}, 80)], [({"UUID": "GPU-b"}, 10_000)])


async def test_instances_are_found_by_their_card(scraped: Scraped) -> None:
    used = await scraped.prometheus.query(f'DCGM_FI_DEV_FB_USED{{UUID="{MIG_GPU}"}}')
    busy = await scraped.prometheus.query(f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{UUID="{MIG_GPU}"}}')
    utilisation = await scraped.prometheus.query(f'DCGM_FI_DEV_GPU_UTIL{{UUID="{MIG_GPU}"}}')

    found = {
        (labels["GPU_I_PROFILE"], labels["GPU_I_ID"], labels.get("pod")): value for labels, value in used
    }
    assert found == {("3g.40gb", "1", "sliced"): 4000, ("1g.10gb", "7", None): 0}
    assert [(labels["GPU_I_ID"], value) for labels, value in busy] == [("1", 0.9)]
    assert utilisation == []


async def test_a_lost_card_is_known_by_its_last_error(scraped: Scraped) -> None:
    errors = await scraped.prometheus.query('DCGM_FI_DEV_XID_ERRORS{UUID="GPU-c"}')
    temperature = await scraped.prometheus.query('DCGM_FI_DEV_GPU_TEMP{UUID="GPU-c"}')

    assert [value for _, value in errors] == [79]
    assert temperature == []


async def test_when_the_driver_is_silent_the_series_end_and_come_back(scraped: Scraped) -> None:
    picture = scraped.node.picture
    assert picture is not None

    scraped.node.picture = replace(picture, reading=None)
    await scraped.prometheus.until("dcgm_up == 0", bool)
    silent = await scraped.prometheus.query("DCGM_FI_DEV_GPU_TEMP")
    scraped.node.picture = picture
    await scraped.prometheus.until("dcgm_up == 1", bool)

    assert silent == []
    assert len(await scraped.prometheus.query("DCGM_FI_DEV_GPU_TEMP")) == 5
