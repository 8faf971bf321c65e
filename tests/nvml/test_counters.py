"""Counters of errors and throttling, and whether XIDs are heard, through the real pynvml."""

import asyncio
from dataclasses import replace

import pytest

from gpuloom.catalog import load_catalog
from gpuloom.model.gpu import GpuUsage
from gpuloom.runtime.clock import FakeClock
from services.node_agent.core.picture import Picture
from services.node_agent.core.plausibility import Quantity, sift
from services.node_agent.core.readings import DriverReading, GpuCounters
from services.node_agent.nvml.driver import NvmlDriver
from services.node_agent.nvml.lane import LaneLimits
from services.node_agent.nvml.slots import Tiers
from tests.nvml.drivers import QUICK, Make, a_driver, read_until
from tests.nvml.machines import FUNCTION_NOT_FOUND, NOT_SUPPORTED, counting, some_gpus, uuid
from tests.unit.node_agent.exporter.builders import a_state
from tests.unit.node_agent.exporter.test_exposition import written

pytestmark = pytest.mark.real

COUNTED = GpuCounters(
    ecc_corrected_volatile=11,
    ecc_corrected_aggregate=12,
    ecc_uncorrected_aggregate=13,
    retired_pages_corrected=29,
    retired_pages_uncorrected=30,
    retired_pages_pending=31,
    nvlink_crc_flit_errors=38,
    nvlink_crc_data_errors=45,
    nvlink_replay_errors=52,
    nvlink_recovery_errors=59,
    power_violation_ns=1000,
    thermal_violation_ns=1001,
    sync_boost_violation_ns=1002,
    board_limit_violation_ns=1003,
    low_utilization_violation_ns=1004,
    reliability_violation_ns=1005,
)


async def test_counters_are_what_the_driver_says(machine: Make) -> None:
    machine(some_gpus(1) | counting())

    async with a_driver() as driver:
        sample = (await driver.read()).samples[uuid(0)]

    assert (sample.ecc_uncorrected_volatile, sample.clock_event_reasons) == (0, 4)
    assert sample.counters == COUNTED


async def test_a_driver_without_fields_still_tells_its_ecc_errors_and_throttling(machine: Make) -> None:
    machine(some_gpus(1) | counting() | {"all.fault.nvmlDeviceGetFieldValues": FUNCTION_NOT_FOUND})

    async with a_driver() as driver:
        counters = (await driver.read()).samples[uuid(0)].counters

    gaps = [name for name in GpuCounters.__dataclass_fields__ if name.startswith(("retired", "nvlink"))]
    assert counters == replace(COUNTED, **dict.fromkeys(gaps))


async def test_counters_are_read_once_a_minute_and_at_once_after_an_error(machine: Make) -> None:
    state = machine(some_gpus(1) | counting())
    clock = FakeClock()
    options = replace(QUICK, tiers=Tiers())

    async with NvmlDriver(load_catalog(), clock, options) as driver:
        await driver.read()
        state.set({"all.field.38": 999, "all.clock.event_reasons": 8})
        await clock.advance(59)
        soon = (await driver.read()).samples[uuid(0)]
        await clock.advance(1)
        later = (await driver.read()).samples[uuid(0)]
        state.set({"all.field.38": 1000})
        state.report_xid(0, 74)
        await read_until(driver, lambda reading: bool(reading.last_xids))
        after_error = (await driver.read()).samples[uuid(0)]

    assert (soon.counters.nvlink_crc_flit_errors, soon.clock_event_reasons) == (38, 8)
    assert later.counters.nvlink_crc_flit_errors == 999
    assert after_error.counters.nvlink_crc_flit_errors == 1000


async def test_numbers_that_are_no_readings_do_not_get_far(machine: Make) -> None:
    nonsense = {"utilization": 255, "temperature_c": -1, "power_mw": -1000, "memory_used_mib": 50_000}
    machine(some_gpus(1) | {f"all.{key}": value for key, value in nonsense.items()})

    async with a_driver() as driver:
        reading, rejected = sift(await driver.read())

    assert reading.usage == (GpuUsage(uuid(0)),)
    assert reading.samples[uuid(0)].sm_clock_mhz == 1410
    assert rejected == {
        Quantity.UTILIZATION: 1,
        Quantity.TEMPERATURE: 1,
        Quantity.POWER: 1,
        # What is used, and what would be left.
        Quantity.MEMORY: 2,
    }


async def test_a_card_that_reports_no_errors_is_not_one_without_errors(machine: Make) -> None:
    machine(some_gpus(2) | {"gpu.1.fault.nvmlDeviceRegisterEvents": NOT_SUPPORTED})

    async with a_driver() as driver:
        reading = await driver.read()

    assert (set(reading.xids_heard), dict(reading.last_xids)) == ({uuid(0)}, {})


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlEventSetWait_v2"])
async def test_without_events_nothing_is_said_of_errors(machine: Make, function: str) -> None:
    machine(some_gpus(1) | {f"fault.{function}": NOT_SUPPORTED})

    async with a_driver() as driver:
        await driver.read()
        reading = await read_until(driver, lambda reading: not reading.xids_heard)

    assert reading.xids_heard == frozenset()


async def test_the_series_of_a_slow_gpu_are_the_same_at_every_scrape(machine: Make) -> None:
    state = machine(some_gpus(2) | counting())
    scraped: list[set[bytes]] = []

    async with a_driver(replace(QUICK, limits=LaneLimits())) as driver:
        scraped.append(series(await driver.read()))
        # Longer than a sample waits, so most of them come without the GPU.
        state.set({"gpu.0.latency_ms.nvmlDeviceGetFieldValues": 250})
        async with asyncio.timeout(10):
            answered = 0
            while answered < 2:
                reading = await driver.read()
                answered += len(reading.usage) == 2
                scraped.append(series(reading))
                await asyncio.sleep(0.02)

    assert len(scraped) > 4
    assert all(found == scraped[0] for found in scraped)
    assert any(b"DCGM_FI_DEV_XID_ERRORS" in line and uuid(0).encode() in line for line in scraped[0])


def series(reading: DriverReading) -> set[bytes]:
    """Names and labels of what a scrape gets of this reading."""
    text = written(Picture(a_state(*reading.gpus), reading, (), 0.0))
    return {line.rsplit(b" ", 1)[0] for line in text.split(b"\n") if not line.startswith(b"#")}
