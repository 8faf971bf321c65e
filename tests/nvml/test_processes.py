"""Who computes, by looks and asked now, through the real pynvml on the stand-in library."""

import asyncio
from dataclasses import replace

import pytest

from gpuloom.errors import UnavailableError
from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.mig import MigPlacement
from services.node_agent.core.readings import Process
from services.node_agent.nvml.lane import LaneLimits
from services.node_agent.nvml.slots import Tiers
from tests.nvml.drivers import QUICK, Make, a_driver, healths, read_until
from tests.nvml.machines import FUNCTION_NOT_FOUND, GPU_IS_LOST, mig_machine, some_gpus, uuid

pytestmark = pytest.mark.real

LISTING = "nvmlDeviceGetComputeRunningProcesses_v3"
# A sample of its own lists processes at first and not again.
RARELY = replace(QUICK, tiers=Tiers(0.0, 60.0, 60.0))


async def test_processes_are_listed_with_memory_and_share(machine: Make) -> None:
    machine(some_gpus(2) | {"gpu.0.processes": "4711:2048:70:-1:-1,815:512:5:-1:-1"})
    device = DeviceRef(uuid(0))

    async with a_driver() as driver:
        processes = (await driver.read()).processes

    assert processes[uuid(0)] == (Process(815, device, 512, 0.05), Process(4711, device, 2048, 0.7))
    assert processes[uuid(1)] == ()


async def test_the_clients_of_an_mps_server_are_processes_too(machine: Make) -> None:
    machine(
        some_gpus(1)
        | {
            "gpu.0.processes": "100:30:0:-1:-1,201:512:5:-1:-1",
            "gpu.0.mps_processes": "201:512:5:-1:-1,202:256:9:-1:-1",
        }
    )

    async with a_driver() as driver:
        processes, _ = await driver.list_processes()

    assert [(process.pid, process.memory_mib) for process in processes] == [(100, 30), (201, 512), (202, 256)]


async def test_a_process_belongs_to_its_slice_and_one_on_an_unknown_slice_to_the_gpu(machine: Make) -> None:
    state = machine(mig_machine(1) | {"gpu.0.processes": "1:100:0:7:0,2:200:0:9:0"})
    state.put_instances("0 7 9 4 4 1 MIG-aaaa")

    async with a_driver() as driver:
        processes = (await driver.read()).processes[uuid(0)]

    assert [process.device for process in processes] == [
        DeviceRef(uuid(0), MigPlacement(4, "3g.20gb")),
        DeviceRef(uuid(0)),
    ]


async def test_processes_are_those_of_now_even_before_the_first_look(machine: Make) -> None:
    state = machine(some_gpus(2) | {"gpu.1.processes": "1:10:0:-1:-1"})

    async with a_driver(RARELY) as driver:
        first, _ = await driver.list_processes()
        state.set({"gpu.1.processes": "2:20:0:-1:-1"})
        second, unanswered = await driver.list_processes()
        reading = await driver.read()

    assert first == (Process(1, DeviceRef(uuid(1)), 10, 0.0),)
    assert second == (Process(2, DeviceRef(uuid(1)), 20, 0.0),)
    assert unanswered == {}
    # What was asked for is not asked for again by the look.
    assert reading.processes[uuid(1)] == second


async def test_gpus_that_do_not_answer_are_named_with_the_reason(machine: Make) -> None:
    state = machine(some_gpus(4) | {"all.processes": "1:10:0:-1:-1"})

    async with a_driver(RARELY) as driver:
        await driver.read()
        state.set(
            {
                "gpu.0.fault": GPU_IS_LOST,
                f"gpu.1.latency_ms.{LISTING}": 260,
                f"gpu.2.fault.{LISTING}": FUNCTION_NOT_FOUND,
            }
        )
        processes, unanswered = await driver.list_processes()

    assert [process.device.gpu_uuid for process in processes] == [uuid(3)]
    assert unanswered == {
        uuid(0): "the GPU fell off the bus or is otherwise lost",
        uuid(1): "the GPU did not answer in time",
        uuid(2): "this driver can't list processes",
    }


async def test_a_list_that_comes_late_is_not_taken_for_a_look(machine: Make) -> None:
    state = machine(some_gpus(1) | {"all.processes": "1:10:0:-1:-1"})

    async with a_driver(replace(RARELY, limits=LaneLimits())) as driver:
        await driver.read()
        state.set({f"gpu.0.latency_ms.{LISTING}": 150, "gpu.0.processes": "2:20:0:-1:-1"})
        await driver.list_processes()
        reading = await read_until(driver, lambda reading: bool(reading.usage))

    assert healths(reading) == [GpuHealth.HEALTHY]
    assert [process.pid for process in reading.processes[uuid(0)]] == [2]


async def test_a_hung_gpu_is_asked_nothing_more_and_delays_nobody(machine: Make) -> None:
    state = machine(some_gpus(2))

    async with a_driver(RARELY) as driver:
        await driver.read()
        state.set({f"gpu.0.hang.{LISTING}": 1})
        await driver.list_processes()
        asked = state.calls()[LISTING]
        read, (_, unanswered) = await asyncio.gather(driver.read(), driver.list_processes())
        calls = state.calls()[LISTING] - asked
        hung = await read_until(driver, lambda reading: reading.gpus[0].health is GpuHealth.UNKNOWN)
        _, still_unanswered = await driver.list_processes()
        state.release_hangs()

    assert unanswered == {uuid(0): "the GPU did not answer in time"}
    assert [usage.gpu_uuid for usage in read.usage] == [uuid(1)]
    # The other GPU was asked, the one that hangs was not.
    assert calls == 1
    assert "a call hangs" in still_unanswered[uuid(0)]
    assert hung.gpus[1].health is GpuHealth.HEALTHY


async def test_without_a_driver_nobody_can_be_asked(machine: Make) -> None:
    machine(some_gpus(1) | {"fault.nvmlInitWithFlags": 9})

    async with a_driver() as driver:
        with pytest.raises(UnavailableError, match="modprobe nvidia"):
            await driver.list_processes()
