"""Reading a dcgm-exporter that answers, lies, hangs and goes away."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from gpuloom.model.gpu import DeviceRef
from gpuloom.runtime.clock import FakeClock
from services.node_agent.core.readings import DriverReading, Process
from services.node_agent.exporter.dcgm_reader import (
    MAX_AGE_S,
    MAX_BYTES,
    DcgmReader,
    FilledDriver,
    ReaderParts,
)
from services.node_agent.exporter.metrics import ExporterMetrics
from tests.unit.node_agent.exporter.builders import a_card
from tests.unit.node_agent.exporter.test_dcgm_reading import RECORDED


@dataclass
class FakeDcgm:
    """A dcgm-exporter that answers as it is told; `hung` is how many requests it left unanswered."""

    body: bytes = RECORDED.encode()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    hung: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def answer(self, _: web.Request) -> web.Response:
        if self.hangs:
            self.hung.set()
            await asyncio.Event().wait()
        return web.Response(status=self.status, body=self.body, headers=self.headers)


@dataclass
class Setup:
    dcgm: FakeDcgm
    reader: DcgmReader
    clock: FakeClock
    registry: CollectorRegistry

    def reads(self, outcome: str) -> float | None:
        name = "gpuloom_node_agent_dcgm_reads_total"
        return self.registry.get_sample_value(name, {"outcome": outcome})


@asynccontextmanager
async def a_setup() -> AsyncIterator[Setup]:
    dcgm, clock, registry = FakeDcgm(), FakeClock(), CollectorRegistry()
    application = web.Application()
    application.router.add_get("/metrics", dcgm.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    dcgm.url = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    try:
        async with aiohttp.ClientSession() as session:
            parts = ReaderParts(session, clock, ExporterMetrics(registry))
            yield Setup(dcgm, DcgmReader("n1", lambda: dcgm.url, parts), clock, registry)
    finally:
        await runner.cleanup()


class BareDriver:
    async def read(self) -> DriverReading:
        return DriverReading((a_card(),), (), None)

    async def list_processes(self) -> tuple[tuple[Process, ...], dict[str, str]]:
        return (Process(7, DeviceRef("GPU-a")),), {}


async def test_what_it_says_fills_the_gaps_of_the_driver() -> None:
    async with a_setup() as setup:
        driver = FilledDriver(BareDriver(), setup.reader)
        before = await driver.read()

        await setup.reader.read()

        assert before.samples == {}
        assert (await driver.read()).samples["GPU-a"].utilization_ratio == 0.37
        assert (await driver.list_processes())[0][0].pid == 7
        assert setup.reads("read") == 1


async def test_what_is_old_is_not_given() -> None:
    async with a_setup() as setup:
        await setup.reader.read()
        assert setup.reader.latest() is not None

        await setup.clock.advance(MAX_AGE_S + 1)

        assert setup.reader.latest() is None


async def test_where_it_does_not_run_nothing_is_given_and_nobody_asked() -> None:
    async with a_setup() as setup:
        await setup.reader.read()
        setup.dcgm.url = ""

        assert setup.reader.latest() is None
        await setup.reader.read()
        assert (setup.reads("read"), setup.reads("unreachable")) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"status": 500}, "unreachable"),
        ({"status": 302, "headers": {"Location": "/metrics"}}, "unreachable"),
        ({"url": "http://127.0.0.1:1/metrics"}, "unreachable"),
        ({"body": b'DCGM_FI_DEV_FB_USED{UUID="GPU-a" 1'}, "unreadable"),
        ({"body": b"a" * (MAX_BYTES + 1)}, "unreadable"),
        ({"body": b"no gzip", "headers": {"Content-Encoding": "gzip"}}, "unreachable"),
    ],
)
async def test_an_answer_that_is_no_good_leaves_the_gaps(changes: dict[str, object], outcome: str) -> None:
    async with a_setup() as setup:
        await setup.reader.read()
        for name, value in changes.items():
            setattr(setup.dcgm, name, value)

        await setup.reader.read()

        assert setup.reader.latest() is None
        assert (setup.reads("read"), setup.reads(outcome)) == (1, 1)


async def test_one_that_hangs_is_left_at_the_deadline() -> None:
    async with a_setup() as setup:
        setup.dcgm.hangs = True
        reading = asyncio.create_task(setup.reader.read())
        await setup.dcgm.hung.wait()

        await setup.clock.advance(6)
        await reading

        assert setup.reads("unreachable") == 1


async def test_it_is_told_once_when_it_can_not_be_read_and_once_when_it_can_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "services.node_agent.exporter.dcgm_reader")
    async with a_setup() as setup:
        for status in (500, 500, 200, 200):
            setup.dcgm.status = status
            await setup.reader.read()

    assert [record.message for record in caplog.records] == [
        "dcgm-exporter can't be read",
        "dcgm-exporter is read",
    ]
