"""Drivers for tests: quick to lose patience."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from gpuloom.catalog import load_catalog
from gpuloom.model.gpu import GpuHealth
from gpuloom.runtime.clock import SystemClock
from services.node_agent.core.readings import DriverReading
from services.node_agent.nvml.driver import NvmlDriver, NvmlOptions
from services.node_agent.nvml.lane import LaneLimits
from services.node_agent.nvml.slots import Tiers
from tests.nvml.library import Standin

Make = Callable[[Mapping[str, object]], Standin]

QUICK = NvmlOptions(
    sysfs=Path("/nonexistent"),
    limits=LaneLimits(hang_after_s=0.3, max_abandoned=2, first_pause_s=0.1, pause_cap_s=0.2),
    tiers=Tiers(slow_interval_s=0.0, process_interval_s=0.0, wiring_interval_s=60.0, counter_interval_s=0.0),
    patience_s=0.2,
    event_wait_s=0.02,
    first_reopen_s=0.2,
    reopen_cap_s=0.4,
)

# Nothing but what every sample reads, after the first one.
CALM = replace(QUICK, tiers=Tiers(60.0, 60.0, 60.0))


@asynccontextmanager
async def a_driver(options: NvmlOptions = QUICK) -> AsyncIterator[NvmlDriver]:
    async with NvmlDriver(load_catalog(), SystemClock(), options) as driver:
        yield driver


async def read_until(driver: NvmlDriver, condition: Callable[[DriverReading], bool]) -> DriverReading:
    async with asyncio.timeout(10):
        while True:
            reading = await driver.read()
            if condition(reading):
                return reading
            await asyncio.sleep(0.02)


def healths(reading: DriverReading) -> list[GpuHealth]:
    return [gpu.health for gpu in reading.gpus]
