"""What an agent that starts again still knows, through the real pynvml on the stand-in library."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.mig import MigPlacement
from services.node_agent.nvml.driver import NvmlOptions
from tests.nvml.drivers import QUICK, Make, a_driver, healths, read_until
from tests.nvml.machines import GPU_IS_LOST, mig_machine, some_gpus, uuid

pytestmark = pytest.mark.real


def options(folder: Path, boot: str = "boot-1") -> NvmlOptions:
    """Those of an agent that keeps what it knows in this folder, on a machine in this boot."""
    folder.mkdir(parents=True, exist_ok=True)
    boot_id = folder / "boot_id"
    boot_id.write_text(f"{boot}\n")
    return replace(QUICK, state_dir=folder / "kept", boot_id=boot_id)


async def test_a_gpu_that_is_lost_when_the_agent_starts_is_known_from_before(
    machine: Make, tmp_path: Path
) -> None:
    state = machine(some_gpus(3))
    async with a_driver(options(tmp_path)) as driver:
        before = await driver.read()

    state.set({"gpu.1.fault": GPU_IS_LOST})
    async with a_driver(options(tmp_path)) as driver:
        lost = await driver.read()
        state.unset("gpu.1.fault")
        back = await read_until(driver, lambda reading: GpuHealth.LOST not in healths(reading))

    assert lost.gpus[1] == replace(
        before.gpus[1],
        health=GpuHealth.LOST,
        health_reason="the GPU fell off the bus or is otherwise lost",
    )
    assert back.gpus == before.gpus


async def test_a_restart_does_not_clear_a_fault(machine: Make, tmp_path: Path) -> None:
    state = machine(some_gpus(2))
    async with a_driver(options(tmp_path)) as driver:
        await driver.read()
        state.report_xid(1, 95)
        ill = await read_until(driver, lambda reading: GpuHealth.UNHEALTHY in healths(reading))

    async with a_driver(options(tmp_path)) as driver:
        again = await driver.read()

    assert again.gpus == ill.gpus
    assert again.last_xids == {DeviceRef(uuid(1)): 95}


async def test_a_reboot_is_a_fresh_start(machine: Make, tmp_path: Path) -> None:
    state = machine(some_gpus(2))
    async with a_driver(options(tmp_path)) as driver:
        await driver.read()
        state.report_xid(1, 95)
        await read_until(driver, lambda reading: GpuHealth.UNHEALTHY in healths(reading))

    async with a_driver(options(tmp_path, boot="boot-2")) as driver:
        reading = await driver.read()

    assert healths(reading) == [GpuHealth.HEALTHY, GpuHealth.HEALTHY]


async def test_the_slices_of_a_lost_gpu_and_their_faults_are_known_from_before(
    machine: Make, tmp_path: Path
) -> None:
    state = machine(mig_machine(1))
    state.put_instances("0 1 9 4 4 1 MIG-aaaa", "0 7 19 0 1 1 MIG-bbbb")
    async with a_driver(options(tmp_path)) as driver:
        await driver.read()
        state.report_xid(0, 95, instance=7)
        await read_until(driver, lambda reading: bool(reading.gpus[0].mig_instances[0].fault))

    state.set({"gpu.0.fault": GPU_IS_LOST})
    async with a_driver(options(tmp_path)) as driver:
        gpu = (await driver.read()).gpus[0]
        device = driver.device_of_id("MIG-aaaa")

    assert gpu.health is GpuHealth.LOST
    assert [bool(instance.fault) for instance in gpu.mig_instances] == [True, False]
    assert device == DeviceRef(uuid(0), MigPlacement(4, "3g.20gb"))


async def test_a_folder_that_can_not_be_written_is_said_once_and_stops_nothing(
    machine: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = machine(some_gpus(1))
    blocked = options(tmp_path)
    (tmp_path / "kept").write_text("a file where the folder should be")

    async with a_driver(blocked) as driver:
        await driver.read()
        state.report_xid(0, 95)
        reading = await read_until(driver, lambda reading: GpuHealth.UNHEALTHY in healths(reading))

    assert healths(reading) == [GpuHealth.UNHEALTHY]
    messages = [record.message for record in caplog.records]
    assert messages.count("the record of the GPUs can't be kept: a restart forgets faults") == 1
