"""How many NVML calls a sample makes: each takes its turn at a lock that applications share."""

import pytest

from tests.nvml.drivers import CALM, Make, a_driver
from tests.nvml.library import Standin
from tests.nvml.machines import counting, mig_machine, nvswitch_machine, seven_each

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    ("keys", "instances", "most"),
    [
        (nvswitch_machine(8), [], 8),
        (nvswitch_machine(8) | {"all.gpm": 1}, [], 10),
        # Eight for the GPU, and for each slice its memory and two for its activity.
        (mig_machine(8) | {"all.gpm": 1}, seven_each(8), 8 + 7 * 3),
    ],
)
async def test_a_look_makes_few_calls(
    machine: Make, keys: dict[str, object], instances: list[str], most: int
) -> None:
    state = machine(keys)
    state.put_instances(*instances)

    async with a_driver(CALM) as driver:
        await driver.read()
        await driver.read()
        before = calls_in_lanes(state)
        await driver.read()
        after = calls_in_lanes(state)

    assert (after - before) / 8 <= most


async def test_a_look_that_reads_everything_stays_affordable(machine: Make) -> None:
    state = machine(mig_machine(8) | counting() | {"all.gpm": 1})
    state.put_instances(*seven_each(8))

    async with a_driver() as driver:
        await driver.read()
        before = calls_in_lanes(state)
        await driver.read()
        after = calls_in_lanes(state)

    assert (after - before) / 8 <= 80


def calls_in_lanes(state: Standin) -> int:
    """Those that looks make; the thread that waits for events calls on its own."""
    return sum(count for name, count in state.calls().items() if name != "nvmlEventSetWait_v2")
