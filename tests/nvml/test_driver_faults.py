"""GPUs that are lost, ill, slow or hung, and drivers that go away, through the real pynvml."""

import asyncio
import threading
from dataclasses import replace

import pytest

from gpuloom.catalog import load_catalog
from gpuloom.errors import UnavailableError
from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.runtime.clock import FakeClock, SystemClock, settle
from services.node_agent.core.readings import DriverReading
from services.node_agent.nvml.core.health import SETTLE_S
from services.node_agent.nvml.driver import DriverReplacedError, NvmlDriver
from services.node_agent.nvml.lane import LaneLimits
from tests.mesh.waiting import until
from tests.nvml.drivers import QUICK, Make, a_driver, healths, read_until
from tests.nvml.library import Standin
from tests.nvml.machines import (
    GPU_IS_LOST,
    RECOVERY_ACTION,
    mig_machine,
    nvswitch_machine,
    pci,
    some_gpus,
    uuid,
)

pytestmark = pytest.mark.real


async def test_a_lost_gpu_hides_no_other_and_comes_back(machine: Make) -> None:
    state = machine(nvswitch_machine(8))

    async with a_driver() as driver:
        before = await driver.read()
        state.set({"gpu.3.fault": GPU_IS_LOST})
        lost = await driver.read()
        state.unset("gpu.3.fault")
        back = await read_until(driver, lambda reading: GpuHealth.LOST not in healths(reading))

    assert lost.gpus[3] == replace(
        before.gpus[3],
        health=GpuHealth.LOST,
        health_reason="the GPU fell off the bus or is otherwise lost",
    )
    assert [gpu for gpu in lost.gpus if gpu.index != 3] == [gpu for gpu in before.gpus if gpu.index != 3]
    assert uuid(3) not in {usage.gpu_uuid for usage in lost.usage}
    assert lost.topology == before.topology
    assert back.gpus == before.gpus


async def test_a_gpu_that_a_new_session_does_not_show_keeps_its_index_and_shifts_nobodys(
    machine: Make,
) -> None:
    state = machine(some_gpus(3))

    async with a_driver() as driver:
        await driver.read()
        gone = {"gpus": 2, "gpu.1.uuid": uuid(2), "gpu.1.pci": pci(2), "gpu.1.serial": "SN2"}
        state.set(gone | {"fault.nvmlDeviceGetCount_v2": 0, "all.fault.nvmlDeviceGetMemoryInfo_v2": 1})
        await driver.read()
        state.unset("all.fault.nvmlDeviceGetMemoryInfo_v2")
        reading = await read_until(driver, lambda reading: GpuHealth.LOST in healths(reading))

    assert [(gpu.index, gpu.uuid) for gpu in reading.gpus] == [(0, uuid(0)), (1, uuid(1)), (2, uuid(2))]
    assert healths(reading) == [GpuHealth.HEALTHY, GpuHealth.LOST, GpuHealth.HEALTHY]


async def test_a_gpu_lost_before_the_start_is_told_and_met_when_it_comes_back(
    machine: Make, caplog: pytest.LogCaptureFixture
) -> None:
    state = machine(some_gpus(3) | {"gpu.1.fault": GPU_IS_LOST})

    async with a_driver() as driver:
        without = await driver.read()
        state.unset("gpu.1.fault")
        whole = await read_until(driver, lambda reading: len(reading.gpus) == 3)

    assert [record.message for record in caplog.records].count("a GPU can't be identified") >= 1
    assert [gpu.index for gpu in without.gpus] == [0, 2]
    assert [gpu.index for gpu in whole.gpus] == [0, 1, 2]
    assert whole.topology is not None


async def test_a_hung_call_stops_no_other_gpu_and_ends_as_unknown(machine: Make) -> None:
    state = machine(some_gpus(8))
    clock = SystemClock()

    async with a_driver() as driver:
        await driver.read()
        state.set({"gpu.5.hang.nvmlDeviceGetPowerUsage": 1, "all.power_mw": 70000})
        hung = await read_until(driver, lambda reading: reading.gpus[5].health is GpuHealth.UNKNOWN)
        started_s = clock.monotonic()
        others = [await driver.read() for _ in range(5)]
        took_s = clock.monotonic() - started_s
        state.release_hangs()
        back = await read_until(driver, lambda reading: reading.gpus[5].health is GpuHealth.HEALTHY)

    assert "a call hangs" in hung.gpus[5].health_reason
    assert {usage.power_w for usage in others[-1].usage} == {70.0}
    assert len(others[-1].usage) == 7
    # At most one of them waited out its patience for a fresh try at the hung GPU, or two.
    assert took_s < 5 * QUICK.patience_s
    assert back.gpus[5].health_reason == ""


async def test_a_call_that_hangs_for_ten_minutes_costs_the_others_nothing(machine: Make) -> None:
    state = machine(some_gpus(3))
    clock = FakeClock()
    options = replace(QUICK, limits=LaneLimits())

    async with NvmlDriver(load_catalog(), clock, options) as driver:
        await driver.read()
        state.set({"gpu.1.hang.nvmlDeviceGetPowerUsage": 1})
        readings = [await a_minute_later(clock, driver) for _ in range(10)]
        state.release_hangs()
        await until(lambda: not busy_lanes())
        await clock.advance(600)
        back = await driver.read()

    assert {usage.gpu_uuid for reading in readings for usage in reading.usage} == {uuid(0), uuid(2)}
    assert all(len(reading.usage) == 2 for reading in readings)
    assert healths(readings[-1]) == [GpuHealth.HEALTHY, GpuHealth.UNKNOWN, GpuHealth.HEALTHY]
    assert healths(back) == [GpuHealth.HEALTHY] * 3


async def a_minute_later(clock: FakeClock, driver: NvmlDriver) -> DriverReading:
    await clock.advance(60)
    looking = asyncio.ensure_future(driver.read())
    await settle()
    # All but the GPU that hangs have answered; what is left is the look's patience.
    while not looking.done():
        await until(lambda: looking.done() or not busy_lanes() - {"nvml-gpu-1"})
        await clock.advance(QUICK.patience_s)
    return looking.result()


def busy_lanes() -> set[str]:
    names = {thread.name for thread in threading.enumerate()}
    return {name for name in names if name.startswith(("nvml-gpu-", "nvml-links-"))}


async def test_hung_threads_are_bounded(machine: Make) -> None:
    state = machine(some_gpus(2))

    async with a_driver() as driver:
        await driver.read()
        calls = state.calls()["nvmlDeviceGetPowerUsage"]
        state.set({"gpu.1.hang.nvmlDeviceGetPowerUsage": 1})
        for _ in range(80):
            await driver.read()
            await asyncio.sleep(0.02)
        hung_calls = _calls_of_hung_gpu(state, calls, looks=80)
        state.release_hangs()

    assert hung_calls <= QUICK.limits.max_abandoned + 1


def _calls_of_hung_gpu(state: Standin, before: int, looks: int) -> int:
    return state.calls()["nvmlDeviceGetPowerUsage"] - before - looks


async def test_a_slow_gpu_is_still_read(machine: Make) -> None:
    machine(some_gpus(2) | {"gpu.0.latency_ms.nvmlDeviceGetFieldValues": 250})

    async with a_driver() as driver:
        reading = await read_until(driver, lambda reading: len(reading.gpus) == 2)

    assert healths(reading) == [GpuHealth.HEALTHY, GpuHealth.HEALTHY]


async def test_the_sample_of_a_slow_gpu_does_not_come_and_go(machine: Make) -> None:
    state = machine(some_gpus(2))

    async with a_driver(replace(QUICK, limits=LaneLimits())) as driver:
        await driver.read()
        # Longer than a sample waits.
        state.set({"gpu.0.latency_ms.nvmlDeviceGetFieldValues": 250, "all.power_mw": 70000})
        slow = await driver.read()
        answered = await read_until(driver, lambda reading: len(reading.usage) == 2)

    assert [usage.gpu_uuid for usage in slow.usage] == [uuid(1)]
    assert [slow.samples[uuid(gpu)].power_w for gpu in range(2)] == [61.5, 70.0]
    assert answered.samples[uuid(0)].power_w == 70.0


async def test_an_applications_error_is_not_the_gpus(machine: Make) -> None:
    state = machine(some_gpus(2))

    async with a_driver() as driver:
        await driver.read()
        state.report_xid(0, 31)
        state.report_xid(1, 95)
        reading = await read_until(driver, lambda reading: GpuHealth.UNHEALTHY in healths(reading))

    assert healths(reading) == [GpuHealth.HEALTHY, GpuHealth.UNHEALTHY]
    assert reading.gpus[1].health_reason == "XID 95, uncontained memory error: drain and reset the GPU"


async def test_a_gpu_that_fell_off_the_bus_is_lost_and_recovers_after_its_reset(machine: Make) -> None:
    state = machine(some_gpus(2))

    async with a_driver() as driver:
        await driver.read()
        state.report_xid(0, 79)
        state.set({"gpu.0.fault": GPU_IS_LOST})
        lost = await read_until(driver, lambda reading: "XID 79" in reading.gpus[0].health_reason)
        state.unset("gpu.0.fault")
        back = await read_until(driver, lambda reading: reading.gpus[0].health is GpuHealth.HEALTHY)

    assert lost.gpus[0].health is GpuHealth.LOST
    assert lost.gpus[1].health is GpuHealth.HEALTHY
    assert back.gpus[0].health_reason == ""


async def test_thousands_of_application_errors_hide_no_error_of_the_gpu(machine: Make) -> None:
    state = machine(some_gpus(2))

    async with a_driver() as driver:
        await driver.read()
        waited = state.calls().get("nvmlEventSetWait_v2", 0)
        state.report_xid(0, 79)
        state.report_xid(0, 31, times=3000)
        await until(lambda: state.calls()["nvmlEventSetWait_v2"] > waited + 3001)
        reading = await driver.read()

    assert healths(reading) == [GpuHealth.UNHEALTHY, GpuHealth.HEALTHY]
    assert "XID 79" in reading.gpus[0].health_reason
    assert reading.last_xids == {DeviceRef(uuid(0)): 31}


async def test_an_error_is_heard_though_the_session_is_opened_anew_before_the_next_sample(
    machine: Make,
) -> None:
    state = machine(some_gpus(2))
    clock = FakeClock()

    async with NvmlDriver(load_catalog(), clock, QUICK) as driver:
        await driver.read()
        state.set({"gpu.1.fault": GPU_IS_LOST})
        await driver.read()
        waited = state.calls()["nvmlEventSetWait_v2"]
        state.report_xid(0, 95)
        await until(lambda: state.calls()["nvmlEventSetWait_v2"] > waited + 1)
        await clock.advance(QUICK.first_reopen_s)
        reading = await driver.read()

    assert state.calls()["nvmlShutdown"] >= 1
    assert "XID 95" in reading.gpus[0].health_reason


async def test_a_fault_is_over_when_the_driver_has_settled_and_asks_for_nothing(machine: Make) -> None:
    state = machine(some_gpus(1))
    clock = FakeClock()

    async with NvmlDriver(load_catalog(), clock, QUICK) as driver:
        await driver.read()
        state.report_xid(0, 95)
        await read_until(driver, lambda reading: GpuHealth.UNHEALTHY in healths(reading))
        await clock.advance(SETTLE_S - 1)
        ill = await driver.read()
        await clock.advance(1)
        well = await driver.read()

    assert healths(ill) == [GpuHealth.UNHEALTHY]
    assert healths(well) == [GpuHealth.HEALTHY]


async def test_an_error_of_one_slice_closes_that_slice_alone(machine: Make) -> None:
    state = machine(mig_machine(1))
    state.put_instances("0 1 9 4 4 1 MIG-aaaa", "0 7 19 0 1 1 MIG-bbbb")

    async with a_driver() as driver:
        await driver.read()
        state.report_xid(0, 31, instance=1)
        state.report_xid(0, 95, instance=7)
        ill = await read_until(driver, lambda reading: len(reading.last_xids) == 2)
        state.put_instances("0 1 9 4 4 1 MIG-aaaa", "0 7 19 0 1 1 MIG-made-anew")
        well = await driver.read()

    small, large = ill.gpus[0].mig_instances
    assert ill.gpus[0].health is GpuHealth.HEALTHY
    assert "XID 95" in small.fault
    assert "create the instance anew" in small.fault
    assert large.fault == ""
    assert ill.last_xids == {
        DeviceRef(uuid(0), small.placement): 95,
        DeviceRef(uuid(0), large.placement): 31,
    }
    assert [instance.fault for instance in well.gpus[0].mig_instances] == ["", ""]


async def test_an_error_that_no_slice_is_named_for_is_the_whole_gpus(machine: Make) -> None:
    state = machine(mig_machine(2))
    state.put_instances("0 1 9 4 4 1 MIG-aaaa", "1 1 9 4 4 1 MIG-bbbb")

    async with a_driver() as driver:
        await driver.read()
        state.report_xid(0, 95)
        state.report_xid(1, 95, instance=13)
        reading = await read_until(
            driver, lambda reading: healths(reading) == [GpuHealth.UNHEALTHY, GpuHealth.UNHEALTHY]
        )

    assert [instance.fault for gpu in reading.gpus for instance in gpu.mig_instances] == ["", ""]
    assert reading.last_xids == {DeviceRef(uuid(0)): 95, DeviceRef(uuid(1)): 95}


async def test_the_drivers_recovery_action_rules(machine: Make) -> None:
    state = machine(some_gpus(1) | {f"gpu.0.{RECOVERY_ACTION}": 4})

    async with a_driver() as driver:
        ill = await driver.read()
        state.set({f"gpu.0.{RECOVERY_ACTION}": 0})
        well = await driver.read()

    assert ill.gpus[0].health is GpuHealth.UNHEALTHY
    assert ill.gpus[0].health_reason == "the driver asks to drain and reset the GPU"
    assert well.gpus[0].health is GpuHealth.HEALTHY


async def test_a_row_that_could_not_be_remapped_condemns_the_gpu(machine: Make) -> None:
    machine(some_gpus(1) | {"gpu.0.remapped_rows": "0 1 0 1"})

    async with a_driver() as driver:
        reading = await driver.read()

    assert reading.gpus[0].health is GpuHealth.UNHEALTHY
    assert "replace the GPU" in reading.gpus[0].health_reason


async def test_a_driver_that_is_not_loaded_is_said_so_and_tried_again(machine: Make) -> None:
    state = machine(some_gpus(1) | {"fault.nvmlInitWithFlags": 9})

    async with a_driver() as driver:
        with pytest.raises(UnavailableError, match="kernel driver is not loaded"):
            await driver.read()
        state.unset("fault.nvmlInitWithFlags")
        reading = await driver.read()

    assert healths(reading) == [GpuHealth.HEALTHY]


async def test_a_driver_that_was_restarted_is_opened_again(machine: Make) -> None:
    state = machine(nvswitch_machine(2))

    async with a_driver() as driver:
        before = await driver.read()
        state.set({"all.fault": 1})
        during = await driver.read()
        state.unset("all.fault")
        after = await read_until(driver, lambda reading: GpuHealth.UNKNOWN not in healths(reading))

    assert healths(during) == [GpuHealth.UNKNOWN, GpuHealth.UNKNOWN]
    assert after == before


async def test_another_version_of_the_driver_needs_another_process(machine: Make) -> None:
    state = machine(some_gpus(1))

    async with a_driver() as driver:
        await driver.read()
        state.set({"all.fault": 18, "fault.nvmlInitWithFlags": 18})
        await driver.read()
        with pytest.raises(DriverReplacedError):
            await driver.read()
